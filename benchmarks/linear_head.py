"""A private step of a linear head on stored features: library calls against rows read where they lie, in one run.

    python benchmarks/linear_head.py [--batch 2048] [--processor] [--json FILE]

"libraries": gather half-precision rows, convert them, measure their lengths in float64, two matrix products, as
before. "ours": `PrivateEngine` in its linear mode, with its noise. Beside them: the memory's copy rate, and the rate of
a large matrix product, which is the limit: a step of a head with ten classes multiplies every number of a row twenty
times, and reads it twice. Medians of nine. `--processor`: processor time on one thread instead of wall time, for a
machine that has other work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cords_dp.data.feature_cache import FeatureStore
from cords_dp.data.half_rows import torch_on_one_thread
from cords_dp.data.record_set import RecordSet
from cords_dp.models.heads import LinearHead
from cords_dp.noise.clipping import clip_factors, row_norms
from cords_dp.processes import keep_freed_memory
from cords_dp.training.step import PrivateEngine

_CLASSES = 10
_FEATURES = {"MNIST, 3,969 features": (81, 7, 7), "CIFAR-10, 15,552 features": (243, 8, 8)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--processor", action="store_true", help="processor time on one thread")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    clock = time.process_time if args.processor else time.perf_counter
    if args.processor:
        torch.set_num_threads(1)
    keep_freed_memory()  # as a run does
    large = torch.randn(2048, 2048)
    product = 2 * 2048**3 / _seconds(lambda: large @ large, clock) / 1e9
    block = torch.randn(32 << 20)
    copy = 8 * block.numel() / _seconds(block.clone, clock) / 1e9
    rows = []
    for name, shape in _FEATURES.items():
        features = torch.randn(3 * args.batch, *shape).half()
        chosen = torch.randperm(len(features), generator=torch.Generator().manual_seed(0))[: args.batch].sort().values
        libraries = _seconds(_libraries(features, chosen), clock)
        with torch_on_one_thread():  # as a run does
            ours = _seconds(_ours(features, chosen), clock)
        operations = 4 * _CLASSES * args.batch * features[0].numel()
        rows.append(
            {
                "features": name,
                "libraries_ms": round(1e3 * libraries, 1),
                "ours_ms": round(1e3 * ours, 1),
                "ratio": round(libraries / ours, 2),
                "records_per_second": round(args.batch / ours),
                "gigaflops": round(operations / ours / 1e9, 1),
                "of_a_matrix_product": round(operations / ours / 1e9 / product, 2),
                "gigabytes_per_second": round(4 * args.batch * features[0].numel() / ours / 1e9, 2),
            }
        )
    limits = {"threads": torch.get_num_threads(), "product_gigaflops": round(product), "copy_gigabytes": round(copy, 1)}
    for row in (limits, *rows):
        print(json.dumps(row))
    if args.json:
        args.json.write_text(json.dumps({"limits": limits, "rows": rows}, indent=2))


def _libraries(features: torch.Tensor, chosen: torch.Tensor) -> Callable[[], Any]:
    weight, labels = torch.zeros(_CLASSES, features[0].numel()), torch.arange(len(chosen)) % _CLASSES

    def step() -> torch.Tensor:
        a = features[chosen].float().flatten(1)
        r = torch.softmax(a @ weight.T, dim=1) - nn.functional.one_hot(labels, _CLASSES)
        factors = clip_factors(row_norms(r) * row_norms(a), 1.0).float()
        return (r * factors[:, None]).T @ a + torch.from_numpy(np.random.default_rng().normal(size=weight.shape))

    return step


def _ours(features: torch.Tensor, chosen: torch.Tensor) -> Callable[[], Any]:
    model = LinearHead(_CLASSES, (1, 32, 32), _Ready(tuple(features.shape[1:])))
    weights = torch.ones(len(chosen))
    engine = PrivateEngine(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        nn.CrossEntropyLoss(reduction="none"),
        sigma=1.0,
        max_grad_norm=1.0,
        batch_size=len(chosen),
        mode="linear",
        noise=lambda shape: np.random.default_rng().normal(size=shape),
        max_physical_batch_size=len(chosen),
    )
    every = torch.arange(len(features))
    dataset = RecordSet(FeatureStore(features.numpy(), every % _CLASSES, half=True))

    def step() -> None:
        engine.step(*dataset.batch(chosen), weights)

    return step


class _Ready:
    """Features that are there already."""

    name, settings, input_shape = "ready", (), (1, 32, 32)

    def __init__(self, feature_shape: tuple[int, ...]):
        self.feature_shape = feature_shape

    def __call__(self, records: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


def _seconds(function: Callable[[], Any], clock: Callable[[], float], repeats: int = 9) -> float:
    function()
    taken = []
    for _ in range(repeats):
        start = clock()
        function()
        taken.append(clock() - start)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
