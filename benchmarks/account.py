"""An account of ten thousand runs: how long the next one waits before it is admitted.

    python benchmarks/account.py [--runs N] [--plans N] [--json FILE]

Each run has reserved and settled a plan of GLISTERDP (branches, tables of D and of V); half of them name one of five
splits. ``--plans``: how many plans differ. ``first`` is admitted without the file of costs beside the account, ``next``
with it. What is timed is a process's time on the processor, which other work on the machine hardly changes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, Account, BranchMaximum, Entry, PoissonGaussian, gaussian

NEXT = """
import sys, time
from pathlib import Path
from cords_dp.accounting import Account
sys.path.insert(0, sys.argv[2])
from account import plan
start = time.process_time()
account = Account.read(Path(sys.argv[1]))
read = time.process_time()
account.reserve("one before", plan(7))
first = time.process_time()
reservation = account.reserve("next", plan(7))
admitted = time.process_time()
reservation.settle(plan(7))
settled = time.process_time()
account.text()
print(read - start, first - read, admitted - first, settled - admitted, time.process_time() - settled)
"""


def plan(kind: int) -> list[Entry]:
    """Return a plan of GLISTERDP; those of other kinds have other noise."""
    sigma = 3000.0 * (1 + kind * 1e-5)
    steps = [PoissonGaussian(sigma * (1 + i / 10), 0.01 * (1 + i / 5), 25) for i in range(3)]
    return [
        Entry(TRAINING_DATA, "training", BranchMaximum(tuple((step,) for step in steps), 20)),
        Entry(TRAINING_DATA, "selection", gaussian(2 * sigma, 20)),
        Entry(VALIDATION_DATA, "validation", gaussian(3 * sigma, 20)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--plans", type=int, nargs="+", default=[1, 100, 10_000])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    print(f"{args.runs} runs   different plans   MB   seconds of CPU: opened   first   next   settled   shown")
    for plans in args.plans:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "account.jsonl"
            _fill(path, args.runs, plans)
            here = str(Path(__file__).resolve().parent)
            done = subprocess.run([sys.executable, "-c", NEXT, path, here], capture_output=True, text=True, check=True)
            seconds = [float(number) for number in done.stdout.split()]
            rows.append({"runs": args.runs, "plans": plans, "bytes": path.stat().st_size, "seconds": seconds})
        print(f"{plans:>20} {rows[-1]['bytes'] / 1e6:>12.1f} " + "".join(f"{second:>11.2f}" for second in seconds))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))


def _fill(path: Path, runs: int, plans: int) -> None:
    """Write what so many runs would have written, without waiting for the device and for the filter each time."""
    from cords_dp.accounting.account import RESERVED, SETTLED, Holding, _opened

    account = Account.open(path, 3.0, 1e-6)
    with _opened(account.path) as (journal, _, _), mock.patch("os.fsync"):
        for number in range(runs):
            planned, split = tuple(plan(number % plans)), f"split {number % 5}" if number % 2 else ""
            for state, charged in ((RESERVED, ()), (SETTLED, planned)):
                date = "2026-01-01T00:00:00+00:00"
                journal.append(Holding(f"run{number}", split, date, state, True, planned, charged).to_dict())


if __name__ == "__main__":
    main()
