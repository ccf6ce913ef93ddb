"""Disks that are full, read-only or broken from the n-th write on, and a clock that goes back. See full_disk.py."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from faults.failing_disk import FullDisk

from cords_dp.accounting import TRAINING_DATA, Account, Entry, Ledger, PoissonGaussian, account
from cords_dp.errors import AccountingError

HERE = Path(__file__).resolve().parent
STEP = PoissonGaussian(8.0, 0.1)


def on_a_full_disk(root, nth, error, work):
    """Do ``work`` in a child whose n-th write below ``root`` fails; return what it wrote to a pipe."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        layer = FullDisk(root, nth, error)
        layer.install()
        try:
            words = work() or "done"
        except AccountingError as refused:
            words = f"refused: {refused}"
        except BaseException as other:
            words = f"{type(other).__name__}: {other}"
        with os.fdopen(writing, "w") as pipe:
            pipe.write(f"{layer.calls} {words}")
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        calls, _, words = pipe.read().partition(" ")
    os.waitpid(child, 0)
    return int(calls), words


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO], ids=["full", "read-only", "broken"])
def test_every_write_of_a_ledger_fails_in_turn(tmp_path, error):
    """A charge that returned is there; one that did not is refused by name, and the file goes on afterwards."""

    def charge_three():
        ledger = Ledger(None, path, id="run")
        for number in range(3):
            ledger.charge(TRAINING_DATA, "training", STEP)
            told.write_text(str(number + 1))
        ledger.close()

    nth, writes = 1, 10**9
    while nth <= writes:
        folder, told = tmp_path / str(nth), tmp_path / f"{nth}.txt"
        folder.mkdir()
        path = folder / "ledger.jsonl"
        writes, words = on_a_full_disk(folder, nth, error, charge_three)
        returned = int(told.read_text()) if told.is_file() else 0
        if words == "done":
            assert returned == 3
            break
        assert words.startswith(("refused: cannot write ledger.jsonl", "refused: cannot lock ledger.jsonl")), words
        assert returned < 3
        if path.is_file():
            ledger = Ledger.load(path)
            assert sum(entry.event.count for entry in ledger.entries) == returned
            ledger.charge(TRAINING_DATA, "training", STEP)
            ledger.close()
        nth, writes = nth + 1, 10**9
    assert nth > 8  # writes and syncs of a new file, its name, and three lines


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS], ids=["full", "read-only"])
def test_every_write_of_an_account_fails_in_turn(tmp_path, error):
    """What was admitted is held; a run that was refused for want of room holds nothing, or all of what it asked for."""
    for nth in range(1, 12):
        folder = tmp_path / str(nth)
        folder.mkdir()
        own = Account.open(folder / "account.json", 2.0, 1e-5)
        own.reserve("before", [Entry(TRAINING_DATA, "training", STEP.with_count(10))])

        def reserve(own=own):
            own.reserve("a", [Entry(TRAINING_DATA, "training", STEP.with_count(30))]).witness(("",), "head")

        _, words = on_a_full_disk(folder, nth, error, reserve)
        held = {run: holding.entries[0].event.count for run, holding in own.holdings().items()}
        assert held["before"] == 10
        if words == "done":
            assert held["a"] == 30
            break
        assert words.startswith("refused: cannot ")
        assert held.get("a", 30) == 30
        reserve()
        assert own.holdings()["a"].entries[0].event.count == 30
    assert nth > 3


def test_a_clock_that_goes_back_changes_what_is_shown_and_nothing_else(tmp_path, monkeypatch):
    """The latest word on a run is the last line of the file, whatever day it says."""
    own = Account.open(tmp_path / "account.json", 2.0, 1e-5)
    reservation = own.reserve("a", [Entry(TRAINING_DATA, "training", STEP.with_count(30))])
    monkeypatch.setattr(account, "_now", lambda: "1970-01-01T00:00:00+00:00")
    reservation.settle([Entry(TRAINING_DATA, "training", STEP.with_count(7))])
    own.reserve("b", [Entry(TRAINING_DATA, "training", STEP)])
    assert {run: h.entries[0].event.count for run, h in own.holdings().items()} == {"a": 7, "b": 1}
    assert own.holdings()["a"].date.startswith("1970")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("case", "kind"), [("FullDP", "full"), ("align", "full"), ("top_k", "read-only")])
def test_writes_of_a_run_fail_in_turn(case, kind):
    command = [sys.executable, str(HERE / "full_disk.py"), "--case", case, "--kind", kind, "--step", "9"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=3500, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "0 problems" in done.stdout
