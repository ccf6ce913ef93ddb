"""One clipped vector for each owner: the weighted sum of its records' gradients, as those of a sequence's positions.

Owners are taken together that need about as much room, each filled up with absent records to 1, 2, 3, 4, 6, 8, 12, 16,
…, so that an owner's numbers depend on its own records alone, and on nobody else's being in the batch.

Formal guarantee: an owner's part of the sum is clip(Σ_j w_j ∇ℓ_j) over its records, of norm at most C. It is the very
vector that was measured: weights come before the norm. An owner whose vector is not finite adds zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cords_dp.noise.clipping import row_norms
from cords_dp.training.gradients.contributions import GradientRows, Images, Part, Positions, Words, part_of
from cords_dp.training.gradients.mode import Clipping


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


def bundles(owners: Tensor, weights: Tensor) -> list[Bundle]:
    """Put the owners of a piece together by size. ``owners``: whose each record is, those of one owner in a row."""
    _, counts = torch.unique_consecutive(owners, return_counts=True)
    starts = counts.cumsum(0) - counts
    powers = torch.pow(2, torch.ceil(torch.log2(counts.double()))).long()
    rooms = torch.where(4 * counts <= 3 * powers, 3 * powers // 4, powers)
    made = []
    for room in rooms.unique().tolist():
        here = rooms == room
        offsets = torch.arange(room, device=owners.device).expand(int(here.sum()), room)
        present = offsets < counts[here, None]
        places = starts[here, None] + torch.where(present, offsets, torch.zeros_like(offsets))
        made.append(Bundle(places, torch.where(present, weights[places], torch.zeros_like(weights[:1]))))
    return made


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
        return GradientRows(bundle.weighted(part.rows).sum(dim=1))
    if isinstance(part, Positions):
        return part_of([Positions(bundle.of(part.a).flatten(1, 2), bundle.weighted(part.g).flatten(1, 2))])
    if isinstance(part, Words):
        words = bundle.of(part.words).flatten(1, 2)
        return part_of([Words(words, bundle.weighted(part.g).flatten(1, 2), part.vocabulary)])
    a, g = part.a, part.g
    return part_of(
        [Images(bundle.of(a).flatten(0, 1), bundle.weighted(g).flatten(0, 1), len(bundle.places), part.geometry)]
    )


def owner_rows(gradients: Tensor, bundle: Bundle) -> Tensor:
    """Return each owner's weighted sum of its records' gradients of one weight."""
    return bundle.weighted(gradients).sum(dim=1)


def void(x: Tensor) -> Tensor:
    """Mark records that are not finite: they count with weight 0, and the others of their owners as they are."""
    if not x.is_floating_point() or bool(torch.isfinite(x.sum())):  # one pass: a NaN or an infinity would show
        return torch.zeros(len(x), dtype=torch.bool, device=x.device)
    return ~torch.isfinite(row_norms(x))
