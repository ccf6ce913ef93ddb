"""Poisson batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cords_dp.data.record_set import records_at
from cords_dp.errors import MechanismError
from cords_dp.models.losses import kinds
from cords_dp.selection.pool import Pool

Batch = tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor]  # x, y, weights and, if any, owners


def poisson_batches(
    dataset: Dataset,
    pool: Pool,
    *,
    rate: float,
    steps: int,
    rng: np.random.Generator,
    records_per_owner: int | None = None,
) -> Iterator[Batch]:
    """Yield ``steps`` batches of (x, y, weight), each record of the pool falling into each with probability ``rate``.

    A record that was drawn stays with its own chance, by a fresh coin: it falls into a batch with probability
    ``rate · chance``. Such a step is still an event of the given rate (`studies.match`).

    Formal guarantee: the inclusions are independent over records and steps and are drawn in float64 from a generator
    that nothing else uses. The number of batches is a public constant. Batches may be empty. Several processes each
    draw from their own records, by generators of their own: a batch is what all of them have drawn.

    With ``records_per_owner`` the unit is an owner of the dataset's: see `OwnerDraw`. A batch then also says whose each
    record is.

    Where the pool has a likelihood, ``y`` says both a record's label and its predicted class (`models.losses`).
    """
    if not 0 < rate <= 1:
        raise MechanismError(f"a sampling rate lies in (0, 1], got {rate!r}")
    draw = None if records_per_owner is None else OwnerDraw(owners_of(dataset, pool), pool.chances, records_per_owner)
    rates = rate if pool.chances is None else rate * pool.chances
    weights = None if pool.weights is None else torch.from_numpy(pool.weights.astype(np.float32))
    for _ in range(steps):
        whose = None if draw is None else draw.once(rate, rng)
        drawn = np.flatnonzero(rng.random(len(pool)) < rates) if whose is None else whose.records
        x, y = records_at(dataset, pool.indices[drawn])
        if pool.likelihood is not None and pool.predicted is not None:
            y = kinds(y, torch.from_numpy(pool.predicted[drawn]), pool.likelihood.classes)
        w = torch.ones(len(y)) if weights is None else weights[torch.from_numpy(drawn)]
        if whose is None:
            yield x, y, w
        else:
            yield x, y, w * torch.from_numpy(whose.masses.astype(np.float32)), torch.from_numpy(whose.owners)


def joined(first: Batch, second: Batch) -> Batch:
    """Join two batches to one, for a step whose sum is that of both; owners must not be in both."""
    return tuple(torch.cat([a, b.to(a.dtype)]) for a, b in zip(first, second, strict=True))  # type: ignore[return-value]


def owners_of(dataset: Dataset, pool: Pool) -> np.ndarray:
    """Say whose each record of a pool is."""
    owners = getattr(dataset, "owners", None)
    if owners is None:
        raise MechanismError("the plan is one of owners, and the records do not say whose they are")
    return owners.codes[pool.indices]


class Drawn(NamedTuple):
    """Records that a step has drawn, by their places in the pool: those of one owner in a row, each with a mass."""

    records: np.ndarray
    owners: np.ndarray
    masses: np.ndarray


class OwnerDraw:
    """Draws owners, and of each at most ``cap`` of its records.

    Formal guarantee: an owner is drawn with probability ``rate``, by its own coin. Which of its records then stand for
    it is decided by coins of its own as well: a uniform choice of ``cap`` where it has more, then each stays with its
    chance. So its part of a step is a function of its records, its own randomness and released values. The records that
    were chosen have the mass 1/(number chosen), also where some of them do not stay: chances thin an owner's vector.
    Under zero-out of one owner all others are drawn as before.
    """

    def __init__(self, owners: np.ndarray, chances: np.ndarray | None, cap: int):
        if cap < 1:
            raise MechanismError("at least one record of an owner has to count")
        self._order = np.argsort(owners, kind="stable")
        _, self._starts, self._counts = np.unique(owners[self._order], return_index=True, return_counts=True)
        self._chances, self._cap = chances, cap

    def once(self, rate: float, rng: np.random.Generator) -> Drawn:
        drawn = np.flatnonzero(rng.random(len(self._counts)) < rate)
        counts = self._counts[drawn]
        few, many = drawn[counts <= self._cap], drawn[counts > self._cap]
        sizes = self._counts[few]
        offsets = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        some = chosen(self._counts[many], self._cap, rng)
        places = np.concatenate(
            [np.repeat(self._starts[few], sizes) + offsets, (self._starts[many, None] + some).ravel()]
        )
        owners = np.concatenate([np.repeat(few, sizes), np.repeat(many, self._cap)])
        masses = np.concatenate([np.repeat(1.0 / sizes, sizes), np.full(len(many) * self._cap, 1.0 / self._cap)])
        records = self._order[places]
        if self._chances is not None:
            stay = rng.random(len(records)) < self._chances[records]
            records, owners, masses = records[stay], owners[stay], masses[stay]
        return Drawn(records, owners, masses)


def chosen(counts: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Choose uniformly ``size`` of 0 … count − 1 for each count, which must be larger: Floyd's, for all at once.

    It takes as long for an owner of a million records as for one of ten.
    """
    found = np.empty((len(counts), size), dtype=np.int64)
    if not len(counts):
        return found
    for place in range(size):
        last = counts - size + place
        candidate = rng.integers(0, last + 1)
        taken = (found[:, :place] == candidate[:, None]).any(axis=1)
        found[:, place] = np.where(taken, last, candidate)
    return found
