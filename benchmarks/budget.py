"""How long do a plan and a budget take? CPU seconds, each in a process of its own, with and without the noise cache.

python benchmarks/budget.py [--config FILE ...] [--json FILE]

The last column is the budget as it would be if every alternative were calibrated by the run's own accountant, over the
budget as it is (both without a cache).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CONFIGS = ("configs/glister_dp_mnist.py", "configs/glister_dp_cifar10.py", "configs/paper/glister_dp_cifar10.py")
_MEASURE = """
import sys, time
from cords_dp.config import load_config
from cords_dp.training.run import public_sizes
from cords_dp.planning import budget
from cords_dp.training.resolve import resolve
run = resolve(load_config(sys.argv[1], []), plan=False)
sizes = public_sizes(run)
if sys.argv[2] == "exact":
    budget.ROUGH = run.privacy.accountant
begin = time.process_time()
run.plan(*sizes)
planned = time.process_time()
budget.budget_of(run, *sizes)
print(planned - begin, time.process_time() - begin)
"""


def seconds(config: str, how: str, cache: str) -> tuple[float, float]:
    environment = {**os.environ, "CORDS_DP_CACHE": cache, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _MEASURE, config, how]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    return float(answer[-2]), float(answer[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", nargs="+", default=CONFIGS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    rows = []
    print(f"{'config':<38} {'plan':>6} {'cached':>7} {'budget':>7} {'cached':>7} {'exact / now':>12}")
    for config in args.config:
        with tempfile.TemporaryDirectory() as cache:
            first, again = seconds(config, "rough", cache), seconds(config, "rough", cache)
        exact = seconds(config, "exact", "off")
        row = {"config": config, "plan": first[0], "plan_cached": again[0], "budget": first[1],
               "budget_cached": again[1], "exact_over_now": exact[1] / first[1]}  # fmt: skip
        rows.append(row)
        print(
            f"{config:<38} {first[0]:6.2f} {again[0]:7.2f} {first[1]:7.2f} {again[1]:7.2f} {exact[1] / first[1]:12.1f}"
        )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
