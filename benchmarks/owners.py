"""Time and memory of an epoch whose records have owners, against one of as many records without.

    python benchmarks/owners.py

A linear head on vectors; owners of 10 records each. Every epoch is a process of its own: its processor time, and the
most memory of its own (not libraries') after any step. The least of several runs counts. The target is at most 1.3
times both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np


def epoch(owned: bool, records: int, dimension: int, classes: int, each: int) -> dict[str, float]:
    import torch

    from cords_dp.data.owners import Owners
    from cords_dp.data.record_set import array_set
    from cords_dp.models.heads import LinearHead
    from cords_dp.noise.generators import noise_source, secure_generator
    from cords_dp.selection.pool import Pool
    from cords_dp.training.poisson import poisson_batches
    from cords_dp.training.step import PrivateEngine

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(records, dimension)).astype(np.float32)
    dataset = array_set(x, rng.integers(0, classes, records))
    if owned:
        dataset.owners = Owners(rng.permutation(records) // each, records // each)
    model = LinearHead(classes, (dimension,))
    batch = 1000 // (each if owned else 1)
    units = records // (each if owned else 1)
    engine = PrivateEngine(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.nn.CrossEntropyLoss(reduction="none"),
        sigma=1.0,
        max_grad_norm=1.0,
        batch_size=batch,
        mode="linear",
        noise=noise_source(secure_generator()),
        by_owner=owned,
    )
    steps, cap = units // batch, each if owned else None
    batches = poisson_batches(
        dataset, Pool.everything(records), rate=batch / units, steps=steps, rng=rng, records_per_owner=cap
    )
    engine.step(*next(batches))  # what is built once
    seconds, most = 0.0, 0.0
    for _ in range(1, steps):
        start = time.process_time()
        engine.step(*next(batches))
        seconds += time.process_time() - start
        most = max(most, own_memory())
    return {"seconds": seconds, "mib": most}


def own_memory() -> float:
    """Return the process's anonymous memory in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def measured(owned: bool, args: argparse.Namespace, times: int = 3) -> dict[str, float]:
    sizes = [args.records, args.dimension, args.classes, args.each]
    command = [sys.executable, __file__, "--one", json.dumps([owned, *sizes])]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(times)]
    return {key: min(run[key] for run in runs) for key in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--dimension", type=int, default=64)
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--each", type=int, default=10)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(epoch(*json.loads(args.one))))
        return
    plain, owned = measured(False, args), measured(True, args)
    print(f"{args.records:,} records of {args.dimension} numbers, {args.classes} classes, {args.each} an owner")
    for key, unit in (("seconds", "s"), ("mib", "MiB")):
        ratio = owned[key] / plain[key]
        print(f"{key:8} without owners {plain[key]:8.2f} {unit}, with {owned[key]:8.2f} {unit}: {ratio:.2f} times")


if __name__ == "__main__":
    main()
