"""What a large table costs: memory and seconds of reading a CSV file and of private training on it.

    python benchmarks/tables.py [--rows 5000000] [--columns 50] [--each 10] [--folder DIR] [--json FILE]

Writes a made-up CSV file, whose records belong to owners with ``--each`` records on average, trains FullDP on it for
one epoch and prints JSON: the largest memory of the process (``peak_mb``; ``base_mb`` is what Python and torch take
before), seconds for reading (from CSV to the compact copy) and for the whole run, and the sizes of both files. Peak
memory is that of private pages and of mapped ones that happen to be in memory, so the compact copy counts in as far as
the kernel keeps it; ``anonymous_mb`` is without it.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

_CHUNK = 20_000


def write_table(path: Path, rows: int, columns: int, each: int = 0) -> dict[str, Any]:
    """A table of numbers and categories, half each, whose label depends on some of them; returns its schema."""
    rng = np.random.default_rng(0)
    numeric, words = [f"n{i}" for i in range(columns // 2)], ["red", "green", "blue", "grey"]
    named = [f"c{i}" for i in range(columns - len(numeric))]
    with open(path, "w") as file:
        file.write(",".join([*numeric, *named, "label", *["owner"] * bool(each)]) + "\n")
        for start in range(0, rows, _CHUNK):
            count = min(_CHUNK, rows - start)
            numbers, codes = rng.integers(0, 1000, (count, len(numeric))), rng.integers(0, 4, (count, len(named)))
            label = numbers[:, :5].sum(axis=1) + 500 * (codes[:, :3] == 1).sum(axis=1) > 2875
            parts = [numbers.astype("U4"), np.array(words)[codes], label[:, None].astype("U5")]
            if each:
                parts.append(rng.integers(0, rows // each, (count, 1)).astype("U9"))
            cells = np.concatenate(parts, axis=1)
            file.write("\n".join(map(",".join, cells.tolist())) + "\n")
    known = {name: {"range": [0, 1000]} for name in numeric} | {name: {"categories": words} for name in named}
    return {"target": {"name": "label", "classes": ["False", "True"]}, "columns": known}


def measure(path: Path, schema: dict[str, Any], folder: Path, each: int = 0) -> dict[str, Any]:
    from cords_dp.config import config_for
    from cords_dp.data.build import build_dataset
    from cords_dp.training.trainer import TrainClassifier

    whose = {"owner": "owner"} if each else {}
    config = config_for(
        "table",
        "FullDP",
        dataset={"path": str(path), "schema": schema, "datadir": str(folder), "test": "public", **whose},
        train_args={"num_epochs": 1, "print_every": 1, "device": "cpu", "seed": 0, "results_dir": str(folder)},
        ckpt={"is_save": False, "dir": str(folder)},
        privacy={"epsilon": 1.0},
    )
    base, start = _peak(), time.perf_counter()
    build_dataset(config, np.random.default_rng(0))
    read = time.perf_counter() - start
    trainer = TrainClassifier(config)
    trainer.show_progress = False
    trainer.train()
    (compact,) = (folder / "tables").glob("*.rows")
    return {
        "base_mb": base,
        "peak_mb": _peak(),
        "anonymous_mb": _anonymous(),
        "read_seconds": round(read, 1),
        "train_seconds": round(trainer.session.train_seconds, 1),
        "total_seconds": round(time.perf_counter() - start, 1),
        "steps": trainer.plan.shape.steps if trainer.plan else 0,
        "csv_mb": path.stat().st_size >> 20,
        "compact_mb": compact.stat().st_size >> 20,
        "test_accuracy": round(float(trainer.history.last("tst_acc")), 4),
    }


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def _anonymous() -> int | None:
    """Pages that are no file's, at the end; Linux only."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return next((int(line.split()[1]) >> 10 for line in lines if line.startswith("RssAnon")), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--each", type=int, default=0, help="records of an owner (default: no owners)")
    parser.add_argument("--folder", type=Path, help="where the files are made (default: a temporary folder)")
    parser.add_argument("--json", type=Path, help="also write the result here")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        schema = write_table(folder / "table.csv", args.rows, args.columns, args.each)
        facts = {"rows": args.rows, "columns": args.columns, "records_of_an_owner": args.each}
        result = {**facts, **measure(folder / "table.csv", schema, folder, args.each)}
    print(json.dumps(result, indent=2))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
