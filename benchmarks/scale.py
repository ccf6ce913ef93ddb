"""How time and memory of a selection grow with the number of records, and the lines that fit them best.

    python benchmarks/scale.py [--records 45000 150000 450000] [--inputs 64] [--json FILE]

The setting of `benchmarks/selection.py` with shorter records, so that the largest set fits into memory. Seconds are
processor time on one thread, the best of two, so that other work on the machine counts little; memory is that of a
process of its own beyond what it had. Fitted by least squares: seconds = a + b·n and bytes = c + d·n.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from selection import _KEYS, Setting, memory_of

from cords_dp.processes import keep_freed_memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, nargs="+", default=[45_000, 150_000, 450_000])
    parser.add_argument("--inputs", type=int, default=64, help="numbers of a record")
    parser.add_argument("--mechanisms", nargs="+", default=list(_KEYS), choices=list(_KEYS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()  # as a run does
    names = ["forward", *args.mechanisms]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    megabytes: dict[str, list[float]] = {name: [] for name in names}
    for n in args.records:
        setting = Setting(n, args.inputs)
        for name in names:
            seconds[name].append(_processor_seconds(setting.forward if name == "forward" else setting.selection(name)))
        del setting
        for name in names:
            megabytes[name].append(memory_of(name, n, args.inputs))
    rows = [_row(name, args.records, seconds[name], megabytes[name]) for name in names]
    for row in rows:
        print(json.dumps(row))
    if args.json:
        args.json.write_text(json.dumps({"records": args.records, "inputs": args.inputs, "rows": rows}, indent=2))


def _row(what: str, records: list[int], seconds: list[float], megabytes: list[float]) -> dict[str, Any]:
    start, slope = _line(records, seconds)
    _, more = _line(records, megabytes)
    errors = [abs(start + slope * n - s) / s for n, s in zip(records, seconds, strict=True)]
    return {
        "what": what,
        "seconds": [round(s, 3) for s in seconds],
        "megabytes": [round(m) for m in megabytes],
        "microseconds_a_record": round(1e6 * slope, 3),
        "seconds_at_once": round(start, 3),
        "worst_error": round(max(errors), 3),
        "bytes_a_record": round(more * 2**20),
    }


def _line(x: list[int], y: list[float]) -> tuple[float, float]:
    """The straight line with the least squares: its value at 0 and its slope."""
    (start, slope), *_ = np.linalg.lstsq(np.stack([np.ones(len(x)), np.array(x, dtype=float)], axis=1), np.array(y))
    return float(start), float(slope)


def _processor_seconds(function: Callable[[], Any]) -> float:
    taken = []
    for _ in range(2):
        start = time.process_time()
        function()
        taken.append(time.process_time() - start)
    return min(taken)


if __name__ == "__main__":
    main()
