"""The account: no run beyond the total, nothing forgotten, one writer at a time, closed where anything is unclear."""

from __future__ import annotations

import errno
import json
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import threading
import zlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cords_dp.accounting import (
    TRAINING_DATA,
    VALIDATION_DATA,
    Account,
    BranchMaximum,
    Entry,
    Ledger,
    PoissonGaussian,
    RenyiFilter,
    epsilon_bound,
    gaussian,
)
from cords_dp.accounting.account import ledger_under, paid_events
from cords_dp.accounting.journal import Journal
from cords_dp.errors import AccountingError, BudgetExceededError

STEP = PoissonGaussian(8.0, 0.1)


def plan(steps, *, validation=0):
    entries = [Entry(TRAINING_DATA, "training", STEP.with_count(steps))]
    return [*entries, Entry(VALIDATION_DATA, "validation", gaussian(12.0, validation))] if validation else entries


def share(*events, total=2.0):
    return RenyiFilter(total, 1e-5).share(events)


@pytest.fixture
def account(tmp_path):
    return Account.open(tmp_path / "account.json", 2.0, 1e-5)


# --- reserving ---------------------------------------------------------------------------------------------


def test_runs_add_up_and_the_one_too_many_is_refused_with_the_numbers(account):
    account.reserve("a", plan(300))
    account.reserve("b", plan(200))
    assert account.share() == pytest.approx(share(STEP.with_count(500)))
    content = account.path.read_bytes()
    with pytest.raises(
        BudgetExceededError, match=r"account\.json allows .*ε = 2.* 2 runs hold .*% .* run c .* be \d+\.\d%"
    ):
        account.reserve("c", plan(2000))
    assert account.path.read_bytes() == content
    account.reserve("c", plan(50))  # a smaller one fits


def test_runs_together_cost_less_than_their_sum(account):
    alone = epsilon_bound(plan_events := [STEP.with_count(200)], 1e-5).epsilon
    for run in "abc":
        account.reserve(run, plan(200))
    assert account.share() == pytest.approx(3 * share(*plan_events))  # a budget of divergence, not of ε
    assert alone < account.epsilon_so_far() < 2 * alone


def test_a_resumed_run_reserves_only_what_it_does_not_hold(account):
    account.reserve("a", plan(300))
    content = account.path.read_bytes()
    account.reserve("a", plan(300))
    assert account.path.read_bytes() == content
    account.reserve("a", plan(100))  # never less
    assert account.path.read_bytes() == content
    account.reserve("a", plan(350, validation=2))
    assert account.holdings()["a"].entries == tuple(plan(350, validation=2))


def test_the_first_run_may_cost_what_its_fixed_plan_costs(tmp_path):
    """The filter would refuse it; but nothing had been released when it was planned."""
    steps = 1000
    numerical = epsilon_bound([STEP.with_count(steps)], 1e-5).epsilon
    total = 1.02 * numerical
    assert share(STEP.with_count(steps), total=total) > 1
    account = Account.open(tmp_path / "a", total, 1e-5)
    first = account.reserve("first", plan(steps))
    assert account.share() == pytest.approx(1 / 1.02)
    for _ in range(2):
        with pytest.raises(BudgetExceededError):
            account.reserve("second", plan(1))
        first.settle(plan(1))  # ends at once: nothing of it comes back, or the proof would fail
    account.reserve("first", plan(steps))
    assert account.share() == pytest.approx(1 / 1.02)


def test_plans_that_were_fixed_in_advance_compose_numerically(tmp_path):
    account = Account.open(tmp_path / "a", 2.0, 1e-5, adaptive=False)
    for run in "ab":
        account.reserve(run, plan(300)).settle(plan(10))
    assert account.epsilon_so_far() == epsilon_bound([STEP.with_count(600)], 1e-5).epsilon  # nothing came back
    assert account.share() == account.epsilon_so_far() / 2.0 < share(STEP.with_count(600)) + 0.2
    assert "planned by looking" in account.text()


def test_a_run_without_events_or_name_is_refused(account):
    """Such is the plan of a run at ε = ∞."""
    for run, entries in (("a", []), ("", plan(1))):
        with pytest.raises(AccountingError, match="no place"):
            account.reserve(run, entries)


