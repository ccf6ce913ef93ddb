"""The ledger: durable before a charge returns, bounded by the plan, bound to its run, never silently shorter."""

from __future__ import annotations

import pytest

from cords_dp.accounting import TRAINING_DATA, Entry, Ledger, PoissonGaussian, gaussian
from cords_dp.errors import AccountingError, BudgetExceededError

DPSGD = PoissonGaussian(sigma=1.5, rate=0.04, count=2250)


def test_the_ledger_is_on_disk_before_charge_returns(tmp_path):
    ledger = Ledger(path=tmp_path / "ledger.json")
    ledger.charge(TRAINING_DATA, "training", DPSGD)
    assert Ledger.load(tmp_path / "ledger.json").entries == [Entry(TRAINING_DATA, "training", DPSGD)]
    assert list(tmp_path.iterdir()) == [tmp_path / "ledger.json"]


def test_a_crash_while_writing_keeps_the_old_ledger(tmp_path, monkeypatch):
    ledger = Ledger(path=tmp_path / "ledger.json")
    ledger.charge(TRAINING_DATA, "training", gaussian(1.0))
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("power cut")))
    with pytest.raises(OSError, match="power cut"):
        ledger.charge(TRAINING_DATA, "training", gaussian(1.0))
    monkeypatch.undo()
    assert len(Ledger.load(tmp_path / "ledger.json").entries) == 1


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
