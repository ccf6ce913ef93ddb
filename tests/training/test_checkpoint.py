"""Ledgers beside checkpoints."""

from __future__ import annotations

import subprocess
import sys

from builders import make_plan

from cords_dp.files import _host
from cords_dp.training.checkpoint import open_ledger


def test_the_beginning_of_a_ledger_that_a_killed_process_left_is_removed(tmp_path):
    """Found by killing a run in the first write of its ledger: there is nothing to load, and nothing was cleaned up."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    stale = tmp_path / f".ledger.jsonl.{_host()}-{gone.pid}-0badcafe.tmp"
    stale.write_text("{")
    plan = make_plan("FullDP", n=100, batch_size=10)
    open_ledger(plan, tmp_path / "model.pt", resume=True, binding="", name="run").close()
    assert not stale.exists()
