"""A disk that is full from its n-th write on: every write of a short run, of its account and its cache fails in turn.

``python tests/faults/full_disk.py --case align`` prints a line for each problem and how many writes there were. Each
attempt is a forked child that calls the command line's own entry on `FullDisk`; then there is room again, and the run
is resumed. What must hold: an attempt ends with a message and no traceback, nothing that was charged is forgotten, the
resumed run ends and `verify` finds nothing, and the account holds what was charged.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent), str(HERE)]  # this tree, whatever is installed

from crash import arguments, attempt, journal_events, leftovers  # noqa: E402 - scripts beside it
from failing_disk import FullDisk  # noqa: E402

CASES = ("FullDP", "align", "top_k")
KINDS = {"full": errno.ENOSPC, "quota": errno.EDQUOT, "read-only": errno.EROFS, "broken": errno.EIO}


def try_run(case: str, nth: int, folder: Path, error: int = errno.ENOSPC) -> tuple[list[str], int, bool]:
    """A run whose n-th write fails, and its second attempt: problems, writes until then, whether it took notice."""
    from cords_dp import verify
    from cords_dp.accounting import Account
    from cords_dp.cli import run_main

    disk, told, output = folder / "disk", folder / "calls.txt", folder / "output.txt"
    disk.mkdir()
    out, account = disk / "run", disk / "account.json"
    changes = [
        f"privacy.account={account}",
        "train_args.num_epochs=2",
        *["dss_args.select_every=1"] * (case != "FullDP"),
    ]
    more = [word for change in changes for word in ("--set", change)]
    os.environ["CORDS_DP_CACHE"] = str(disk / "cache")
    Account.open(account, 60.0, 1e-4)

    def first() -> int:
        layer = FullDisk(disk, nth, error)
        layer.install()
        try:
            return run_main([*arguments(case, out, resume=False), *more])
        finally:
            sys.stdout.flush()
            told.write_text(str(layer.calls))

    code = attempt(first, output, moment=None, delay=None)
    said, calls, problems = output.read_text(), int(told.read_text()), list[str]()
    if code not in (0, 1, 2) or "Traceback" in said or (code and not said.strip()):
        problems.append(f"exit {code}: {said.strip().splitlines()[-1:] or 'not a word'}")
    charged = journal_events(out) if [*out.rglob("ledger.jsonl")] else {}
    output.write_text("")
    again = [*arguments(case, out, resume=bool(charged)), *more]
    if code or not charged:
        second = attempt(lambda: run_main(again), output, moment=None, delay=None)
        if second:
            problems.append(f"the second attempt: exit {second}: {output.read_text().strip().splitlines()[-1:]}")
            return problems, calls, bool(code)
    after = journal_events(out)
    if any(after[side][: len(events)] != events for side, events in charged.items()):
        problems.append("charges of the first attempt are gone")
    if code == 0 and not (out / "result.json").is_file():
        problems.append("the run says that it ended, and has no result")
    if not (result := verify.verify(out))["verified"]:
        problems.append(result["verdict"])
    names = {json.loads(line)["record"]["run"] for line in account.read_text().splitlines()[1:]}
    if Account.read(account).share() > 1 or not names:
        problems.append("the account does not hold the run")
    if left := leftovers(disk):
        problems.append(f"left behind: {left}")
    return problems, calls, bool(code)


def every_write(case: str, error: int, *, step: int = 1, first: int = 1) -> dict[str, Any]:
    """Let every ``step``-th write of a run fail; say how many there were and what did not hold."""
    with tempfile.TemporaryDirectory(prefix="full-") as folder:
        problems, writes, _ = try_run(case, 10**9, Path(folder), error)
    found = [f"{case}, no fault: {problem}" for problem in problems]
    tried = stopped = 0
    for nth in range(first, writes + 1, step):
        with tempfile.TemporaryDirectory(prefix="full-") as folder:
            problems, _, noticed = try_run(case, nth, Path(folder), error)
        tried, stopped = tried + 1, stopped + noticed
        for problem in problems:
            found.append(f"{case}, write {nth}: {problem}")
            print(found[-1], flush=True)
    return {"case": case, "writes": writes, "tried": tried, "stopped": stopped, "problems": found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--kind", choices=list(KINDS), default="full")
    parser.add_argument("--step", type=int, default=1, help="try every so manieth write")
    parser.add_argument("--first", type=int, default=1)
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    import sklearn.datasets  # noqa: F401 - everything that a run imports, once

    import cords_dp.runs.run  # noqa: F401

    bad = 0
    for case in args.case or CASES:
        result = every_write(case, KINDS[args.kind], step=args.step, first=args.first)
        bad += len(result["problems"])
        print(
            f"{case}: {result['tried']} of {result['writes']} writes failed in turn ({args.kind}), "
            f"{result['stopped']} of them ended the run, {len(result['problems'])} problems"
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