# --- D and V -----------------------------------------------------------------------------------------------


def test_with_one_split_a_record_pays_for_d_or_for_v(account):
    account.reserve("a", plan(300, validation=3), split="s")
    account.reserve("b", plan(300, validation=3), split="s")
    assert account.share() == pytest.approx(share(BranchMaximum(((STEP.with_count(600),), (gaussian(12.0, 6),)))))
    assert account.share() < share(STEP.with_count(600), gaussian(12.0, 6))


def test_with_other_splits_a_record_may_pay_for_both(account):
    account.reserve("a", plan(300), split="s")
    account.reserve("b", [Entry(VALIDATION_DATA, "validation", gaussian(12.0, 3))], split="t")
    assert account.share() == pytest.approx(share(STEP.with_count(300), gaussian(12.0, 3)))


def test_equal_plans_are_added_up_as_single_ones_are(tmp_path):
    """They are parsed once and are one object: ten thousand runs are added up in under a second."""
    account, planned = Account.open(tmp_path / "many.jsonl", 20.0, 1e-5), plan(2, validation=1)
    for number in range(30):
        account.reserve(f"run{number}", planned, split=("", "s", "t")[number % 3])
    read = account.holdings()
    assert len({id(holding.entries) for holding in read.values()}) == 1
    single = {run: replace(holding, entries=holding.entries[:1] + holding.entries[1:]) for run, holding in read.items()}
    assert len({id(holding.entries) for holding in single.values()}) == 30
    both = BranchMaximum(((STEP.with_count(20),), (gaussian(12.0, 10),)))
    alone = BranchMaximum(((STEP.with_count(2),), (gaussian(12.0),)))
    wanted = share(*[alone] * 10, both, both, total=20.0)
    assert account.share_of(read) == pytest.approx(account.share_of(single), rel=1e-9) == pytest.approx(wanted)
    assert share(*paid_events(read.values()), total=20.0) == pytest.approx(wanted)


def test_of_many_runs_the_shares_in_between_are_left_out(account):
    for number in range(60):
        account.reserve(f"run{number}", [Entry(TRAINING_DATA, "training", PoissonGaussian(90.0 + number, 0.1))])
    shown = [run["share_so_far"] for run in account.to_dict()["runs"]]
    assert shown[:-1] == [None] * 59
    assert shown[-1] == account.share()
    assert "run59" in account.text()


def test_a_run_does_not_change_its_split(account):
    account.reserve("a", plan(1), split="s")
    with pytest.raises(AccountingError, match="another split"):
        account.reserve("a", plan(1), split="t")


# --- settling ----------------------------------------------------------------------------------------------


def test_an_aborted_run_keeps_what_it_charged_and_frees_the_rest(account):
    reservation = account.reserve("a", plan(800))
    with pytest.raises(BudgetExceededError):
        account.reserve("b", plan(700))
    reservation.settle(plan(100))
    assert account.holdings()["a"].entries == tuple(plan(100))
    account.reserve("b", plan(700))
    with pytest.raises(BudgetExceededError):  # the budget of the rest is gone now
        account.reserve("a", plan(800))
    assert account.holdings()["a"].entries == tuple(plan(100))


def test_a_settled_run_that_is_resumed_reserves_the_rest_again(account):
    account.reserve("a", plan(500)).settle(plan(100))
    account.reserve("a", plan(500))
    (holding,) = account.holdings().values()
    assert (holding.state, holding.entries) == ("reserved", tuple(plan(500)))


def test_charges_beyond_the_reservation_are_counted_and_reported(account):
    reservation = account.reserve("a", plan(100))
    with pytest.raises(AccountingError, match="charged more"):
        reservation.settle([*plan(150), Entry(TRAINING_DATA, "selection", gaussian(9.0))])
    assert account.share() == pytest.approx(share(STEP.with_count(150), gaussian(9.0)))


def test_who_never_reserved_cannot_settle(account):
    with pytest.raises(AccountingError, match="no reservation"):
        account.settle("a", plan(1))


