"""What plans cost, remembered beside an account: never less than what it is, whatever happened to the file."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass
from typing import ClassVar

import pytest

from cords_dp.accounting import (
    TRAINING_DATA,
    VALIDATION_DATA,
    Account,
    BranchMaximum,
    Entry,
    Event,
    PoissonGaussian,
    RenyiFilter,
    gaussian,
    plan_costs,
)
from cords_dp.accounting.account import paid_events
from cords_dp.accounting.events import _KINDS
from cords_dp.accounting.plan_costs import PlanCosts
from cords_dp.errors import BudgetExceededError

RUNS = 40


def plan(number):
    """Return a plan of its own for each number; every third one reads V alone, every fifth has branches."""
    step = PoissonGaussian(60.0 + number, 0.1, 5)
    event = BranchMaximum(((step,), (gaussian(90.0 + number),)), 2) if number % 5 == 0 else step
    of_v = Entry(VALIDATION_DATA, "validation", gaussian(70.0 + number, 1 + number % 4))
    return [of_v] if number % 3 == 2 else [Entry(TRAINING_DATA, "training", event), of_v]


@pytest.fixture
def account(tmp_path, monkeypatch):
    """An account of 40 runs of different plans, for which a file is worth while."""
    monkeypatch.setattr(plan_costs, "_NEW", 20)
    account = Account.open(tmp_path / "account.jsonl", 3.0, 1e-5)
    for number in range(RUNS):
        account.reserve(f"run{number}", plan(number), split=("", "s", "t")[number % 3 if number % 7 else 0])
    return account


@pytest.fixture
def computed(monkeypatch):
    """Count the plans whose costs are computed."""
    real, calls = PlanCosts.computed, []
    monkeypatch.setattr(PlanCosts, "computed", lambda self, entries: calls.append(1) or real(self, entries))
    return calls


def file_of(account):
    return account.path.with_name("account.jsonl.costs")


def exact(account):
    return RenyiFilter(3.0, 1e-5).share(paid_events(account.holdings().values()))


def forge(account, change):
    """Change what is remembered, with a digest that fits."""
    content = json.loads(file_of(account).read_bytes().partition(b"\n")[2])
    change(content)
    body = json.dumps(content).encode()
    file_of(account).write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def halve(content):
    for sides in content["plans"].values():
        sides.update({name: [cost / 2 for cost in costs] for name, costs in sides.items()})


def test_what_is_remembered_is_what_the_events_cost(account, computed):
    """By D and V, by splits and without: the two ways of adding up are one number."""
    assert file_of(account).is_file()
    assert account.share() == pytest.approx(exact(account), rel=1e-9)
    assert len(computed) < RUNS  # some known ones again, and those that are not worth a new file yet
    file_of(account).unlink()
    assert account.share() == pytest.approx(exact(account), rel=1e-9)


def test_the_next_run_is_refused_as_it_would_be_without_the_file(account):
    left = 1 - exact(account)
    steps = int(left / RenyiFilter(3.0, 1e-5).share([PoissonGaussian(20.0, 0.1)]))
    for _ in range(2):
        with pytest.raises(BudgetExceededError):
            account.reserve("too many", [Entry(TRAINING_DATA, "training", PoissonGaussian(20.0, 0.1, steps + 1))])
        file_of(account).unlink(missing_ok=True)
    account.reserve("as many as fit", [Entry(TRAINING_DATA, "training", PoissonGaussian(20.0, 0.1, steps))])
    assert account.share() <= 1


def test_any_changed_byte_is_noticed(account, computed):
    content, wanted = file_of(account).read_bytes(), exact(account)
    for place in random.Random(0).sample(range(len(content)), 40):
        file_of(account).write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        computed.clear()
        assert account.share() == pytest.approx(wanted, rel=1e-9)
        assert len(computed) == RUNS
    for cut in (b"", content[:100], content[:-1], b"\n", b"null"):
        file_of(account).write_bytes(cut)
        assert account.share() == pytest.approx(wanted, rel=1e-9)


def test_lower_costs_under_a_digest_that_fits_are_noticed(account):
    forge(account, halve)
    assert account.share() == pytest.approx(exact(account), rel=1e-9)


def test_what_other_code_or_another_total_has_written_is_computed_anew(account, computed, monkeypatch):
    monkeypatch.setattr(plan_costs, "_CHECKED", 0)  # this must hold without the sample
    wanted = exact(account)
    forge(account, halve)
    for part, value in (("code", "0" * 64), ("orders", [2, 3, 4])):
        before = file_of(account).read_bytes()
        forge(account, lambda content, part=part, value=value: content["bound_to"].update({part: value}))
        computed.clear()
        assert account.share() == pytest.approx(wanted, rel=1e-9)
        assert len(computed) == RUNS
        file_of(account).write_bytes(before)
    assert account.share() < wanted  # as it was forged: this file was believed


def test_a_run_that_was_settled_or_went_on_is_counted_as_it_is_now(account):
    for number in range(0, RUNS, 4):
        account.settle(f"run{number}", [])
    account.reserve("run1", [*plan(1), Entry(TRAINING_DATA, "selection", gaussian(30.0))], split="s")
    assert account.share() == pytest.approx(exact(account), rel=1e-9)


@dataclass(frozen=True)
class Elsewhere(Event):
    """An event whose code the digest does not cover."""

    kind: ClassVar[str] = "defined_in_a_test"
    count: int = 1
    cost: ClassVar[float] = 1e-5

    def rdp(self, order):
        return self.cost


def test_costs_of_events_that_others_registered_are_not_remembered(tmp_path, monkeypatch):
    monkeypatch.setitem(_KINDS, Elsewhere.kind, Elsewhere)
    monkeypatch.setattr(plan_costs, "_NEW", 4)
    monkeypatch.setattr(plan_costs, "_CHECKED", 0)  # this must hold without the sample
    account = Account.open(tmp_path / "account.jsonl", 3.0, 1e-5)
    for number in range(12):
        inside = BranchMaximum(((Elsewhere(number + 1),), (gaussian(900.0 + number),)))
        account.reserve(f"run{number}", [Entry(TRAINING_DATA, "training", inside if number % 2 else gaussian(500.0))])
        account.reserve(f"other{number}", [Entry(TRAINING_DATA, "training", gaussian(600.0 + number))])
    before = account.share()
    assert file_of(account).is_file()
    monkeypatch.setattr(Elsewhere, "cost", 1e-3)
    assert account.share() > before
    assert account.share() == pytest.approx(exact(account), rel=1e-9)


def test_a_file_that_cannot_be_written_refuses_no_run(account, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(plan_costs, "write_durably", full)
    file_of(account).unlink()
    account.reserve("next", plan(1))
    assert not file_of(account).exists()
