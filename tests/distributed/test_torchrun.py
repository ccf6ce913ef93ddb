"""The command that users give: torchrun, a process that is killed, and the run that goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import REPOSITORY

from cords_dp.accounting import Ledger

OVERRIDES = ["train_args.num_epochs=400", "privacy.accountant=rdp", "ckpt.is_save=true", "ckpt.save_every=5"]


def command(processes, out, *more):
    options = [part for override in OVERRIDES for part in ("--set", override)]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"]
    run = [
        "run_experiment.py",
        "--config",
        "configs/full_dp_synthetic.py",
        "--out",
        str(out),
        "--quiet",
        *options,
        *more,
    ]
    return [*(launcher if processes > 1 else [sys.executable]), *run]


def process_of_rank(rank, launcher):
    """The worker that torchrun has started for a rank: a child of ours that has this in its environment."""
    for entry in Path("/proc").iterdir():
        try:
            environment = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
            parent = (entry / "stat").read_text().rsplit(")", 1)[1].split()[1] if environment else ""
        except OSError:
            continue
        if f"RANK={rank}".encode() in environment and parent == str(launcher.pid):
            return int(entry.name)
    return None


def wait_for(condition, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.2)
    raise AssertionError("it did not happen in time")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the workers in /proc")
def test_a_killed_rank_ends_the_run_at_once_and_one_process_finishes_it(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    launcher = subprocess.Popen(
        command(2, tmp_path),
        cwd=REPOSITORY,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        ledger = wait_for(lambda: next((p for p in tmp_path.rglob("ledger.jsonl")), None), 120)
        wait_for(lambda: ledger.read_text().count('"charge"') >= 20, 120)
        os.kill(process_of_rank(1, launcher), signal.SIGKILL)
        killed = time.monotonic()
        output, _ = launcher.communicate(timeout=60)
    finally:
        launcher.kill()
    assert launcher.returncode != 0
    assert time.monotonic() - killed < 60
    assert "another process of this run has ended" in output
    assert "Traceback" not in output.split("another process")[0]  # a message, not a stack
    charged = Ledger.load(ledger).entries[0].event.count
    assert charged % 8 == 0  # whole epochs
    resumed = subprocess.run(
        command(1, tmp_path, "--resume"), cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["epsilon"] <= 3.0
    assert Ledger.load(ledger).entries[0].event.count > charged
