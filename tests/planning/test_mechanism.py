"""Mechanisms are objects: a fifth one works everywhere, and careless ones cannot spend more than they declare."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import numpy as np
import pytest
import yaml
from conftest import REPOSITORY
from toy_mechanism import Toy, ToySelector

from cords_dp.accounting import TRAINING_DATA, gaussian
from cords_dp.accounting.events import merge
from cords_dp.cli import main
from cords_dp.config import to_plain
from cords_dp.errors import ConfigError, CordsDPError, MechanismError
from cords_dp.experiments.run import run_experiment
from cords_dp.planning import mechanism_table, register_mechanism, registered_mechanisms
from cords_dp.planning.mechanism import unregister_mechanism
from cords_dp.training import TrainClassifier, resolve
from cords_dp.training.checkpoint import load_checkpoint


@pytest.fixture
def toy():
    register_mechanism(Toy)
    yield Toy
    unregister_mechanism("toy")


@pytest.fixture
def config(toy, make_config):
    return make_config("GLISTERDP", dss_args={"mechanism": "toy"}, ckpt={"is_save": True, "save_every": 1})


# --- a fifth mechanism -----------------------------------------------------------------------------------


def test_it_is_one_short_file():
    assert len((REPOSITORY / "tests" / "toy_mechanism.py").read_text().splitlines()) < 60


def test_it_runs_and_is_charged_as_declared(config, tmp_path):
    result = run_experiment(config, tmp_path / "out", progress=False)
    assert result.epsilon <= 3.0
    report = json.loads((tmp_path / "out" / "privacy.json").read_text())
    selection = [row for row in report["mechanisms"] if row["phase"] == "selection"]
    assert [(row["mechanism"], row["count"]) for row in selection] == [("Gaussian", 1)]
    assert "the toy's count of labels" in (tmp_path / "out" / "privacy.md").read_text()
    (ledger,) = (tmp_path / "out").rglob("ledger.jsonl")
    assert '"selection"' in ledger.read_text()


def test_budget_shows_it(config, tmp_path, capsys):
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(to_plain(config)))
    assert main(["budget", "--config", str(path)]) == 0
    text = capsys.readouterr().out
    assert "1 rounds by toy, 1 Gaussian releases" in text
    assert "joint, toy" in text


def test_it_resumes_with_what_it_had_released(config, tmp_path):
    first = TrainClassifier(config)
    first.train()
    (path,) = tmp_path.rglob("model.pt")
    saved = load_checkpoint(path, "cpu")["selection"]
    config.ckpt.is_load = True
    second = TrainClassifier(config)
    second.train()
    assert np.array_equal(second.progress.source.selections.selector.counts, saved["counts"].numpy())
    assert merge(second.ledger.events(TRAINING_DATA, "selection")) == (gaussian(first.plan.selection_noise, 1),)


def test_the_docs_table_shows_it(toy):
    rows = {row["`dss_args.mechanism`"]: row for row in mechanism_table()}
    assert rows["`toy`"]["what it costs"] == "one noisy count of labels"
    assert rows["`toy`"]["its keys"] == "`colour`"


@pytest.mark.parametrize("page", ["docs/choosing.md", "docs/privacy.md"])
def test_the_tables_in_the_docs_name_every_mechanism(page):
    text = (REPOSITORY / page).read_text()
    for kind in registered_mechanisms():
        assert f"`{kind.name}`" in text


# --- keys -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "key", "users"),
    [
        ({"privacy": {"selection_composition": "paper"}}, "privacy.selection_composition", "exponential"),
        ({"privacy": {"selection_clip": 2.0}}, "privacy.selection_clip", "exponential"),
        ({"privacy": {"labels_public": True}}, "privacy.labels_public", "exponential"),
        ({"dss_args": {"mechanism": "threshold", "concentration": 2.0}}, "dss_args.concentration", "match"),
        ({"dss_args": {"mechanism": "top_k", "bins": 64}}, "dss_args.bins", "match, threshold"),
        ({"dss_args": {"greedy_rounds": 2}}, "dss_args.greedy_rounds", "threshold"),
    ],
)
def test_a_key_that_the_mechanism_does_not_use_is_an_error(make_config, changes, key, users):
    with pytest.raises(ConfigError, match=f"does not use it.*{users}") as caught:
        resolve(make_config("GLISTERDP", **changes))
    assert caught.value.key == key


def test_cords_own_keys_do_not_hinder_a_swap_and_are_named(make_config, tmp_path, capsys):
    cfg = make_config("GLISTERDP", dss_args={"greedy": "RGreedy", "r": 15, "lam": 0.5, "linear_layer": False})
    assert resolve(cfg).unused == ("dss_args.greedy", "dss_args.r", "dss_args.lam", "dss_args.linear_layer")
    run_experiment(cfg, tmp_path / "out", progress=False)
    printed = capsys.readouterr().out
    assert printed.count("mechanism 'align' does not use: dss_args.greedy, dss_args.r, dss_args.lam") == 1
    assert "had no effect: dss_args.greedy, dss_args.r, dss_args.lam" in (tmp_path / "out" / "privacy.md").read_text()


def test_a_strategy_that_does_not_select_says_which_keys_it_does_not_use(make_config):
    cfg = make_config("RandomDP", dss_args={"mechanism": "match", "bins": 64}, privacy={"split": 0.5})
    assert set(resolve(cfg).unused) == {"dss_args.mechanism", "dss_args.bins", "privacy.split"}


# --- careless mechanisms ------------------------------------------------------------------------------------------


def careless(**members):
    """A toy whose selector or declaration is wrong."""
    selector = type("Careless", (ToySelector,), {k: v for k, v in members.items() if k in ("select", "state")})
    body = {k: v for k, v in members.items() if k not in ("select", "state")}
    body["build"] = lambda self, context: selector(context)
    return register_mechanism(dataclass(frozen=True, kw_only=True)(type("CarelessToy", (Toy,), body)), force=True)


def twice(self, weights, releases):
    ToySelector.select(self, weights, releases)
    return ToySelector.select(self, weights, releases)


def undeclared(self, weights, releases):
    releases.gaussian("scores", np.zeros(3))


def not_finite(self, weights, releases):
    releases.gaussian("labels", np.array([1.0, np.inf]))


def picks_of_a_gaussian(self, weights, releases):
    releases.picks("labels", np.zeros(10), 3)


def above_one(self, weights, releases):
    from cords_dp import Pool

    return Pool(np.arange(10), chances=np.full(10, 2.0))


def repeated(self, weights, releases):
    from cords_dp import Pool

    return Pool(np.zeros(10, dtype=int))


def batches(self, weights, releases):
    return iter([])


def outside(self, weights, releases):
    from cords_dp import Pool

    return Pool(np.array([10**6]))


@pytest.mark.parametrize(
    ("select", "words"),
    [
        (twice, "declared 1 times"), (undeclared, "was not declared"), (not_finite, "NaN or infinity"),
        (picks_of_a_gaussian, "not declared as picks"), (above_one, "must lie in"), (repeated, "distinct"),
        (batches, "hands over a cords_dp.Pool"), (outside, "outside the training set"),
    ],
)  # fmt: skip
def test_careless_selectors_are_refused_and_no_model_is_written(config, tmp_path, select, words):
    careless(select=select)
    with pytest.raises(MechanismError, match=words):
        run_experiment(config, tmp_path / "out", progress=False)
    assert not (tmp_path / "out" / "model.pt").exists()


def free(self, noise, privacy, sizes):
    from cords_dp import Release

    return (Release("labels", TRAINING_DATA, None, 1.0, "for nothing"),)


def on_v(self, noise, privacy, sizes):
    from cords_dp import Release

    return (*Toy.releases(self, noise, privacy, sizes), Release("v", "V", gaussian(1.0), 1.0, "not said"))


@pytest.mark.parametrize(("releases", "words"), [(free, "at no charge"), (on_v, "do not agree")])
def test_careless_declarations_are_refused_before_data_is_read(config, monkeypatch, releases, words):
    monkeypatch.setattr("cords_dp.datasets.build._digits", lambda *_: pytest.fail("data was read"))
    careless(releases=releases)
    with pytest.raises(MechanismError, match=words):
        TrainClassifier(config).train()


def test_a_release_that_is_never_drawn_still_counts_as_planned(config):
    """Drawing less than declared wastes budget; it never lowers what the statement says."""
    from cords_dp import Pool

    careless(select=lambda self, weights, releases: Pool(np.arange(50)), state=lambda self: {})
    trainer = TrainClassifier(config)
    trainer.train()
    assert trainer.ledger.events(TRAINING_DATA, "selection") == []
    assert trainer.plan.cost().epsilon > trainer.spent().epsilon


@pytest.mark.parametrize("wrong", [object, int, type("NoDataclass", (), {})])
def test_only_mechanisms_can_be_registered(wrong):
    with pytest.raises(MechanismError, match="subclass"):
        register_mechanism(wrong)


def test_names_are_not_overwritten(toy):
    with pytest.raises(MechanismError, match="force=True"):
        register_mechanism(Toy)
    register_mechanism(Toy, force=True)


# --- no list of names ---------------------------------------------------------------------------------------------


def test_no_file_compares_a_mechanism_by_name():
    """Names stand in the mechanism's own file, and as values in configs; nothing branches on them elsewhere."""
    names = "|".join(kind.name for kind in registered_mechanisms())
    branch = re.compile(rf"(==|!=|\bin\b|\bcase\b)\s*[\[({{]?\s*[\"']({names})[\"']|[\"']({names})[\"']\s*(==|!=)")
    for path in (REPOSITORY / "cords_dp").rglob("*.py"):
        if path.parent.name == "selection" and path.stem in {kind.name for kind in registered_mechanisms()}:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not branch.search(line), f"{path.name}:{number}: {line.strip()}"


def test_errors_are_ours(make_config):
    with pytest.raises(CordsDPError, match="unknown; known are 'align'"):
        resolve(make_config("GLISTERDP", dss_args={"mechanism": "laplace"}))