def test_what_a_run_is_known_to_have_charged_never_becomes_less(account):
    """A resume that was refused settled the empty ledger of a constructor, and everything was free again."""
    reservation = account.reserve("a", plan(500))
    reservation.settle(plan(300))
    account.reserve("a", plan(500)).settle([])
    assert account.holdings()["a"].entries == tuple(plan(300))


# --- copies of a run's folder ------------------------------------------------------------------------------


def ledger_of(account, path, steps=100):
    reservation = account.reserve("run", plan(steps))
    ledger = Ledger(tuple(plan(steps)), path, id="run", witness=reservation.witness)
    ledger.save()
    return ledger


def resumed(account, path, steps=100):
    return Ledger.load(path, tuple(plan(steps)), witness=account.reserve("run", plan(steps)).witness)


def charge(ledger, steps=10):
    ledger.charge(TRAINING_DATA, "training", STEP.with_count(steps))


def under(account, path, *, resume):
    options = {"fingerprint": "f", "name": "run", "resume": resume}
    return ledger_under(account.reserve("run", plan(100)), path, tuple(plan(100)), **options)


def test_a_kill_before_the_account_is_noted_does_not_end_the_run(account, tmp_path, monkeypatch):
    """Found by tests/faults/crash.py: the ledger was there, and not a word in it of the account."""
    path = tmp_path / "ledger.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "note", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            under(account, path, resume=False)
    ledger = under(account, path, resume=True)
    assert ledger.notes == {"account": account.id}
    charge(ledger)
    ledger.close()
    assert under(account, path, resume=True).charges == 1


def test_a_run_that_charged_something_without_an_account_does_not_come_under_one(account, tmp_path):
    ledger = Ledger(tuple(plan(100)), tmp_path / "ledger.jsonl", fingerprint="f", id="run")
    charge(ledger)
    ledger.close()
    with pytest.raises(AccountingError, match="come further"):
        under(account, tmp_path / "ledger.jsonl", resume=True)


def test_what_killed_runs_left_beside_an_account_is_removed(account):
    account.reserve("a", plan(1)).witness(("",), "head")
    marks = account.path.with_name(account.path.name + ".runs")
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    host = f"{zlib.crc32(platform.node().encode()):08x}"
    (marks / f".a.{host}-{gone.stdout.strip()}-00000000.tmp").write_text("he")
    account.reserve("b", plan(1))
    assert [path.name for path in marks.iterdir() if path.suffix == ".tmp"] == []
    assert (marks / "a").read_text() == "head"


@pytest.mark.parametrize("when", ["before the first charge", "in between", "at the end"])
def test_of_several_copies_of_a_folder_one_goes_on(account, tmp_path, when):
    """A run killed, its folder copied, both resumed: one reservation paid for both."""
    original, copy = tmp_path / "a" / "ledger.jsonl", tmp_path / "b" / "ledger.jsonl"
    ledger = ledger_of(account, original)
    copy.parent.mkdir()
    if when == "before the first charge":
        shutil.copy(original, copy)
    charge(ledger)
    if when == "in between":
        shutil.copy(original, copy)
    charge(ledger)
    ledger.close()
    if when == "at the end":
        shutil.copy(original, copy)
        resumed(account, original).close()
    for _ in range(2):  # a refused attempt leaves a record in the copy
        with pytest.raises(AccountingError, match="has come further"):
            resumed(account, copy)
    again = resumed(account, original)
    charge(again)
    again.close()


def test_a_copy_that_goes_on_first_stops_the_original(account, tmp_path):
    ledger = ledger_of(account, tmp_path / "a" / "ledger.jsonl")
    charge(ledger)
    (tmp_path / "b").mkdir()
    copy = shutil.copy(ledger.path, tmp_path / "b" / "ledger.jsonl")
    resumed(account, copy).close()
    with pytest.raises(AccountingError, match="has come further"):
        charge(ledger)


def test_a_kill_between_a_record_and_its_witness_does_not_end_the_run(account, tmp_path):
    ledger = ledger_of(account, tmp_path / "ledger.jsonl")
    charge(ledger)
    ledger.witness = lambda known_by, head: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        charge(ledger)
    ledger.close()
    again = resumed(account, ledger.path)
    assert sum(e.event.count for e in again.entries) == 20
    charge(again)


