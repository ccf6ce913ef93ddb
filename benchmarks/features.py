"""Features of images: kymatio's scattering against ours, and leaves, idle and beside a busy process, in one run.

    python benchmarks/features.py [--images 4096] [--json FILE]

Each line is a median of three. "beside": another process keeps one core busy meanwhile. kymatio has its default
settings: as many threads in each operation as there are cores, 256 images at a time. Ours includes everything that
`with_features` does: whitening, conversion to half precision, writing. ``leaves:mirrored`` is two scatterings and two
banks of filters for each image.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from cords_dp.data.feature_cache import Transform, with_features
from cords_dp.data.record_set import array_set
from cords_dp.models.leaves import Leaves
from cords_dp.models.scattering import Scattering, compile_scattering

_SHAPES = {"CIFAR-10": (3, 32, 32), "MNIST": (1, 28, 28)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    rows = []
    for name, shape in _SHAPES.items():
        images = torch.randint(0, 256, (args.images, *shape), dtype=torch.uint8)
        start = time.perf_counter()
        compile_scattering(*shape[1:])
        compiling = time.perf_counter() - start
        mirrored = Leaves(shape, "mirrored")
        mirrored(images[:2].float())  # its whitening, once on a machine
        for busy in (False, True):
            with _busy_process() if busy else contextlib.nullcontext():
                kymatio = _rate(lambda: _by_kymatio(images), args.images)  # noqa: B023
                ours = _rate(lambda: _by_us(images, Scattering(shape)), args.images)  # noqa: B023
                leaves = _rate(lambda: _by_us(images, mirrored), args.images)  # noqa: B023
            rows.append(
                {
                    "images": name,
                    "beside": "a busy process" if busy else "nothing",
                    "kymatio_per_second": round(kymatio),
                    "ours_per_second": round(ours),
                    "ratio": round(ours / kymatio, 2),
                    "seconds_for_60000": round(60_000 / ours, 1),
                    "leaves_mirrored_per_second": round(leaves),
                    "leaves_mirrored_seconds_for_60000": round(60_000 / leaves, 1),
                    "compiling_seconds": round(compiling, 1),
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))


def _rate(function: Callable[[], None], images: int) -> float:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return images / statistics.median(seconds)


def _by_kymatio(images: torch.Tensor) -> None:
    from kymatio.torch import Scattering2D

    transform = Scattering2D(J=2, shape=tuple(images.shape[2:]))
    for part in images.split(256):
        transform(part.float() / 255)


def _by_us(images: torch.Tensor, transform: Transform) -> None:
    dataset = array_set(images.numpy(), np.zeros(len(images), dtype=np.int64))
    with tempfile.TemporaryDirectory() as folder:
        with_features(dataset, transform, Path(folder), progress=False)


@contextlib.contextmanager
def _busy_process() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
