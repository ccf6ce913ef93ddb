"""What noise costs: its share of a training step, on the default models and batch sizes.

    python benchmarks/noise.py [--repeats 15] [--json FILE]

For each case it times, taking turns within one run, steps without noise, with noise and with secure noise, and prints
medians of processor time, which other work on the machine moves least. ``noise`` is what drawing, scaling and adding
the noise of a step takes by itself; ``share`` is that over the step with noise, ``secure`` the same for secure noise. A
step here fetches its batch (rows of features, kept in half precision), but draws no masks and selects nothing.
``torch`` is what `torch.normal` takes for as many numbers, in float32 and without a tail.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cords_dp.noise.generators import Noise, noise_source, secure_generator
from cords_dp.training.step import PrivateEngine

# name, features of a record, batch: the batch sizes are those that the default configs plan at ε = 3
CASES = (
    ("CIFAR-10 FullDP", 15_552, 4096),
    ("CIFAR-10 GlisterDP", 15_552, 2250),
    ("CIFAR-10 RandomDP", 15_552, 512),
    ("MNIST FullDP", 3_969, 4096),
    ("MNIST GlisterDP", 3_969, 2700),
    ("MNIST RandomDP", 3_969, 1024),
)
CLASSES = 10


class Linear(nn.Module):
    """What ScatterLinear is once its features are cached."""

    def __init__(self, features: int):
        super().__init__()
        self.linear = nn.Linear(features, CLASSES)

    def embed(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def engine_for(features: int, batch: int, *, sigma: float, secure: bool = False) -> PrivateEngine:
    model = Linear(features)
    return PrivateEngine(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        nn.CrossEntropyLoss(reduction="none"),
        sigma=sigma,
        max_grad_norm=1.0,
        batch_size=batch,
        mode="linear",
        noise=noise_source(secure_generator(), secure=secure) if sigma else None,
    )


def measure(name: str, features: int, batch: int, repeats: int) -> dict[str, Any]:
    stored = torch.randn(2 * batch, features).half()
    rows = torch.randperm(2 * batch)[:batch]
    labels, weights = torch.randint(0, CLASSES, (batch,)), torch.ones(batch)
    engines = {
        "without": engine_for(features, batch, sigma=0.0),
        "with": engine_for(features, batch, sigma=1.0),
        "secure": engine_for(features, batch, sigma=1.0, secure=True),
    }

    def step(engine: PrivateEngine) -> Callable[[], Any]:
        return lambda: engine.step(stored[rows].float(), labels, weights)

    def add(source: Noise) -> Callable[[], Any]:
        return lambda: [torch.from_numpy(source(tuple(total.shape))).mul_(0.5).add_(total) for total in totals]

    totals = [torch.zeros(shape, dtype=torch.float64) for shape in ((CLASSES, features), (CLASSES,))]
    tasks: dict[str, Callable[[], Any]] = {key: step(engine) for key, engine in engines.items()}
    tasks["noise"] = add(noise_source(secure_generator()))
    tasks["secure noise"] = add(noise_source(secure_generator(), secure=True))
    tasks["torch"] = lambda: [torch.normal(0.0, 1.0, total.shape) for total in totals]
    milliseconds = medians(tasks, repeats)
    return {
        "case": name,
        "weights": CLASSES * (features + 1),
        "batch": batch,
        **{f"{key}_ms": value for key, value in milliseconds.items()},
        "share": milliseconds["noise"] / milliseconds["with"],
        "secure_share": milliseconds["secure noise"] / milliseconds["secure"],
    }


def medians(tasks: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median milliseconds of one thread, the tasks taking turns so that a busy machine slows all of them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for round_number in range(repeats + 1):
        for name, task in tasks.items():
            start = time.process_time()
            task()
            if round_number:  # the first round warms up
                seconds[name].append(time.process_time() - start)
    return {name: 1e3 * statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    titles = ("case", "weights", "batch", "step ms", "noise ms", "share", "secure", "torch ms")
    print("{:20} {:>8} {:>6} {:>8} {:>9} {:>7} {:>7} {:>9}".format(*titles))
    for case in CASES:
        row = measure(*case, arguments.repeats)
        rows.append(row)
        print(
            f"{row['case']:20} {row['weights']:8} {row['batch']:6} {row['with_ms']:8.1f} {row['noise_ms']:9.2f} "
            f"{row['share']:7.1%} {row['secure_share']:7.1%} {row['torch_ms']:9.2f}",
            flush=True,
        )
    if arguments.json:
        about = {"threads": 1, "repeats": arguments.repeats, "machine": platform.machine(), "torch": torch.__version__}
        arguments.json.write_text(json.dumps({"about": about, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
