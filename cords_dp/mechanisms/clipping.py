"""Bounding what one record contributes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cords_dp.late import late_module

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:  # planning needs no torch
    torch = late_module("torch")


_TILE = 1 << 18  # elements turned into float64 at a time: they stay in the processor's cache


def finite_or_zero(rows: Tensor) -> Tensor:
    """Replace every row that holds a NaN or an infinity by zeros.

    Clipping an infinite vector gives NaN, and one NaN in a sum destroys all of it, so a record with
    a non-finite quantity contributes nothing. The rule looks at one row at a time.
    """
    if bool(torch.isfinite(rows.sum())):  # one pass; a NaN or an infinity would show, so nothing is to be replaced
        return rows
    return keep_rows(rows, torch.isfinite(rows).flatten(1).all(dim=1))


def keep_rows(rows: Tensor, kept: Tensor) -> Tensor:
    """Rows where ``kept`` holds, zeros elsewhere, also where the row is NaN (0 · NaN would be NaN)."""
    return torch.where(kept.reshape(-1, *[1] * (rows.dim() - 1)), rows, torch.zeros_like(rows))


def row_norms(rows: Tensor) -> Tensor:
    """The L2 norm of each row, in float64 whatever the rows are.

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
    """What `clip_factors` has to leave room for where `row_norms` measured vectors of so many elements in ``dtype``.

    The norm's own error, at most n · 2⁻⁵³, counted twice; and two roundings in ``dtype``, half an eps each, while the
    clipped vector is formed, counted four times over.
    """
    return 4 * torch.finfo(dtype).eps + elements * torch.finfo(torch.float64).eps


def clip_factors(norms: Tensor, max_norm: float, *, normalise: bool = False, slack: float = 1e-6) -> Tensor:
    """Factors that bring vectors of the given norms to norm at most ``max_norm``.

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
    """Non-negative factors in a shorter type, never larger than they were: rounding to nearest may lift a bound."""
    rounded = factors.to(dtype)
    below = torch.nextafter(rounded, torch.zeros_like(rounded))
    return torch.where(rounded.to(factors.dtype) > factors, below, rounded)
