"""Poisson batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cords_dp.data.record_set import records_at
from cords_dp.errors import MechanismError
from cords_dp.models.losses import kinds
from cords_dp.selection.pool import Pool

Batch = tuple[Tensor, Tensor, Tensor]


def poisson_batches(
    dataset: Dataset,
    pool: Pool,
    *,
    rate: float,
    steps: int,
    rng: np.random.Generator,
) -> Iterator[Batch]:
    """Yield ``steps`` batches of (x, y, weight), each record of the pool falling into each with probability ``rate``.

    A record that was drawn stays with its own chance, by a fresh coin: it falls into a batch with probability
    ``rate · chance``. Such a step is still an event of the given rate (`selection.match`).

    Formal guarantee: the inclusions are independent over records and steps and are drawn in float64 from a generator
    that nothing else uses. The number of batches is a public constant. Batches may be empty. Several processes each
    draw from their own records, by generators of their own: a batch is what all of them have drawn.

    Where the pool has a likelihood, ``y`` says both a record's label and its predicted class (`models.losses`).
    """
    if not 0 < rate <= 1:
        raise MechanismError(f"a sampling rate lies in (0, 1], got {rate!r}")
    rates = rate if pool.chances is None else rate * pool.chances
    weights = None if pool.weights is None else torch.from_numpy(pool.weights.astype(np.float32))
    for _ in range(steps):
        drawn = np.flatnonzero(rng.random(len(pool)) < rates)
        x, y = records_at(dataset, pool.indices[drawn])
        if pool.likelihood is not None and pool.predicted is not None:
            y = kinds(y, torch.from_numpy(pool.predicted[drawn]), pool.likelihood.classes)
        yield x, y, torch.ones(len(y)) if weights is None else weights[torch.from_numpy(drawn)]
