"""Mechanisms are objects: a fifth one works everywhere, and careless ones cannot spend more than they declare."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
import yaml
from conftest import REPOSITORY
from toy_mechanism import Toy, ToySelector

from cords_dp import Mechanism, Pool, Release
from cords_dp.accounting import (
    TRAINING_DATA,
    Bound,
    Entry,
    ExponentialPicks,
    GumbelFreeze,
    Ledger,
    PoissonGaussian,
    gaussian,
)
from cords_dp.accounting.events import merge
from cords_dp.cli import main
from cords_dp.config import PrivacySettings, SubsetSettings, to_plain
from cords_dp.errors import ConfigError, CordsDPError, MechanismError
from cords_dp.noise.generators import secure_generator
from cords_dp.planning import build_plan, mechanism_table, register_mechanism, registered_mechanisms
from cords_dp.planning.mechanism import unregister_mechanism
from cords_dp.planning.schedule import EpochPlan, subset_schedule
from cords_dp.runs.run import run_experiment
from cords_dp.runs.validate import find_problems
from cords_dp.selection.releases import Releases
from cords_dp.training.checkpoint import load_checkpoint
from cords_dp.training.resolve import resolve
from cords_dp.training.step import PrivateEngine
from cords_dp.training.trainer import TrainClassifier


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
    assert np.array_equal(second.session.source.selections.selector.counts, saved["counts"].numpy())
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
        ({"dss_args": {"mechanism": "top_k", "bins": 64}}, "dss_args.bins", "threshold, match"),
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
    run_experiment(cfg, tmp_path / "out")
    printed = capsys.readouterr().out
    assert printed.count("mechanism 'align' does not use: dss_args.greedy, dss_args.r, dss_args.lam") == 1
    assert "had no effect: dss_args.greedy, dss_args.r, dss_args.lam" in (tmp_path / "out" / "privacy.md").read_text()


@pytest.mark.parametrize("strategy", ["FullDP", "RandomDP"])
@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("dss_args", "mechanism", "match"), ("dss_args", "bins", 64), ("privacy", "split", 0.5)],
)
def test_a_key_about_selecting_is_an_error_for_a_strategy_that_does_not_select(
    make_config, strategy, section, key, value
):
    with pytest.raises(ConfigError, match=f"{strategy} selects nothing.*GLISTERDP") as caught:
        resolve(make_config(strategy, **{section: {key: value}}))
    assert caught.value.key == f"{section}.{key}"
    resolve(make_config(strategy, **{section: {key: None}}), plan=False)  # the same as leaving it out


def test_a_fraction_that_full_dp_does_not_take_is_warned_about_on_screen_and_stated(make_config, tmp_path, capsys):
    """CORDS' configs say 0.1, and a swap by one word must work; but whoever writes 0.3 may believe in it."""
    cfg = make_config("FullDP", dss_args={"fraction": 0.3, "select_every": 2, "kappa": 0})
    result = run_experiment(cfg, tmp_path / "out", progress=False)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "WARNING" in line]
    assert "dss_args.fraction = 0.3 has no effect: FullDP trains on all records" in line
    assert "had no effect: dss_args.fraction" in (tmp_path / "out" / "privacy.md").read_text()
    assert result.fraction == 1.0
    assert find_problems(cfg).valid
    assert any("dss_args.fraction" in note for note in find_problems(cfg).notes)
    for given in (1.0, None):
        assert not resolve(make_config("FullDP", dss_args={"fraction": given}), plan=False).notes


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
    monkeypatch.setattr("cords_dp.data.build._digits", lambda *_: pytest.fail("data was read"))
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


# --- what a registered mechanism cannot be wrong about --------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BranchedFirst(Mechanism):
    """One branched epoch, then plain ones. The second branch draws a tenth, and so has little noise."""

    name: ClassVar[str] = "branched first"
    summary: ClassVar[str] = ""
    use_case: ClassVar[str] = ""
    secret_pool: ClassVar[bool] = True

    @property
    def reads_validation(self):
        return False

    def concentrations(self, sizes):
        return (1.0, 0.1)

    def schedule(self, sizes, subset, epochs):
        rate = sizes.batch_size / sizes.n
        plain = subset_schedule(sizes, subset, epochs, rate=rate, selects=lambda epoch, first: epoch == first)
        return tuple(replace(epoch, branched=number == 0) for number, epoch in enumerate(plain))

    def releases(self, noise, privacy, sizes):
        return (Release("labels", TRAINING_DATA, gaussian(noise.on_training), 1.0, "counts"),)

    def build(self, context):
        return SecondBranch(context)


class SecondBranch:
    def __init__(self, context):
        self.context = context

    def select(self, weights, releases):
        self.counts = releases.gaussian("labels", np.zeros(10))
        return self.restore({})

    def restore(self, state):
        return Pool(np.arange(len(self.context.training)), branch=1)

    def state(self):
        return {"counts": torch.from_numpy(self.counts)}