def test_a_lost_mark_ends_the_run(account, tmp_path):
    """Fail closed: without it nobody knows how far the run has come."""
    ledger = ledger_of(account, tmp_path / "ledger.jsonl")
    charge(ledger)
    ledger.close()
    (account.path.with_name(account.path.name + ".runs") / "run").unlink()
    with pytest.raises(AccountingError, match="has come further"):
        resumed(account, ledger.path)


RUNS, STEPS = st.sampled_from("abc"), st.sampled_from([100, 300, 600, 900])  # few, for the accountants' caches
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), RUNS, STEPS),
        st.tuples(st.just("charge"), RUNS, STEPS),
        st.tuples(st.just("settle"), RUNS, st.just(0)),
        st.tuples(st.just("crash"), RUNS, st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=40)
@given(moves=MOVES, adaptive=st.booleans())
def test_whatever_happens_the_total_holds_and_no_charge_is_forgotten(tmp_path, moves, adaptive):
    path = tmp_path / os.urandom(8).hex()
    account, open_runs, reserved, charged = Account.open(path, 1.5, 1e-5, adaptive=adaptive), set(), {}, {}
    for what, run, steps in moves:
        if what == "reserve":
            try:
                account.reserve(run, plan(steps))
            except BudgetExceededError:
                continue
            open_runs.add(run)
            reserved[run] = max(reserved.get(run, 0), steps)
        elif what == "charge" and run in open_runs:  # a run charges at most what it reserved
            charged[run] = min(reserved[run], charged.get(run, 0) + steps)
        elif what == "settle" and run in open_runs:
            account.settle(run, plan(charged.get(run, 0)))
            open_runs.remove(run)
            reserved[run] = charged.get(run, 0) if adaptive else reserved[run]
        account = Account.read(path) if what == "crash" else account
    spent = STEP.with_count(sum(charged.values()))
    fixed = len(account.holdings()) == 1 or not adaptive  # then numerical composition is a theorem
    assert share(spent, total=1.5) <= 1 or (fixed and epsilon_bound([spent], 1e-5).epsilon <= 1.5)
    for run, steps in charged.items():
        assert sum(e.event.count for e in account.holdings()[run].entries) >= steps
    assert account.share() <= 1


# --- the file ----------------------------------------------------------------------------------------------


def test_the_total_is_set_once(account):
    account.reserve("a", plan(10))
    for epsilon, delta, adaptive in ((3.0, 1e-5, True), (2.0, 1e-6, True), (2.0, 1e-5, False)):
        with pytest.raises(AccountingError, match="promises nothing"):
            Account.open(account.path, epsilon, delta, adaptive=adaptive)
    assert Account.open(account.path, 2.0, 1e-5) == Account.read(account.path) == account


def test_an_account_that_is_not_there_cannot_be_read(tmp_path):
    with pytest.raises(AccountingError, match="not there"):
        Account.read(tmp_path / "below" / "none")
    assert list(tmp_path.iterdir()) == []


def test_another_file_is_no_account(tmp_path):
    Journal.create(tmp_path / "l", {"version": 2}).close()
    with pytest.raises(AccountingError, match="no account"):
        Account.open(tmp_path / "l", 2.0, 1e-5)


