"""A private test set: one noisy release at the end of a run, charged before it is drawn; nothing else is told of it."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import torch
from builders import data_of
from scipy import stats

from cords_dp.accounting import TEST_DATA, Account, Ledger, gaussian
from cords_dp.config.presets import config_for, merge_into
from cords_dp.data.record_set import Splits
from cords_dp.errors import AccountingError, BudgetExceededError, ConfigError
from cords_dp.evaluation.released import vector_size
from cords_dp.evaluation.threshold import choose_threshold, released_scores
from cords_dp.runs.run import run_and_hand_over, run_experiment
from cords_dp.selection import releases
from cords_dp.selection.session import SelectionArchive
from cords_dp.training import private_test
from cords_dp.training.private_test import released_test, test_sum
from cords_dp.training.resolve import resolve
from cords_dp.training.trainer import TrainClassifier
from cords_dp.verify import verify

PRIVATE = {"test": "private"}
EPSILON = 3.0
test_sum.__test__ = False  # pytest would take it for a test


def records(n: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4)).astype(np.float32)
    return x, np.where(x @ [1, -1, 0.5, 0] + rng.normal(size=n) > 0.5, "ill", "well")


def config_of(tmp_path, labels: np.ndarray | None = None, **changes) -> dict:
    x, y = records()
    np.savez(tmp_path / "records.npz", x=x, y=y if labels is None else labels)
    config = config_for(
        "arrays",
        "FullDP",
        dataset={"path": str(tmp_path / "records.npz"), "classes": ["well", "ill"], "datadir": str(tmp_path)},
        train_args={"num_epochs": 3, "print_every": 1, "seed": 0, "device": "cpu"},
        privacy={"epsilon": EPSILON, "accountant": "rdp"},
        ckpt={"is_save": True},
    )
    merge_into(config, changes)
    return config


# --- what is released, and its law -----------------------------------------------------------------------------------


def test_the_release_is_the_sum_with_noise_of_the_charged_event(train):
    trainer = train("FullDP", dataset=PRIVATE, train_args={"seed": None})
    (event,) = trainer.ledger.events(TEST_DATA)
    assert event == gaussian(trainer.plan.sigma_test)
    noise = trainer.session.tested.vector - test_sum(trainer.session)
    assert len(noise) == vector_size(10) > 500
    assert stats.kstest(noise / event.sigma, "norm").pvalue > 1e-4


def test_it_is_charged_on_disk_before_it_is_drawn(train, monkeypatch):
    seen = []
    original = releases.gaussian_release

    def spy(total, **options):
        if len(total) == vector_size(10):
            journal = trainer.ledger.path.read_text()
            seen.append('"dataset":"T"' in journal.replace(" ", ""))
        return original(total, **options)

    monkeypatch.setattr(releases, "gaussian_release", spy)
    monkeypatch.setattr(TrainClassifier, "_test_privately", lambda self: None)
    trainer = train("FullDP", dataset=PRIVATE)
    path = trainer.ledger.path
    trainer.session.ledger = Ledger.load(path, trainer.plan.entries())
    released_test(trainer.session)
    trainer.session.close()
    assert seen == [True]


def test_the_plan_is_the_largest_of_the_three_sets(train):
    trainer = train("GLISTERDP", dataset=PRIVATE)
    cost = trainer.spent()
    assert set(cost.of_sets) == {"D", "V", "T"}
    assert cost.epsilon == max(bound.epsilon for bound in cost.of_sets.values()) <= EPSILON
    assert 0.99 * EPSILON < cost.test_data.epsilon <= EPSILON


def test_delta_stays_below_one_over_the_test_records(make_config):
    run = resolve(make_config("FullDP", dataset=PRIVATE))
    assert run.plan(1000, 0, 50_000).delta == pytest.approx(0.1 / 50_000)
    told = resolve(make_config("FullDP", dataset=PRIVATE, privacy={"delta": 1e-4}))
    assert told.plan(1000, 0, 5_000).delta == 1e-4
    with pytest.raises(ConfigError, match="below 1/n"):
        told.plan(1000, 0, 50_000)


def test_plans_of_public_test_sets_are_as_they_were(make_config):
    plan = resolve(make_config("FullDP")).plan(1437, 0, 360)
    assert plan.sigma_test is None
    assert "sigma_test" not in plan.facts()
    assert "n_test" not in plan.facts()["sizes"]
    private = resolve(make_config("FullDP", dataset=PRIVATE)).plan(1437, 0, 360)
    assert private.fingerprint != plan.fingerprint
    assert private.sigma == plan.sigma


def test_a_secret_subset_amplifies_nothing_of_the_test_set(make_config):
    subset = {"secret_subset": True}
    plan = resolve(make_config("RandomDP", dataset=PRIVATE, dss_args=subset)).plan(1437, 0, 360)
    assert plan.cost().test_data.epsilon > 0.99 * EPSILON
    by_set = {row["dataset"]: row["inclusion"] for row in _events(plan)}
    assert by_set == {"D": pytest.approx(plan.inclusion), "T": 1.0}


def _events(plan):
    from cords_dp.planning.guarantee import events_of

    return events_of(plan)["datasets"]


# --- neighbours: nothing but the release depends on the test set -----------------------------------------------------


def test_without_one_test_record_only_the_release_changes_and_by_one_at_most(tmp_path):
    """The same noise with and without a record of T: weights, rows and lines are the same to the bit."""
    found = []
    for nulled in (False, True):
        labels = records()[1].astype("U10")
        if nulled:
            labels[_a_test_row(tmp_path)] = "nobody"
        config = config_of(tmp_path, labels, privacy={"reproducible_noise": True})
        trainer, _ = run_and_hand_over(config, tmp_path / "run", progress=False)
        text = {name: (tmp_path / "run" / name).read_text() for name in ("metrics.csv", "privacy.md")}
        rows = [row.rpartition(",")[0] for row in text["metrics.csv"].splitlines()[:-1]]
        found.append((trainer, rows, {k: v.clone() for k, v in trainer.model.state_dict().items()}))
    (one, rows, weights), (other, other_rows, other_weights) = found
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)
    assert len(rows) == len(other_rows)  # which metrics there are follows from the release: noise may hide one
    assert one.plan.fingerprint == other.plan.fingerprint
    distance = np.linalg.norm(one.session.tested.vector - other.session.tested.vector)
    assert 0.1 < distance <= 1 + 1e-9


def _a_test_row(tmp_path) -> int:
    from cords_dp.data.build import build_dataset
    from cords_dp.noise.generators import Streams

    config = resolve(config_of(tmp_path)).config
    return int(build_dataset(config, Streams(0).numpy("data")).test.rows[0])


def test_test_records_without_a_label_count_and_contribute_nothing(tmp_path):
    labels = records()[1].astype("U10")
    labels[::3] = "nobody"
    trainer, _ = run_and_hand_over(config_of(tmp_path, labels), tmp_path / "run", progress=False)
    assert trainer.plan.shape.n_test == 120  # a fifth of all rows, whatever their labels say
    share = test_sum(trainer.session)[:4].sum() * math.sqrt(2)
    assert 60 <= round(share) <= 95


@pytest.mark.parametrize("owned", [False, True])
def test_a_table_keeps_its_test_records_without_a_label(tmp_path, owned):
    """|T| is public: it must not follow from labels, or for a regression from targets that are no numbers."""
    from cords_dp.data.sources.base import find_source

    sizes = set()
    schema = {"target": {"name": "y", "classes": ["a", "b"]}, "columns": {"x": {"range": [0, 1]}}, "ignore": ["who"]}
    for labels in (["a", "b"] * 100, ["a", "?"] * 100):
        rows = [f"0.5,{label},{place}" for place, label in enumerate(labels)]
        (tmp_path / "t.csv").write_text("\n".join(["x,y,who", *rows]) + "\n")
        section = {
            "path": str(tmp_path / "t.csv"),
            "schema": schema,
            "datadir": str(tmp_path),
            "cache": False,
            **PRIVATE,
        }
        section |= {"owner": "who"} if owned else {}
        splits = find_source("table").build(section, np.random.default_rng(0))
        sizes.add((len(splits.test), splits.test.units))
        public = find_source("table").build({**section, "test": "public"}, np.random.default_rng(0)).test
        assert len(public) == (len(splits.test) if "?" not in labels else int((splits.test.targets >= 0).sum()))
    assert sizes == {(40, 40)}


def test_a_published_source_is_public_unless_told():
    from cords_dp.config.presets import config_for

    adult = config_for("uci_adult", "FullDP", privacy={"epsilon": 1.0})
    assert resolve(adult, plan=False).test == "public"
    merge_into(adult, {"dataset": PRIVATE})
    assert resolve(adult, plan=False).test == "private"


# --- nothing exact is told -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("private")
    trainer, result = run_and_hand_over(config_of(tmp_path), tmp_path / "run", progress=False)
    return trainer, result, tmp_path / "run"


def test_no_file_and_no_line_has_an_exact_metric(run):
    trainer, result, folder = run
    session = trainer.session
    exact = test_sum(session)
    counts = exact[:4] * math.sqrt(2)
    accuracy = (counts[0] + counts[3]) / counts.sum()
    text = "".join(path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file())
    assert "tst_" not in text.replace("'tst_loss', 'tst_acc'", "").replace("- tst_loss\n  - tst_acc", "").replace(
        "tst_loss, tst_acc", ""
    )
    assert not re.search(r"Test (Loss|Accuracy)", text)
    assert f"{accuracy:.6f}"[:7] not in text
    assert "test records" not in text  # as about.json counts those of a public test set
    assert result.accuracy == trainer.session.tested.metrics()["accuracy"]["value"] != accuracy


def test_epochs_and_checkpoints_know_nothing_of_it(run):
    trainer, _, folder = run
    assert all("tst_acc" not in row for row in trainer.history.rows[:-1])
    state = torch.load(next(folder.rglob("checkpoint.pt"), None) or _checkpoint(folder), weights_only=False)
    assert not [name for name in state["metrics"] if name.startswith(("tst", "best"))]


def _checkpoint(folder):
    return max(folder.rglob("model.pt"), key=lambda path: len(path.parts))


def test_the_statement_names_it_and_makes_no_exception(run):
    _, _, folder = run
    report = json.loads((folder / "privacy.json").read_text())
    assert "except the times shown" in report["statement"]
    assert "of the test set" in report["statement"]
    assert "every single record of the test set T (120 records)" in report["protects"]
    assert not [words for words in report["does_not_protect"] if "test set" in words]
    assert report["epsilon_test_data"] <= EPSILON
    assert verify(folder)["verified"], verify(folder)["verdict"]


def test_results_have_intervals_and_a_threshold(run):
    _, result, folder = run
    measured = json.loads((folder / "result.json").read_text())["metrics"]
    assert measured["accuracy"]["low"] < measured["accuracy"]["value"] < measured["accuracy"]["high"]
    assert [row["class"] for row in measured["by_class"]] == ["well", "ill"]
    chosen = choose_threshold(released_scores(folder), recall=0.7)
    assert 0 <= chosen.threshold < 1
    assert chosen.recall_high - chosen.recall_low > 0.1  # the noise of the cells is in it
    assert "with noise" in result.text()


def test_exact_numbers_in_a_folder_are_not_verified(run, tmp_path):
    import shutil

    folder = shutil.copytree(run[2], tmp_path / "copy")
    with next(folder.rglob("*.log")).open("a") as log:
        log.write("Epoch: 3 , Test Accuracy: 0.9\n")
    assert "exact metrics of private records" in verify(folder)["verdict"]


def test_an_unread_test_set_is_neither_measured_nor_charged(tmp_path):
    config = config_of(tmp_path, dataset={"test": "unread"})
    trainer, result = run_and_hand_over(config, tmp_path / "run", progress=False)
    assert not trainer.ledger.events(TEST_DATA)
    assert result.metrics == {}
    assert math.isnan(result.accuracy)
    assert "test accuracy" not in result.text()


def test_a_declaration_shows_exact_metrics(tmp_path):
    trainer, result = run_and_hand_over(config_of(tmp_path, dataset={"test": "public"}), tmp_path / "run")
    assert trainer.plan.sigma_test is None
    assert isinstance(result.metrics["accuracy"], float)
    report = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert "records of the test set: their exact metrics are shown" in report["does_not_protect"]


def test_a_run_without_privacy_shows_exact_metrics(tmp_path):
    config = config_of(tmp_path, dataset=PRIVATE, privacy={"epsilon": None})
    assert resolve(config).test == "public"


def test_a_search_by_reports_is_refused(tmp_path):
    config = {**config_of(tmp_path), "report_tune": True}
    with pytest.raises(ConfigError, match="report_tune"):
        resolve(config)


# --- once ------------------------------------------------------------------------------------------------------------


def resumed(config, folder):
    merge_into(config, {"ckpt": {"is_load": True}})
    return run_and_hand_over(config, folder, progress=False)[0]


def test_a_resumed_run_has_the_release_that_it_made(tmp_path):
    config = config_of(tmp_path)
    first, _ = run_and_hand_over(config, tmp_path / "run", progress=False)
    again = resumed(config, tmp_path / "run")
    assert np.array_equal(first.session.tested.vector, again.session.tested.vector)
    assert [event.count for event in again.ledger.events(TEST_DATA)] == [1]


def test_another_model_gets_no_second_release(tmp_path):
    trainer, _ = run_and_hand_over(config_of(tmp_path), tmp_path / "run", progress=False)
    session = trainer.session
    session.ledger = Ledger.load(session.ledger.path, trainer.plan.entries())
    with torch.no_grad():
        next(iter(session.released.parameters())).add_(1.0)
    with pytest.raises(AccountingError, match="another model"):
        released_test(session)
    session.close()


def test_a_kill_between_charge_and_record_costs_no_second_charge_and_gains_none(tmp_path, monkeypatch):
    config = config_of(tmp_path)
    drawn = []

    def killed(self, name, state):
        drawn.append(state["released"])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SelectionArchive, "keep", killed)
        with pytest.raises(KeyboardInterrupt):
            run_and_hand_over(config, tmp_path / "run", progress=False)
    again = resumed(config, tmp_path / "run")
    assert [event.count for event in again.ledger.events(TEST_DATA)] == [1]
    assert not np.array_equal(drawn[0].numpy(), again.session.tested.vector)  # nobody has seen the first


def test_runs_on_the_same_test_records_add_up(tmp_path):
    path = tmp_path / "total.account"
    Account.open(path, epsilon=4.5, delta=2e-5)
    config = config_of(tmp_path, privacy={"account": str(path)})
    run_experiment(config, tmp_path / "one", progress=False)
    (held,) = Account.read(path).holdings().values()
    assert TEST_DATA in {entry.dataset for entry in held.entries}
    with pytest.raises(BudgetExceededError):
        run_experiment(config, tmp_path / "two", progress=False)


# --- who and what ----------------------------------------------------------------------------------------------------


def test_owners_of_test_records_count_once(tmp_path):
    names = np.repeat(np.arange(150), 4).astype(str)
    np.save(tmp_path / "owners.npy", names)
    config = config_of(tmp_path, dataset={"owner": str(tmp_path / "owners.npy")})
    trainer, _ = run_and_hand_over(config, tmp_path / "run", progress=False)
    test = trainer.session.data.test
    assert len(test) == 4 * trainer.plan.shape.n_test == 4 * 30
    assert test_sum(trainer.session)[:4].sum() == pytest.approx(30 / math.sqrt(2))
    whole = test_sum(trainer.session)
    trainer.session.data = trainer.session.data._replace(test=test.at(np.flatnonzero(test.owners.codes != 3)))
    assert np.linalg.norm(whole - test_sum(trainer.session)) <= 1 + 1e-9


def test_handed_over_sets_are_public_unless_told(train):
    data = Splits(data_of(300, 0), data_of(80, 1), data_of(90, 2), 3)
    given = dict(zip(("trainset", "validset", "testset", "num_cls"), data, strict=True))
    custom = {"name": "custom", "type": None}
    model = {"architecture": "LinearHead", "numclasses": 3}
    public = train("FullDP", dataset=custom, model=model, data=given)
    assert public.session.tested is None
    assert len(public.history.column("tst_acc")) == 2
    private = train("FullDP", dataset={**custom, **PRIVATE}, model=model, data=given)
    assert private.history.column("tst_acc") == [private.session.tested.metrics()["accuracy"]["value"]]
    assert private.plan.shape.n_test == 90


def test_owners_of_handed_over_test_records_are_not_known(make_config):
    data = Splits(data_of(300, 0), data_of(80, 1), data_of(90, 2), 3)
    given = dict(zip(("trainset", "validset", "testset", "num_cls"), data, strict=True))
    custom, model = {"name": "custom", "type": None, **PRIVATE}, {"architecture": "LinearHead", "numclasses": 3}
    config = make_config("FullDP", dataset=custom, model=model, dataloader={"batch_size": 32})
    owners = (np.arange(300) // 3, 1000 + np.arange(80) // 2)
    with pytest.raises(ConfigError, match=r"dataset\.test"):
        TrainClassifier(config).train(**given, owners=owners)


def test_a_regression_of_a_table_is_released_in_its_unit(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=900)
    lines = [f"{a},{np.clip(50 + 10 * a, 0, 100)}" for a in x]
    (tmp_path / "t.csv").write_text("\n".join(["a,cost", *lines]) + "\n")
    schema = {"target": {"name": "cost", "range": [0, 100]}, "columns": {"a": {"range": [-4, 4]}}}
    config = config_for(
        "table",
        "FullDP",
        dataset={"path": str(tmp_path / "t.csv"), "schema": schema, "datadir": str(tmp_path)},
        loss={"type": "MeanSquaredLoss"},
        train_args={"num_epochs": 10, "seed": 0, "device": "cpu"},
        privacy={"epsilon": 50.0, "accountant": "rdp"},
    )
    trainer, result = run_and_hand_over(config, tmp_path / "run", progress=False)
    model, test = trainer.session.released, trainer.session.data.test
    given, true = (
        trainer.session.in_unit(part.detach().numpy().ravel())
        for part in (model(test.batch(np.arange(len(test)))[0]), test.batch(np.arange(len(test)))[1])
    )
    mae = result.metrics["mae"]
    reach = 4 * (mae["high"] - mae["value"])  # eight deviations of its noise; another unit would be a hundred away
    assert abs(mae["value"] - np.abs(given - true).mean()) <= reach
    assert result.rmse == result.metrics["rmse"]["value"]


def test_the_release_module_reads_the_test_set_and_nothing_else(run, monkeypatch):
    """Every batch that the evaluation looks at is one of T's."""
    trainer = run[0]
    seen = []
    original = private_test.evaluation_batches
    monkeypatch.setattr(
        private_test, "evaluation_batches", lambda data, *a, **k: seen.append(data) or original(data, *a, **k)
    )
    test_sum(trainer.session)
    assert seen == [trainer.session.data.test]
