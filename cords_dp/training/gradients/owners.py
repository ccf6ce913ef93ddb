"""One clipped vector for each owner: the weighted sum of its records' gradients, as those of a sequence's positions.

Sums of rows are formed owner by owner (`torch`'s bags of an embedding: one record after the other). Where more than a
sum is needed, owners are taken together that need about as much room, each filled up with absent records to 1, 2, 3, 4,
6, 8, 12, 16, …. Either way an owner's numbers depend on its own records alone, and on nobody else's being in the batch.

Formal guarantee: an owner's part of the sum is clip(Σ_j w_j ∇ℓ_j) over its records, of norm at most C. It is the very
vector that was measured: weights come before the norm. An owner whose vector is not finite adds zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cords_dp.noise.clipping import row_norms
from cords_dp.training.gradients.contributions import GradientRows, Images, Part, Positions, Words, part_of
from cords_dp.training.gradients.mode import Clipping

_ROOMS = np.sort(np.concatenate([2 ** np.arange(31), 3 * 2 ** np.arange(30)]))


@dataclass(frozen=True)
class Rows:
    """Where the records of each owner stand in a piece: ``counts`` in a row, from ``starts`` on. One place an owner."""

    starts: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, owners: Tensor) -> Rows:
        """Find them. ``owners``: whose each record is, those of one owner in a row."""
        changes = np.flatnonzero(np.diff(owners.cpu().numpy())) + 1
        starts = np.concatenate([[0], changes])
        return cls(starts, np.diff(starts, append=len(owners)))

    def where(self, these: np.ndarray) -> Rows:
        """Return some of the owners."""
        return Rows(self.starts[these], self.counts[these])


@dataclass(frozen=True)
class Bundle:
    """Owners of about as many records: the ``places`` of their records in a piece, and the records' ``weights``.

    Both are of shape (owners, t). An absent record has the weight 0, and the place of its owner's first one.
    """

    places: Tensor
    weights: Tensor

    def of(self, values: Tensor) -> Tensor:
        """Arrange records by owner: (owners, t, …) of (records, …)."""
        return values[self.places]

    def weighted(self, values: Tensor) -> Tensor:
        """Arrange them likewise, times the records' weights."""
        weights = self.weights.to(values.dtype).reshape(*self.weights.shape, *[1] * (values.dim() - 1))
        return self.of(values) * weights

    def sums(self, values: Tensor) -> Tensor:
        """Return each owner's weighted sum: (owners, …) of (records, …). Nothing is arranged for it."""
        rows = values.reshape(len(values), math.prod(values.shape[1:]))
        sums = F.embedding_bag(self.places, rows, mode="sum", per_sample_weights=self.weights.to(rows.dtype))
        return sums.view(len(sums), *values.shape[1:])


def bundles(owners: Rows, weights: Tensor) -> list[Bundle]:
    """Put the owners of a piece together by size. ``weights``: of all records of the piece."""
    rooms = _ROOMS[np.searchsorted(_ROOMS, owners.counts)]
    made = []
    for room in sorted(set(rooms.tolist())):
        here = owners.where(rooms == room)
        offsets = np.arange(room)
        absent = offsets >= here.counts[:, None]
        places = torch.from_numpy(here.starts[:, None] + np.where(absent, 0, offsets)).to(weights.device)
        made.append(Bundle(places, weights[places].masked_fill_(torch.from_numpy(absent).to(weights.device), 0.0)))
    return made


def products_by_owner(a: Tensor, r: Tensor, owners: Rows) -> Tensor:
    """Return Σ_j r_j ⊗ a_j over each owner's records: (owners, p, D) of r (records, p) and a (records, D).

    A bag is one row of an owner's product. Those of one owner follow one another, so that its records stay in the
    processor's cache, and nothing is arranged or filled up.
    """
    p = r.shape[1]
    counts = np.repeat(owners.counts, p)
    offsets = counts.cumsum() - counts
    records = np.arange(counts.sum()) + np.repeat(np.repeat(owners.starts, p) - offsets, counts)
    entries = records * p + np.repeat(np.tile(np.arange(p), len(owners.counts)), counts)
    places, starts, entries = (torch.from_numpy(part).to(a.device) for part in (records, offsets, entries))
    sums = F.embedding_bag(places, a, starts, mode="sum", per_sample_weights=r.flatten()[entries])
    return sums.view(-1, p, a.shape[1])


def clipped_owner_sums(parts: Sequence[Part], bundle: Bundle, clipping: Clipping, dtype: torch.dtype) -> list[Tensor]:
    """Return Σ clip(owner's vector) over a bundle. ``parts``: each weight's part of the records' gradients."""
    joined = [by_owner(part, bundle) for part in parts]
    norms = torch.linalg.vector_norm(torch.stack([part.lengths() for part in joined], dim=1), dim=1)
    finite = torch.isfinite(norms)
    factors = clipping.factors(norms, torch.ones_like(norms), dtype)
    kept = None if bool(finite.all()) else finite
    return [part.clipped_sum(factors, kept) for part in joined]


def by_owner(part: Part, bundle: Bundle) -> Part:
    """Return one weight's part of the owners' vectors, from its part of the records' gradients."""
    if isinstance(part, GradientRows):
        return GradientRows(bundle.sums(part.rows))
    if isinstance(part, Positions):
        return part_of([Positions(bundle.of(part.a).flatten(1, 2), bundle.weighted(part.g).flatten(1, 2))])
    if isinstance(part, Words):
        words = bundle.of(part.words).flatten(1, 2)
        return part_of([Words(words, bundle.weighted(part.g).flatten(1, 2), part.vocabulary)])
    a, g = part.a, part.g
    return part_of(
        [Images(bundle.of(a).flatten(0, 1), bundle.weighted(g).flatten(0, 1), len(bundle.places), part.geometry)]
    )


def void(x: Tensor) -> Tensor:
    """Mark records that are not finite: they count with weight 0, and the others of their owners as they are."""
    if not x.is_floating_point() or bool(torch.isfinite(x.sum())):  # one pass: a NaN or an infinity would show
        return torch.zeros(len(x), dtype=torch.bool, device=x.device)
    return ~torch.isfinite(row_norms(x))