def test_a_file_that_was_cut_or_edited_closes_the_account(account):
    for run in "ab":
        account.reserve(run, plan(100))
    content = account.path.read_bytes()
    at = content.index(b'"count":100')
    edited = [content.replace(b'"count":100', b'"count":001', 1), content[:at] + b"x" + content[at + 1 :]]
    lines = content.splitlines(keepends=True)
    cuts = [content[: len(content) // 2], b"".join(lines[:-1]), lines[0], b""]
    for damaged in edited + cuts:
        account.path.write_bytes(damaged)
        for attempt in (
            lambda: account.reserve("c", plan(1)),
            lambda: account.settle("a", plan(1)),
            lambda: Account.open(account.path, 2.0, 1e-5),
            account.text,
        ):
            with pytest.raises(AccountingError, match=r"cannot read account\.json"):
                attempt()
        assert account.path.read_bytes() == damaged
    account.path.write_bytes(content)
    assert list(account.holdings()) == ["a", "b"]


def test_a_full_disk_reserves_nothing_and_loses_nothing(account, monkeypatch):
    account.reserve("a", plan(100))
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr("os.pwrite", lambda *_: (_ for _ in ()).throw(full))
    for attempt in (lambda: account.reserve("b", plan(100)), lambda: account.settle("a", plan(1))):
        with pytest.raises(AccountingError, match="No space left"):
            attempt()
    monkeypatch.undo()
    assert list(account.holdings()) == ["a"]
    account.reserve("b", plan(100))


def test_a_disk_that_fills_up_within_a_line(account):
    account.reserve("a", plan(100))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (account.path.stat().st_size + 30, limits[1]))
        with pytest.raises(AccountingError, match="cannot write"):
            account.reserve("b", plan(100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(account.holdings()) == ["a"]
    account.reserve("b", plan(100))


# --- several at once ---------------------------------------------------------------------------------------

RACER = """
import sys
from pathlib import Path
from cords_dp.accounting import Account, Entry, PoissonGaussian, plan_costs
from cords_dp.errors import BudgetExceededError
plan_costs._NEW = 2  # the file of costs is written by all of them
sys.stdin.readline()  # all start together
for number in range(10):
    account = Account.open(Path(sys.argv[1]), 2.0, 1e-5)
    sigma = 8.0 + float(sys.argv[3]) * (10 * int(sys.argv[2]) + number)
    try:
        account.reserve(f"{sys.argv[2]}-{number}", [Entry("D", "training", PoissonGaussian(sigma, 0.1, 100))])
        print("granted", flush=True)
    except BudgetExceededError:
        print("refused", flush=True)
"""


@pytest.mark.parametrize("step", [0.0, 1e-6], ids=["equal plans", "different plans"])
def test_processes_that_race_never_get_more_than_the_total_together(tmp_path, step):
    path = tmp_path / "account.json"
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(path), str(number), str(step)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=os.getcwd(),
        )
        for number in range(3)
    ]
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    outputs = [racer.communicate(timeout=120) for racer in racers]
    assert [errors for _, errors in outputs] == ["", "", ""]
    granted = sum(output.count("granted") for output, _ in outputs)
    account = Account.read(path)
    assert len(account.holdings()) == granted
    fits = [n for n in range(1, 31) if share(STEP.with_count(100 * n)) <= 1]
    assert granted == max(fits) < 30
    assert account.share() <= 1
    assert share(*paid_events(account.holdings().values())) <= 1
    assert path.with_name("account.json.costs").is_file() == (step > 0)


def test_threads_that_race(account):
    granted = []

    def race(name):
        for number in range(8):
            try:
                account.reserve(f"{name}-{number}", plan(100))
                granted.append(name)
            except BudgetExceededError:
                pass

    threads = [threading.Thread(target=race, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(granted) == len(account.holdings())
    assert account.share() <= 1


# --- words -------------------------------------------------------------------------------------------------


def test_text_and_json_say_who_holds_what_and_what_is_left(account):
    account.reserve("run-a", plan(300, validation=2), split="s")
    account.reserve("run-b", plan(200), split="s").settle(plan(50))
    text, data = account.text(), json.loads(json.dumps(account.to_dict()))
    for word in ("run-a", "run-b", "reserved", "settled", "300 × poisson_gaussian(sigma=8, rate=0.1)", "V: 2 × "):
        assert word in text
    assert f"Used {data['share']:.1%}, left {1 - data['share']:.1%}" in text
    assert f"ε = {account.epsilon_so_far():.4f}" in text
    assert [run["run"] for run in data["runs"]] == ["run-a", "run-b"]
    assert data["runs"][0]["share_so_far"] < data["runs"][1]["share_so_far"] == data["share"]
    assert data["share"] == share(*paid_events(account.holdings().values()))


def test_an_empty_account(account):
    assert "Used 0.0%, left 100.0%" in account.text()
