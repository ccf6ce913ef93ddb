"""The ledger: durable before a charge returns, bounded by the plan, bound to its run, never silently shorter."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cords_dp.accounting import (
    TRAINING_DATA,
    VALIDATION_DATA,
    Entry,
    Event,
    GumbelFreeze,
    Ledger,
    PoissonGaussian,
    gaussian,
)
from cords_dp.accounting.events import merge
from cords_dp.errors import AccountingError, BudgetExceededError

DPSGD = PoissonGaussian(sigma=1.5, rate=0.04, count=2250)


def test_the_ledger_is_on_disk_before_charge_returns(tmp_path):
    ledger = Ledger(path=tmp_path / "ledger.json")
    ledger.charge(TRAINING_DATA, "training", DPSGD)
    assert Ledger.load(tmp_path / "ledger.json").entries == [Entry(TRAINING_DATA, "training", DPSGD)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ledger.json", "ledger.json.lock"]


def test_a_charge_that_fails_to_be_written_is_not_counted(tmp_path, monkeypatch):
    ledger = Ledger(path=tmp_path / "ledger.json")
    ledger.charge(TRAINING_DATA, "training", gaussian(1.0))
    monkeypatch.setattr("os.fsync", lambda *_: (_ for _ in ()).throw(OSError("power cut")))
    with pytest.raises(AccountingError, match="power cut"):
        ledger.charge(TRAINING_DATA, "training", gaussian(1.0))
    monkeypatch.undo()
    assert (
        ledger.events(TRAINING_DATA) == Ledger.load(tmp_path / "ledger.json").events(TRAINING_DATA) == [gaussian(1.0)]
    )


def test_the_ledger_refuses_more_than_the_plan(tmp_path):
    ledger = Ledger(allowance=(Entry(TRAINING_DATA, "training", gaussian(2.0, 3)),), path=tmp_path / "l.json")
    ledger.charge(TRAINING_DATA, "training", gaussian(2.0, 2))
    with pytest.raises(BudgetExceededError):
        ledger.charge(TRAINING_DATA, "training", gaussian(2.0, 2))
    with pytest.raises(BudgetExceededError):
        ledger.charge(TRAINING_DATA, "selection", gaussian(1.0))
    assert Ledger.load(tmp_path / "l.json").events(TRAINING_DATA) == [gaussian(2.0, 2)]


def test_loading_counts_attempts(tmp_path):
    Ledger(path=tmp_path / "l.json").charge(TRAINING_DATA, "training", DPSGD)
    first = Ledger.load(tmp_path / "l.json")
    first.save()
    assert (first.attempts, Ledger.load(tmp_path / "l.json").attempts) == (1, 2)


def test_a_damaged_ledger_is_an_error_not_a_fresh_start(tmp_path):
    (tmp_path / "l.json").write_text("{")
    with pytest.raises(AccountingError, match="cannot read"):
        Ledger.load(tmp_path / "l.json")


# --- what it is bound to -----------------------------------------------------------------------------------


def test_a_ledger_is_bound_to_its_plan_and_its_data(tmp_path):
    path = tmp_path / "l.json"
    Ledger(path=path, fingerprint="plan", binding="data").charge(TRAINING_DATA, "training", DPSGD)
    with pytest.raises(AccountingError, match="another budget"):
        Ledger.load(path, fingerprint="other plan", binding="data")
    with pytest.raises(AccountingError, match="other data"):
        Ledger.load(path, fingerprint="plan", binding="other data")
    ledger = Ledger.load(path, fingerprint="plan", binding="data")
    assert (ledger.attempts, ledger.binding) == (1, "data")  # what was refused is no attempt


def test_a_ledger_without_binding_does_not_fit_data_with_one(tmp_path):
    Ledger(path=tmp_path / "l.json").save()
    with pytest.raises(AccountingError, match="other data"):
        Ledger.load(tmp_path / "l.json", binding="data")


# --- counting ----------------------------------------------------------------------------------------------


def test_equal_charges_are_counted_together_in_order_of_first_appearance(tmp_path):
    ledger = Ledger(path=tmp_path / "l.json")
    for _ in range(3):
        ledger.charge(TRAINING_DATA, "selection", gaussian(9.0, 2))
        ledger.charge(VALIDATION_DATA, "validation", gaussian(5.0))
        ledger.charge(TRAINING_DATA, "training", DPSGD)
    for seen in (ledger, Ledger.load(tmp_path / "l.json")):
        assert seen.charges == 9
        assert seen.entries == [
            Entry(TRAINING_DATA, "selection", gaussian(9.0, 6)),
            Entry(VALIDATION_DATA, "validation", gaussian(5.0, 3)),
            Entry(TRAINING_DATA, "training", DPSGD.with_count(3 * 2250)),
        ]
        assert seen.phases(TRAINING_DATA) == ["selection", "training"]
        assert seen.events(TRAINING_DATA, "training") == [DPSGD.with_count(3 * 2250)]
        assert [e["phase"] for e in seen.to_dict()["entries"]] == ["selection", "validation", "training"]


EVENTS = st.sampled_from([gaussian(1.0), gaussian(2.0), PoissonGaussian(1.0, 0.5), GumbelFreeze(0.1)])
CHARGES = st.lists(
    st.tuples(st.sampled_from("DV"), st.sampled_from(["training", "selection"]), EVENTS, st.integers(0, 4)), max_size=20
)


@given(charges=CHARGES)
def test_memory_and_disk_agree_with_a_plain_list(tmp_path, charges):
    path = tmp_path / os.urandom(8).hex()
    ledger, plain = Ledger(path=path), []
    ledger.save()
    for dataset, phase, event, count in charges:
        ledger.charge(dataset, phase, event.with_count(count))
        plain.append(Entry(dataset, phase, event.with_count(count)))
    for seen in (ledger, Ledger.load(path), pickle.loads(pickle.dumps(ledger))):
        for dataset in "DV":
            expected: list[Event] = [e.event for e in plain if e.dataset == dataset]
            assert merge(seen.events(dataset)) == merge(expected)
            assert seen.phases(dataset) == list(dict.fromkeys(e.phase for e in plain if e.dataset == dataset))


@given(charges=CHARGES, planned=CHARGES)
def test_charges_are_refused_exactly_where_the_plan_ends(charges, planned):
    allowance = tuple(Entry(d, p, e.with_count(n)) for d, p, e, n in planned)
    ledger = Ledger(allowance=allowance)
    left = {(d, e): sum(n for d2, _, e2, n in planned if (d2, e2) == (d, e)) for d, _, e, _ in [*planned, *charges]}
    for dataset, phase, event, count in charges:
        if count <= left[dataset, event]:
            ledger.charge(dataset, phase, event.with_count(count))
            left[dataset, event] -= count
        else:
            with pytest.raises(BudgetExceededError):
                ledger.charge(dataset, phase, event.with_count(count))


def test_a_hundred_thousand_charges_in_flat_memory_and_a_line_each(tmp_path, monkeypatch):
    """Bytes and calls are counted, not seconds: each charge writes one line, its mark, and flushes once."""
    calls = {"fsync": 0, "bytes": 0}
    real = os.pwrite

    def pwrite(descriptor, data, offset):
        calls["bytes"] += len(data)
        return real(descriptor, data, offset)

    monkeypatch.setattr("os.pwrite", pwrite)
    monkeypatch.setattr("os.fsync", lambda _: calls.update(fsync=calls["fsync"] + 1))
    step, charges = PoissonGaussian(1.5, 0.04), 100_000
    ledger = Ledger(allowance=(Entry(TRAINING_DATA, "training", step.with_count(charges)),), path=tmp_path / "l.json")
    ledger.charge(TRAINING_DATA, "training", step)
    size, first = len(pickle.dumps(ledger)), calls["bytes"]
    for _ in range(charges - 1):
        ledger.charge(TRAINING_DATA, "training", step)
    assert len(pickle.dumps(ledger)) < size + 50
    assert calls["bytes"] == charges * first < 300 * charges
    assert charges <= calls["fsync"] <= charges + 2
    with pytest.raises(BudgetExceededError):
        ledger.charge(TRAINING_DATA, "training", step)
    assert Ledger.load(tmp_path / "l.json").events(TRAINING_DATA) == [step.with_count(charges)]


# --- copies and second writers -----------------------------------------------------------------------------


def test_a_copy_for_another_rank_counts_along_and_never_writes(tmp_path):
    ledger = Ledger(allowance=(Entry(TRAINING_DATA, "training", gaussian(1.0, 2)),), path=tmp_path / "l.json")
    ledger.charge(TRAINING_DATA, "training", gaussian(1.0))
    careless, copy = pickle.loads(pickle.dumps(ledger)), pickle.loads(pickle.dumps(ledger))
    with pytest.raises(AccountingError, match="another run"):
        careless.charge(TRAINING_DATA, "training", gaussian(1.0))
    copy.path = None
    copy.charge(TRAINING_DATA, "training", gaussian(1.0))
    ledger.charge(TRAINING_DATA, "training", gaussian(1.0))
    for each in (copy, ledger):
        assert each.events(TRAINING_DATA) == [gaussian(1.0, 2)]
        with pytest.raises(BudgetExceededError):
            each.charge(TRAINING_DATA, "training", gaussian(1.0))


def test_what_was_charged_in_memory_goes_into_the_file(tmp_path):
    ledger = Ledger()
    ledger.charge(TRAINING_DATA, "training", DPSGD)
    ledger.path = tmp_path / "l.json"
    ledger.save()
    assert Ledger.load(tmp_path / "l.json").events(TRAINING_DATA) == [DPSGD]


OTHER = """
import sys
from pathlib import Path
from cords_dp.accounting import Ledger
Ledger.load(Path(sys.argv[1]))
"""


def test_two_processes_on_one_ledger(tmp_path):
    path = tmp_path / "l.json"
    ledger = Ledger(path=path)
    ledger.charge(TRAINING_DATA, "training", DPSGD)
    command = [sys.executable, "-c", OTHER, str(path)]
    refused = subprocess.run(command, capture_output=True, cwd=os.getcwd(), check=False)
    assert b"another process uses l.json" in refused.stderr
    ledger.charge(TRAINING_DATA, "training", DPSGD)
    ledger.close()
    assert subprocess.run(command, capture_output=True, cwd=os.getcwd(), check=False).returncode == 0
    assert Ledger.load(path).attempts == 2


def test_records_of_another_kind_are_not_skipped(tmp_path):
    """A later version's record may be a charge."""
    ledger = Ledger(path=tmp_path / "l.json")
    ledger.save()
    ledger._journal.append({"refund": 1})
    with pytest.raises(AccountingError, match="unknown record"):
        Ledger.load(tmp_path / "l.json")
