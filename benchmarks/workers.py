"""What a second worker saves a sweep, from the shell and back.

    python benchmarks/workers.py [--config configs/full_dp_digits.py] [--runs 8] [--repeats 3] [--json FILE]

Sweeps by one worker and by two take turns; medians of wall time and their ratio. Other work on the machine changes
both: two workers get more of a busy machine than one, whose two threads wait for each other. ``busy`` is the load
beside the benchmark when it began.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/full_dp_digits.py")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    busy, taken = os.getloadavg()[0], {1: list[float](), 2: list[float]()}
    for _ in range(args.repeats):
        for workers, seconds in taken.items():
            seconds.append(_sweep(args.config, workers, args.runs))
    found: dict[str, Any] = {"config": Path(args.config).name, "runs": args.runs, "busy": round(busy, 1)}
    found["seconds"] = {str(workers): round(statistics.median(seconds), 1) for workers, seconds in taken.items()}
    found["ratio"] = round(found["seconds"]["2"] / found["seconds"]["1"], 2)
    print(json.dumps(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2))


def _sweep(config: str, workers: int, runs: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "cords_dp", "sweep", "--config", config, "--seeds", str(runs), "--quiet"]
        start = time.perf_counter()
        subprocess.run([*command, "--workers", str(workers), "--out", folder], check=True, capture_output=True)
        return time.perf_counter() - start


if __name__ == "__main__":
    main()
