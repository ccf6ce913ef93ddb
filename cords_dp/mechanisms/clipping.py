"""Bounding what one record contributes."""

from __future__ import annotations

import torch
from torch import Tensor


def finite_or_zero(rows: Tensor) -> Tensor:
    """Replace every row that holds a NaN or an infinity by zeros.

    Clipping an infinite vector gives NaN, and one NaN in a sum destroys all of it, so a record with
    a non-finite quantity contributes nothing. The rule looks at one row at a time.
    """
    return keep_rows(rows, torch.isfinite(rows.reshape(len(rows), -1)).all(dim=1))


def keep_rows(rows: Tensor, kept: Tensor) -> Tensor:
    """Rows where ``kept`` holds, zeros elsewhere, also where the row is NaN (0 · NaN would be NaN)."""
    return torch.where(kept.reshape(-1, *[1] * (rows.dim() - 1)), rows, torch.zeros_like(rows))


def clip_factors(norms: Tensor, max_norm: float, *, normalise: bool = False) -> Tensor:
    """Factors that bring vectors of the given norms to norm at most ``max_norm``.

    Formal guarantee: ``factor · norm ≤ max_norm`` for every non-negative norm. Norms that are not
    finite get factor 0 (and the caller must not multiply by the vector itself then).
    With ``normalise`` short vectors are lengthened too ("automatic" clipping), the 0.01 keeping
    vectors near zero from being blown up into pure direction.
    """
    padded = norms * (1 + 1e-6)  # absorbs the rounding of norm, factor and product
    if normalise:
        factors = max_norm / (padded + 0.01)
    else:
        factors = (max_norm / padded.clamp_min(torch.finfo(norms.dtype).tiny)).clamp(max=1.0)
    return torch.where(torch.isfinite(norms), factors, torch.zeros_like(norms))
