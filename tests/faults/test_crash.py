"""Runs that are killed at random and named moments: each ends when it is resumed, within its budget, losing nothing.

See crash.py. On a machine with two busy cores a kill takes about five seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def crash(*options: str, timeout: float) -> list[dict]:
    path = os.pathsep.join([str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(HERE / "crash.py"), *options],
        capture_output=True, text=True, timeout=timeout, check=False,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(results: list[dict]) -> None:
    broken = [result for result in results if result["problems"]]
    assert not broken, "\n".join(map(json.dumps, broken))


@pytest.mark.timeout(400)
@pytest.mark.slow
def test_a_few_kills():
    results = crash("--case", "FullDP", "--case", "top_k", "--kills", "4", "--seed", "7", timeout=380)
    assert sum(result["kills"] for result in results) >= 4
    check(results)


# before the first checkpoint, in the middle of what a selection releases: each release is paid for once
EARLY = ["charge before 1", "charge after 1", "charge before 2", "charge after 2", "select after 1",
         "charge after 3", "append middle 3", "step before 1", "step after 2", "checkpoint before 1"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", ["align", "match", "threshold", "top_k"])
def test_a_kill_before_the_first_checkpoint(case):
    moments = [part for moment in EARLY for part in ("--moment", moment)]
    check(crash("--case", case, *moments, timeout=1700))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_hundred_kills():
    results = crash("--kills", "100", "--seed", "1", timeout=7000)
    assert sum(result["kills"] for result in results) >= 100
    check(results)
