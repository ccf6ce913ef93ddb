"""Poisson batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from cords_dp.distributed import World

Batch = tuple[Tensor, Tensor, Tensor]


def poisson_batches(
    dataset: Dataset,
    members: np.ndarray,
    *,
    rate: float,
    steps: int,
    rng: np.random.Generator,
    weights: Tensor | None = None,
    chances: np.ndarray | None = None,
    world: World = World(),  # noqa: B008 - frozen
) -> Iterator[Batch]:
    """``steps`` batches of (x, y, weight), each member falling into each batch with probability ``rate``.

    With ``chances`` in [0, 1] a member that was drawn stays with its own chance, by a fresh coin: it falls into a batch
    with probability ``rate · chance``. Such a step is still an event of the given rate (`selection.match`).

    Formal guarantee: the inclusions are independent over members and steps and are drawn in float64 from a
    generator that nothing else uses. The number of batches is a public constant. Batches may be empty. Of several
    processes each gets its turns of the same batches.
    """
    rates = rate if chances is None else rate * np.clip(np.nan_to_num(chances), 0.0, 1.0)
    for _ in range(steps):
        drawn = np.flatnonzero(rng.random(len(members)) < rates)[world.rank :: world.size]
        x, y = fetch(dataset, members[drawn])
        yield x, y, torch.ones(len(y)) if weights is None else weights[torch.from_numpy(drawn)]


def fetch(dataset: Dataset, indices: np.ndarray) -> tuple[Tensor, Tensor]:
    """Records by index: at once where the dataset can (``batch``), one by one elsewhere."""
    if hasattr(dataset, "batch"):
        return dataset.batch(indices)
    if len(indices) == 0:
        x, y = default_collate([dataset[0]])
        return x[:0], y[:0]
    x, y = default_collate([dataset[int(i)] for i in indices])
    return x, torch.as_tensor(y)


def sequential_batches(dataset: Dataset, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All records in order, ``size`` at a time."""
    total = len(dataset)  # type: ignore[arg-type]
    for start in range(0, total, size):
        yield fetch(dataset, np.arange(start, min(start + size, total)))
