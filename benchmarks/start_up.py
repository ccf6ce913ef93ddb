"""What a user waits for before anything is trained: help, a plan, a short run, each as a process of its own.

    python benchmarks/start_up.py [--json FILE]

Best of three, wall time. The cache of calibrated noise is off for the first `budget` and on for the second.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cli = [sys.executable, "-m", "cords_dp"]
    with tempfile.TemporaryDirectory() as folder:
        budget = [*cli, "budget", "--config", "configs/glister_dp_cifar10.py"]
        run = [*cli, "run", "--config", "configs/glister_dp_digits.py", "--quiet", "--out"]
        cached = {"CORDS_DP_CACHE": str(Path(folder) / "cache")}
        rows = {
            "python -c 'import torch'": _seconds([sys.executable, "-c", "import torch"]),
            "cords-dp --help": _seconds([*cli, "--help"]),
            "import of everything": _seconds([sys.executable, "-c", "import cords_dp.training.trainer"]),
            "cords-dp budget": _seconds(budget, {"CORDS_DP_CACHE": "off"}),
            "cords-dp budget, again": _seconds(budget, cached),
            "cords-dp run, digits": min(_seconds([*run, str(Path(folder) / str(i))], cached, 1) for i in range(3)),
        }
    for name, seconds in rows.items():
        print(f"{name:<28} {seconds:6.2f} s")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))


def _seconds(command: list[str], environment: dict[str, str] | None = None, repeats: int = 3) -> float:
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, **(environment or {})})
        taken.append(time.perf_counter() - start)
    return min(taken)


if __name__ == "__main__":
    main()
