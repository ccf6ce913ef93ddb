"""What a second worker saves a sweep, from the shell and back.

    python benchmarks/workers.py [--config configs/full_dp_digits.py] [--runs 8] [--repeats 3] [--json FILE]

Sweeps by one worker and by two take turns; medians of wall time and of the processor time of all their processes, and
the ratio of the wall times. Other work on the machine takes cores from both, and more from two workers than from one:
``busy`` is the load beside the benchmark when it began.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
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
    busy, taken = os.getloadavg()[0], {1: list[tuple[float, float]](), 2: list[tuple[float, float]]()}
    for _ in range(args.repeats):
        for workers, seconds in taken.items():
            seconds.append(_sweep(args.config, workers, args.runs))
    found: dict[str, Any] = {"config": Path(args.config).name, "runs": args.runs, "busy": round(busy, 1)}
    for workers, seconds in taken.items():
        wall, processor = (round(statistics.median(column), 1) for column in zip(*seconds, strict=True))
        found[str(workers)] = {"seconds": wall, "processor_seconds": processor}
    found["ratio"] = round(found["2"]["seconds"] / found["1"]["seconds"], 2)
    print(json.dumps(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2))


def _sweep(config: str, workers: int, runs: int) -> tuple[float, float]:
    """Wall and processor seconds of one sweep."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "cords_dp", "sweep", "--config", config, "--seeds", str(runs), "--quiet"]
        start, before = time.perf_counter(), _processor_seconds()
        subprocess.run([*command, "--workers", str(workers), "--out", folder], check=True, capture_output=True)
        return time.perf_counter() - start, _processor_seconds() - before


def _processor_seconds() -> float:
    """Of all processes that this one has begun and seen the end of."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
