"""Two runs at once under an account that has room for one, and two attempts at one run. A clock that goes back."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import time

import pytest
from conftest import REPOSITORY

from cords_dp import verify
from cords_dp.accounting import Account, Ledger, account
from cords_dp.config import config_for
from cords_dp.config.presets import merge_into
from cords_dp.runs.run import run_experiment
from cords_dp.training import checkpoint, provenance

RUN = """
import sys
sys.stdin.readline()  # all start together
from cords_dp.cli import run_main
sys.exit(run_main(sys.argv[1:]))
"""


def started(folder, out, *more):
    """Begin a run of the command line in a process of its own, which waits for a line."""
    sets = [
        "train_args.num_epochs=3", "train_args.device=cpu", "privacy.epsilon=3.0", "privacy.accountant=rdp",
        "ckpt.is_save=true", "ckpt.save_every=1", f"privacy.account={folder / 'account.jsonl'}",
    ]  # fmt: skip
    words = [word for change in sets for word in ("--set", change)]
    config = str(REPOSITORY / "configs" / "full_dp_digits.py")
    command = [sys.executable, "-c", RUN, "--config", config, "--out", str(out), "--quiet", *words, *more]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=REPOSITORY, env={**os.environ, "OMP_NUM_THREADS": "1"}, **pipes)


def ended(*processes):
    """Let them go at once; return the exit code and the output of each."""
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=550)[0] for process in processes]
    return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]


@pytest.mark.timeout(600)
def test_of_two_runs_at_once_the_account_admits_the_one_that_fits(tmp_path):
    own = Account.open(tmp_path / "account.jsonl", 3.0, 1e-4)
    results = ended(*(started(tmp_path, tmp_path / name, "--seed", "0") for name in ("one", "two")))
    assert sorted(code for code, _ in results) == [0, 2], results
    for name, (code, output) in zip(("one", "two"), results, strict=True):
        if code:
            assert "account.jsonl allows" in output
            assert "Traceback" not in output
            assert not [*(tmp_path / name).rglob("model.pt")]
        else:
            assert verify.verify(tmp_path / name)["verified"]
    assert len(own.holdings()) == 1
    assert own.share() <= 1
    assert verify.verify(own.path)["verified"]


@pytest.mark.timeout(600)
def test_of_two_attempts_at_one_run_one_charges(tmp_path):
    """Both are started into one folder: what is charged is what one of them charges, and it is held."""
    own = Account.open(tmp_path / "account.jsonl", 60.0, 1e-4)
    results = ended(*(started(tmp_path, tmp_path / "run", "--seed", "0") for _ in range(2)))
    assert 0 in [code for code, _ in results], results
    assert all("Traceback" not in output for _, output in results)
    (path,) = (tmp_path / "run").rglob("ledger.jsonl")
    ledger = Ledger.read(path)
    held = own.holdings()[ledger.id]
    assert {(e.event, e.dataset) for e in ledger.entries} == {(e.event, e.dataset) for e in held.entries}
    assert verify.verify(tmp_path / "run")["verified"]
    assert own.share() <= 1


class _Before(datetime.datetime):
    """A clock that was set back by thirty years while the run was away."""

    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(1996, 2, 29, tzinfo=tz)


def test_a_run_whose_clock_goes_back_is_resumed_and_charged_once(tmp_path, monkeypatch):
    """Interrupted now and resumed thirty years earlier, while every look at the clock goes a day further back."""
    own = Account.open(tmp_path / "account.jsonl", 60.0, 1e-4)
    config = config_for("digits", "FullDP")
    merge_into(config, {
        "train_args": {"num_epochs": 3, "print_every": 1, "device": "cpu", "seed": 0},
        "ckpt": {"is_save": True, "save_every": 1},
        "privacy": {"epsilon": 3.0, "accountant": "rdp", "account": str(own.path)},
    })  # fmt: skip
    real, looks = checkpoint.save_checkpoint, iter(range(10**9))

    def interrupted(*args):
        real(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_checkpoint", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_experiment(config, tmp_path / "run", progress=False)
    (before,) = own.holdings().values()
    monkeypatch.setattr(time, "time", lambda: 825_552_000.0 - 86_400 * next(looks))
    monkeypatch.setattr(account, "_now", lambda: _Before.now(datetime.timezone.utc).isoformat())
    monkeypatch.setattr(provenance.datetime, "datetime", _Before)
    merge_into(config, {"ckpt": {"is_load": True}})
    run_experiment(config, tmp_path / "run", progress=False)
    monkeypatch.undo()
    (after,) = own.holdings().values()
    assert after.date < before.date
    assert (after.run, after.state) == (before.run, before.state) == (before.run, "settled")
    assert [e.event.count for e in before.entries] == [12]  # what was not charged was given back
    assert [e.event.count for e in after.entries] == [36]
    report = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert report["about"]["date"] == "1996-02-29"
    assert verify.verify(tmp_path / "run")["verified"]
    assert verify.verify(own.path)["verified"]
    epochs = [line.split(",")[0] for line in (tmp_path / "run" / "metrics.csv").read_text().splitlines()[1:]]
    assert epochs == sorted({*epochs}, key=int)