def test_plain_epochs_after_branched_ones_have_the_plan_s_noise(make_config, monkeypatch):
    """They kept the branch's: 2.99 was claimed for 15.06."""
    used, real = [], PrivateEngine.step
    monkeypatch.setattr(PrivateEngine, "step", lambda self, *batch: (
        used.append(self.optimizer.noise_multiplier), real(self, *batch)))  # fmt: skip
    register_mechanism(BranchedFirst)
    try:
        trainer = TrainClassifier(make_config("GLISTERDP", dss_args={"mechanism": "branched first"}))
        trainer.train()
    finally:
        unregister_mechanism("branched first")
    plan = trainer.plan
    noise = {True: plan.branches[1].sigma, False: plan.sigma}
    expected = [noise[epoch.branched] for epoch in plan.shape.epochs for _ in range(epoch.steps)]
    assert plan.branches[1].sigma < plan.sigma
    assert used == expected


@pytest.mark.parametrize("event", [GumbelFreeze(0.01), ExponentialPicks(0.01), gaussian(100.0)])
@pytest.mark.parametrize("own_score", [True, False])
def test_picks_are_drawn_with_the_epsilon0_of_their_event(event, own_score):
    """Declared apart from it, a pick of ε₀ = 60 was charged as one of 0.01."""
    release = Release("picks", TRAINING_DATA, event, 1.0, "", own_score=own_score)
    expected = {"gumbel_freeze": 0.01 if own_score else None, "exponential_picks": 0.02 if own_score else 0.01}
    assert release.epsilon0 == expected.get(event.kind)
    ledger = Ledger(allowance=(Entry(TRAINING_DATA, "selection", event),))
    releases = Releases((release,), charge=ledger.charge, generators={TRAINING_DATA: secure_generator()})
    if release.epsilon0 is None:
        with pytest.raises(MechanismError, match="no epsilon0"):
            releases.picks("picks", np.zeros(5), 1)
        assert not ledger.entries


def test_a_release_of_a_kind_of_one_s_own_has_nothing_but_what_it_declares():
    """A subclass with another ε₀ picked one record 300 times of 300 at a charge of 0.026."""

    class Stronger(Release):
        epsilon0 = 60.0

    release = Stronger("picks", TRAINING_DATA, GumbelFreeze(0.01), 1.0, "", own_score=True)
    ledger = Ledger(allowance=(Entry(TRAINING_DATA, "selection", release.event),))
    releases = Releases((release,), charge=ledger.charge, generators={TRAINING_DATA: secure_generator(bytes(16))})
    scores = np.zeros(1000)
    scores[7] = 1.0
    assert 7 not in releases.picks("picks", scores, 1)

    @dataclass(frozen=True)
    class Quiet(PoissonGaussian):
        pass

    loud = Release("sum", TRAINING_DATA, Quiet(100.0, 1.0, 1), 1.0, "")
    with pytest.raises(MechanismError, match="no Gaussian release"):
        Releases((loud,), charge=ledger.charge, generators={}).gaussian("sum", np.zeros(3))


def test_an_epoch_of_a_kind_of_one_s_own_is_charged_as_it_is_drawn():
    class Changing(EpochPlan):
        """Could answer with another rate each time it is asked."""

    @dataclass(frozen=True, kw_only=True)
    class Fickle(Toy):
        def schedule(self, sizes, subset, epochs):
            return tuple(Changing(e.pool, e.steps, e.rate, e.selects) for e in super().schedule(sizes, subset, epochs))

    privacy, subset = PrivacySettings(epsilon=3.0, delta=1e-5, accountant="rdp"), SubsetSettings(fraction=0.5)
    plan = build_plan("GLISTERDP", privacy, subset, Fickle(), epochs=2, batch_size=100, n=1000, n_validation=100)
    assert {type(epoch) for epoch in plan.shape.epochs} == {EpochPlan}


def test_a_mechanism_s_own_composition_cannot_claim_less_than_the_accountants_find():
    @dataclass(frozen=True, kw_only=True)
    class Modest(Toy):
        def bound(self, events, delta, privacy):
            return Bound(1e-6, delta, "a word")

    privacy, subset = PrivacySettings(epsilon=3.0, delta=1e-5, accountant="rdp"), SubsetSettings(fraction=0.5)
    honest, modest = (
        build_plan("GLISTERDP", privacy, subset, kind(), epochs=2, batch_size=100, n=1000, n_validation=100)
        for kind in (Toy, Modest)
    )
    assert modest.cost().phases["selection"].epsilon == pytest.approx(honest.cost().phases["selection"].epsilon)
    assert modest.cost().phases["selection"].accountant != "a word"
