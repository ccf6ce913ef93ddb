"""``scaling="private"``: its sensitivity, its law, its place in plan, ledger and statement, and resuming."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from cords_dp.accounting import TRAINING_DATA, Ledger, epsilon_bound
from cords_dp.config import config_for
from cords_dp.data.owners import Owners
from cords_dp.data.record_set import RecordSet
from cords_dp.data.sources.base import find_source
from cords_dp.data.sources.table import scaling
from cords_dp.data.sources.table.encoding import NO_CLASS, Encoding
from cords_dp.data.sources.table.schema import read_schema
from cords_dp.data.sources.table.store import TableStore
from cords_dp.errors import BudgetExceededError, ConfigError
from cords_dp.noise.generators import secure_generator
from cords_dp.planning.schedule import PREPARATION
from cords_dp.planning.statement import privacy_markdown, privacy_report
from cords_dp.training import released_once as training_preparation
from cords_dp.training.released_once import released_fit
from cords_dp.training.resolve import resolve
from cords_dp.training.trainer import TrainClassifier

SCHEMA = {
    "target": {"name": "rich", "classes": ["no", "yes"]},
    "columns": {"age": {"range": [0, 100]}, "wage": {"range": [0, 1000]}, "town": {"categories": ["A", "B"]}},
}
ENCODING = Encoding(read_schema(SCHEMA))


def dataset(numbers, labels, rows=None):
    stored = np.zeros(len(labels), dtype=ENCODING.row_type)
    stored["numbers"], stored["label"] = numbers, labels
    return RecordSet(TableStore(stored, ENCODING), rows)


# --- the sum --------------------------------------------------------------------------------------------------------

NUMBERS = st.floats(-3, 3, width=32) | st.sampled_from([np.nan, np.inf, -np.inf])


@settings(max_examples=100)
@given(NUMBERS, NUMBERS, st.sampled_from([0, 1, NO_CLASS]))
def test_one_record_moves_the_sum_by_no_more_than_the_sensitivity(age, wage, label):
    """Also one whose stored numbers are out of range, as a damaged copy might hold."""
    (part,) = scaling.parts(dataset([[age, wage]], [label]), np.array([0]))
    assert np.linalg.norm(part) <= scaling.sensitivity(2) * (1 + 1e-12)
    if label == NO_CLASS:
        assert not part.any()


def test_an_owner_moves_the_sum_by_no_more_than_a_record_did():
    """All records of owner 1 are at the ends of the range: added up they would move it five times as far."""
    codes = np.array([0, 1, 1, 1, 2, 1, 1, 2])
    records = dataset(np.where(codes[:, None] == 1, 1.0, 0.3) * np.ones((8, 2)), [0, 1] * 4)
    records.owners = Owners(codes, 3)
    whole = scaling.sums(records)
    for owner in range(3):
        moved = np.linalg.norm(whole - scaling.sums(without_owner(records, owner)))
        assert moved <= scaling.sensitivity(2) * (1 + 1e-12)
    assert np.linalg.norm(whole - scaling.sums(without_owner(records, 1))) == pytest.approx(scaling.sensitivity(2))


def without_owner(records, owner):
    return records.at(np.flatnonzero(records.owners.codes != owner))


def test_the_sensitivity_is_reached():
    (part,) = scaling.parts(dataset([[1, -1]], [1]), np.array([0]))
    assert np.linalg.norm(part) == pytest.approx(scaling.preparation(ENCODING).sensitivity)


def test_the_sum_is_over_the_records_of_d_alone(monkeypatch):
    monkeypatch.setattr(scaling, "_ROWS", 7)  # several pieces
    rng = np.random.default_rng(0)
    numbers = rng.uniform(-1, 1, (50, 2)).astype(np.float32)
    numbers[3, 0], numbers[4] = np.nan, [0.5, -0.5]
    labels = rng.integers(0, 2, 50)
    labels[4] = NO_CLASS
    rows = np.arange(0, 50, 2)
    present = np.isfinite(numbers[rows]) & (labels[rows] != NO_CLASS)[:, None]
    kept = np.where(present, numbers[rows].astype(float), 0)
    expected = np.concatenate([kept.sum(0), (kept**2).sum(0), present.sum(0)])
    np.testing.assert_allclose(scaling.sums(dataset(numbers, labels, rows)), expected, atol=1e-9)


def test_centres_and_widths_are_those_of_the_records_where_noise_is_small():
    rng = np.random.default_rng(0)
    numbers = np.clip(rng.normal([0.2, -0.5], [0.1, 0.2], (20_000, 2)), -1, 1).astype(np.float32)
    fit = scaling.fitted(scaling.sums(dataset(numbers, np.zeros(20_000))), deviation=1.0)
    np.testing.assert_allclose(fit["centres"], [0.2, -0.5], atol=0.01)
    np.testing.assert_allclose(fit["widths"], [0.2, 0.4], atol=0.02)
    again = scaling.scaled(dataset(numbers, np.zeros(20_000)), json.loads(json.dumps(fit)))
    x, _ = again.batch(np.arange(20_000))
    assert (x.norm(dim=1) <= 1 + 1e-6).all()
    assert x[:, 0].std() * 3**0.5 == pytest.approx(0.5, abs=0.03)


def test_where_noise_is_large_the_public_range_is_kept():
    fit = scaling.fitted(np.array([5.0, -80.0, 4.0, 90.0, 30.0, -20.0]), deviation=50.0)
    assert fit == {"centres": [0.0, 0.0], "widths": [1.0, 1.0]}


# --- plan, ledger and statement --------------------------------------------------------------------------------------


def people(n):
    rng = np.random.default_rng(0)
    age, wage, town = rng.normal(40, 8, n), rng.gamma(2, 50, n), rng.choice(["A", "B", "C"], n)
    rich = np.where(age / 8 + wage / 50 + (town == "A") > 7, "yes", "no")
    rows = (f"{age[i]:.1f},{wage[i]:.1f},{town[i]},{rich[i]}" for i in range(n))
    return "\n".join(["age,wage,town,rich", *rows]) + "\n"


def config(tmp_path, strategy="FullDP", *, epsilon=3.0, n=1500, dataset=None, **changes):
    path = tmp_path / "people.csv"
    if not path.is_file():
        path.write_text(people(n))
    section = dict(path=str(path), schema=SCHEMA, scaling="private", datadir=str(tmp_path / "data"), **(dataset or {}))
    cfg = config_for(
        "table",
        strategy,
        dataset=section,
        dss_args={} if strategy == "FullDP" else {"fraction": 0.4},
        train_args=dict(num_epochs=3, print_every=1, device="cpu", seed=0, results_dir=str(tmp_path / "r")),
        ckpt=dict(dir=str(tmp_path / "r"), save_every=1),
        privacy=dict(epsilon=epsilon, accountant="rdp", **changes.pop("privacy", {})),
    )
    for name, values in changes.items():
        cfg[name].update(values)
    return cfg


def trained(cfg):
    trainer = TrainClassifier(cfg)
    trainer.show_progress = False
    trainer.train()
    return trainer


def plan_of(tmp_path, strategy="FullDP", n=1050, **changes):
    return resolve(config(tmp_path, strategy, **changes), plan=False).plan(n, 150)


@pytest.mark.parametrize("strategy", ["FullDP", "RandomDP", "GLISTERDP"])
def test_the_budget_of_the_whole_run_is_kept(tmp_path, strategy):
    trainer = trained(config(tmp_path, strategy))
    plan, ledger = trainer.plan, trainer.ledger
    (event,) = ledger.events(TRAINING_DATA, PREPARATION)
    assert (event.rate, event.count, event.sigma) == (1, 1, plan.preparation_noise)
    assert event in [e.event for e in plan.entries()]
    assert epsilon_bound([event], plan.delta, "rdp").epsilon == pytest.approx(0.3, rel=0.02)  # a tenth of ε, alone
    everything = epsilon_bound(ledger.events(TRAINING_DATA), plan.delta, "pld" if plan.branches else "rdp").epsilon
    assert everything <= 3.0
    report = privacy_report(plan, ledger)
    assert report["epsilon"] <= 3.0
    assert [m["phase"] for m in report["mechanisms"]].count(PREPARATION) == 1
    assert "2.44949 (value, square and count of 2 numeric columns" in privacy_markdown(report)


@pytest.mark.parametrize("strategy", ["FullDP", "GLISTERDP"])
def test_training_has_what_the_release_leaves(tmp_path, strategy):
    run = resolve(config(tmp_path, strategy), plan=False)
    dear = replace(run, preparation=replace(run.preparation, share=0.9)).plan(1050, 150)
    cost = dear.cost()
    assert cost.phases[PREPARATION].epsilon == pytest.approx(2.7, rel=0.02)
    assert 2.9 < cost.training_data.epsilon <= 3.0
    assert dear.sigma > 1.3 * run.plan(1050, 150).sigma
    assert dear.fingerprint != run.plan(1050, 150).fingerprint


def test_basic_composition_pays_for_it_out_of_the_share_of_training(tmp_path):
    basic = {"composition": "basic", "split": 0.5}
    changes = {"dss_args": {"mechanism": "top_k", "fraction": 0.4}}
    plan = plan_of(tmp_path, "GLISTERDP", privacy=basic, **changes)
    cost = plan.cost()
    assert cost.training_data.epsilon <= 3.0
    assert cost.training_data.epsilon == pytest.approx(3.0, rel=0.02)
    assert cost.training_data.delta == pytest.approx(plan.delta)


def test_what_cannot_be_promised_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="secret_subset"):
        plan_of(tmp_path, "RandomDP", dss_args={"fraction": 0.4, "secret_subset": True})
    cfg = config(tmp_path, "Full")
    cfg["optimizer"]["lr"], cfg["dataloader"]["batch_size"] = 0.1, 32
    with pytest.raises(ConfigError, match="for private strategies"):
        resolve(cfg, plan=False)
    with pytest.raises(ConfigError, match="no numeric column without bins"):
        resolve(config(tmp_path, dataset={"binning": 4}), plan=False)


# --- the release ----------------------------------------------------------------------------------------------------


def release(plan, ledger, key, monkeypatch, numbers=((0.5, -0.5),), labels=(1,)):
    """The noisy sum of a small set."""
    seen = []
    source, data = find_source("table"), dataset(np.array(numbers), np.array(labels))
    splits = type("Parts", (), {"train": data})()
    monkeypatch.setattr(source, "fitted", lambda released, deviation: seen.append((released, deviation)) or {})
    released_fit(source, splits, plan, ledger, secure_generator(key.to_bytes(16, "big")))
    monkeypatch.undo()
    return seen[0]


def test_the_noise_has_the_law_of_the_charged_event(tmp_path, monkeypatch):
    """Released − exact over σ·Δ is standard normal, in every coordinate."""
    plan = plan_of(tmp_path)
    exact = np.array([0.5, -0.5, 0.25, 0.25, 1, 1])
    draws = []
    for key in range(400):
        ledger = Ledger(allowance=plan.entries())
        released, deviation = release(plan, ledger, key, monkeypatch)
        assert deviation == pytest.approx(plan.preparation_noise * math.sqrt(6))
        assert [e.phase for e in ledger.entries] == [PREPARATION]
        draws.append((released - exact) / (ledger.entries[0].event.sigma * math.sqrt(6)))
    for column in np.array(draws).T:
        assert stats.kstest(column, "norm").pvalue > 1e-6
    assert np.array(draws).std() == pytest.approx(1, abs=0.06)


def test_a_null_record_is_not_told_from_a_label_that_is_no_class(tmp_path, monkeypatch):
    plan = plan_of(tmp_path)
    ledgers = [Ledger(allowance=plan.entries()) for _ in range(2)]
    one, _ = release(plan, ledgers[0], 1, monkeypatch, [[0.5, -0.5]], [NO_CLASS])
    other, _ = release(plan, ledgers[1], 1, monkeypatch, [[np.nan, np.nan]], [1])
    np.testing.assert_array_equal(one, other)


def test_it_is_released_once(tmp_path, monkeypatch):
    plan, path = plan_of(tmp_path), tmp_path / "ledger.jsonl"
    ledger = Ledger(allowance=plan.entries(), path=path)
    first, _ = release(plan, ledger, 1, monkeypatch)
    again, _ = release(plan, ledger, 2, monkeypatch)
    np.testing.assert_array_equal(first, again)
    ledger.close()
    resumed = Ledger.load(path, plan.entries())
    np.testing.assert_array_equal(release(plan, resumed, 3, monkeypatch)[0], first)
    assert resumed.events(TRAINING_DATA, PREPARATION)[0].count == 1
    with pytest.raises(BudgetExceededError):
        resumed.charge(TRAINING_DATA, PREPARATION, plan.preparation_entries()[0].event)
    resumed.close()


def test_a_release_that_was_killed_is_made_anew_under_its_charge(tmp_path, monkeypatch):
    plan, path = plan_of(tmp_path), tmp_path / "ledger.jsonl"
    ledger = Ledger(allowance=plan.entries(), path=path)
    with monkeypatch.context() as patch:

        def killed(self, name, state):
            raise KeyboardInterrupt

        patch.setattr(training_preparation.SelectionArchive, "keep", killed)
        with pytest.raises(KeyboardInterrupt):
            release(plan, ledger, 1, monkeypatch)
    monkeypatch.undo()
    ledger.close()
    resumed = Ledger.load(path, plan.entries())
    release(plan, resumed, 2, monkeypatch)
    assert resumed.events(TRAINING_DATA, PREPARATION)[0].count == 1
    resumed.close()


def test_a_resumed_run_goes_on_in_the_same_units(tmp_path):
    cfg = config(tmp_path)
    first = trained(cfg)
    assert first.session.source_card()["fitted"]["widths"] != [1.0, 1.0]
    cfg["ckpt"]["is_load"] = True
    resumed = trained(cfg)
    assert resumed.session.source_card() == first.session.source_card()
    assert resumed.ledger.events(TRAINING_DATA, PREPARATION)[0].count == 1
    indices = np.arange(20)
    assert resumed.data.test.batch(indices)[0].equal(first.data.test.batch(indices)[0])
    read = find_source("table").read(json.loads(json.dumps(first.session.source_card())), str(tmp_path / "people.csv"))
    assert read.batch(first.data.test.rows[indices])[0].equal(first.data.test.batch(indices)[0])
