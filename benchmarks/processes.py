"""One run in one process and in several, side by side: time and memory of each, with the records divided among them.

    python benchmarks/processes.py [--records 450000] [--processes 1 2] [--dim 512] [--json FILE]

Vectors of made-up records lie in an .npz file, mapped by every process. For each strategy and number of processes it
prints the records of the largest part, seconds of training and of selecting (of rank 0, waiting included), the largest
process's peak memory above what the imports take, and all of them over those of the first number of processes. On a
machine with as many cores as processes; on others processes wait for each other.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

STRATEGIES = ("FullDP", "GLISTERDP")
CLASSES, EPOCHS = 10, 4
# title, key, format, width
COLUMNS = (
    ("strategy", "strategy", "", 10), ("processes", "processes", "", 11), ("own records", "own", "", 13),
    ("train s", "training", ".2f", 9), ("ratio", "training ratio", ".2f", 7), ("select s", "selecting", ".2f", 10),
    ("ratio", "selecting ratio", ".2f", 7), ("MB", "memory", ".0f", 7), ("ratio", "memory ratio", ".2f", 7),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=450_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "records.npz"
        write_records(data, args.records, args.dim)
        rows = [
            row_of(strategy, size, measured(strategy, size, data)) for strategy in STRATEGIES for size in args.processes
        ]
    for row in rows:
        first = next(other for other in rows if other["strategy"] == row["strategy"])
        row.update({f"{key} ratio": row[key] / first[key] for key in ("training", "selecting", "memory") if first[key]})
    print(f"{args.records} records of {args.dim} numbers, {EPOCHS} epochs, {os.cpu_count()} cores\n")
    print("".join(f"{name:>{width}}" for name, _, _, width in COLUMNS))
    for row in rows:
        print("".join(f"{row.get(key, 1.0):>{width}{form}}" for _, key, form, width in COLUMNS))
    if args.json:
        facts = {"records": args.records, "dim": args.dim, "epochs": EPOCHS, "machine": platform.platform()}
        args.json.write_text(json.dumps({**facts, "rows": rows}, indent=2))


def write_records(path: Path, n: int, dim: int) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, n)
    x = rng.standard_normal((n, dim), dtype=np.float32)
    x[np.arange(n), y] += 3.0
    np.savez(path, x=x, y=y)


def measured(strategy: str, size: int, data: Path) -> list[dict[str, Any]]:
    """What each rank says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(size):
        env = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, __file__, "rank", strategy, str(data)]
        ranks.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise SystemExit("a process failed")
    return [json.loads(output.split("MEASURED ")[1]) for output in outputs]


def row_of(strategy: str, size: int, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    largest = {key: max(rank[key] for rank in ranks) for key in ("own", "memory")}
    return {"strategy": strategy, "processes": size, **largest, **{k: ranks[0][k] for k in ("training", "selecting")}}


def work(strategy: str, data: Path) -> None:
    """One rank."""
    from cords_dp import TrainClassifier, config_for
    from cords_dp.processes import joined_world

    folder = tempfile.mkdtemp(dir=data.parent)
    config = config_for(
        "embeddings",
        strategy,
        dataset={"path": str(data), "classes": CLASSES},
        dss_args={} if strategy == "FullDP" else {"fraction": 0.3, "select_every": 2},
        train_args={
            "num_epochs": EPOCHS, "print_every": EPOCHS, "device": "cpu", "results_dir": folder, "print_args": [],
        },
        ckpt={"is_save": False, "dir": folder},
        privacy={"epsilon": 3.0, "accountant": "rdp"},
    )  # fmt: skip
    before = peak_megabytes()
    with joined_world():
        trainer = TrainClassifier(config)
        trainer.show_progress = False
        trainer.train()
    assert trainer.data is not None
    found = {
        "own": len(trainer.data.train),  # type: ignore[arg-type]
        "training": trainer.session.train_seconds,
        "selecting": trainer.session.selection_seconds,
        "memory": peak_megabytes() - before,
    }
    print("MEASURED", json.dumps(found))


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        work(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
