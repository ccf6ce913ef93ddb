"""Bounding what one record contributes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_TILE = 1 << 18  # elements turned into float64 at a time: they stay in the processor's cache
SUM_BLOCK = 256  # records whose parts are added up in one go; the sums of such blocks are added after that
_MOST_THREADS = 1024
_PROVED_BATCH = 2**19


def finite_or_zero(rows: Tensor) -> Tensor:
    """Replace every row that holds a NaN or an infinity by zeros.

    Clipping an infinite vector gives NaN, and one NaN in a sum destroys all of it, so a record with
    a non-finite quantity contributes nothing. The rule looks at one row at a time.
    """
    if bool(torch.isfinite(rows.sum())):  # one pass; a NaN or an infinity would show, so nothing is to be replaced
        return rows
    return keep_rows(rows, torch.isfinite(rows).flatten(1).all(dim=1))


def keep_rows(rows: Tensor, kept: Tensor) -> Tensor:
    """Return rows where ``kept`` holds and zeros elsewhere, also where the row is NaN (0 · NaN would be NaN)."""
    return torch.where(kept.reshape(-1, *[1] * (rows.dim() - 1)), rows, torch.zeros_like(rows))


def row_norms(rows: Tensor) -> Tensor:
    """Return the L2 norm of each row, in float64 whatever the rows are.

    Formal guarantee: for rows of n numbers in float32 or less the relative error is at most n · 2⁻⁵³, in whatever order
    they are added: their squares are exact in float64 and cannot overflow. In float32 it is thousands of times larger
    than what clipping leaves room for, and it understates. A row with NaN or infinity has such a norm.
    """
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    if flat.device.type != "cpu" or flat.dtype == torch.float64:
        return torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)
    width = max(1, min(flat.shape[1], _TILE))
    height = max(1, _TILE // width)
    parts = [
        torch.stack([torch.linalg.vector_norm(tile.double(), dim=1) for tile in band.split(width, dim=1)], dim=1)
        for band in flat.split(height)
    ]
    return torch.linalg.vector_norm(torch.cat(parts), dim=1)


def rounding_slack(elements: int, dtype: torch.dtype) -> float:
    """Return the room that `clip_factors` must leave for vectors of so many elements in ``dtype``, by `row_norms`.

    The norm's own error, at most n · 2⁻⁵³, counted twice; and two roundings in ``dtype``, half an eps each, while the
    clipped vector is formed, counted four times over.
    """
    return 4 * torch.finfo(dtype).eps + elements * torch.finfo(torch.float64).eps


def float64_sum(weights: Tensor, rows: Tensor) -> Tensor:
    """Return ``weightsᵀ · rows`` in float64: n×k weights and n rows of any shape give k sums of that shape.

    Formal guarantee: with weights and rows in float32 every product is exact, and no number passes through more
    additions than `sum_slack` counts: blocks of `SUM_BLOCK` rows are added up, then their sums.
    """
    total = torch.zeros(weights.shape[1], math.prod(rows.shape[1:]), dtype=torch.float64, device=rows.device)
    for some, parts in zip(weights.split(SUM_BLOCK), rows.flatten(1).split(SUM_BLOCK), strict=True):
        factors, width = some.double().T, max(1, _TILE // len(parts))
        for into, columns in zip(total.split(width, dim=1), parts.split(width, dim=1), strict=True):
            into.addmm_(factors, columns.double())
    return total.view(-1, *rows.shape[1:])


def sum_slack(batch_size: int, piece: int) -> float:
    """Return how much further than C one record can move a sum of clipped parts, as a share of C, by rounding alone.

    Without the record all other parts are the same numbers, but their sum may round otherwise. Sums are in float64 and
    by blocks (`float64_sum`), so that of B parts of norm at most C no number passes through more than
    a = 256 + B/b + threads + 1 additions, b being the size of a block, each of which errs by 2⁻⁵³ of the sum of sizes
    so far. Hence the sum errs by at most a·2⁻⁵³·B·C in norm, with the record and without; a hundredth is added for
    terms of second order. B is counted as 2¹⁹ at least and as twice the expected batch: a Poisson batch of more than
    twice 2¹⁸ expected records has a chance below e⁻¹⁰⁰⁰⁰⁰.
    """
    most = max(_PROVED_BATCH, 2 * batch_size)
    additions = SUM_BLOCK + most / min(SUM_BLOCK, piece) + 1 + _MOST_THREADS
    return 2 * 1.01 * additions * 2.0**-53 * most


def clip_factors(norms: Tensor, max_norm: float, *, normalise: bool = False, slack: float = 1e-6) -> Tensor:
    """Return factors that bring vectors of the given norms to norm at most ``max_norm``.

    Formal guarantee: ``factor · norm · (1 + slack) ≤ max_norm`` for every non-negative norm, up to the rounding of the
    norms' own type. ``slack`` absorbs errors of the norm and of the product. Norms that are not
    finite get factor 0 (and the caller must not multiply by the vector itself then).
    With ``normalise`` short vectors are lengthened too ("automatic" clipping), the 0.01 keeping
    vectors near zero from being blown up into pure direction.
    """
    padded = norms * (1 + slack)
    if normalise:
        factors = max_norm / (padded + 0.01)
    else:
        factors = (max_norm / padded.clamp_min(torch.finfo(norms.dtype).tiny)).clamp(max=1.0)
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(norms))


def rounded_down(factors: Tensor, dtype: torch.dtype) -> Tensor:
    """Round non-negative factors to a shorter type, never up: rounding to nearest may lift a bound."""
    rounded = factors.to(dtype)
    below = torch.nextafter(rounded, torch.zeros_like(rounded))
    return torch.where(rounded.to(factors.dtype) > factors, below, rounded)
