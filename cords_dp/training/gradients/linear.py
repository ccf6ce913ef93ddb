"""Gradients in closed form, for models that are one linear layer on a fixed embedding.

A record's gradient is r ⊗ [a; 1], with r the gradient in the logits and a what the layer reads, so its norm is
‖r‖·√(‖a‖² + 1) and the clipped sum is one matrix product. An owner's is the sum of its records', whose norm comes from
the matrix itself or from inner products, whichever is less work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from cords_dp.errors import UnsupportedModelError
from cords_dp.noise.clipping import finite_or_zero, float64_sum, keep_rows, row_norms
from cords_dp.training.gradients.contributions import GradientRows, Positions
from cords_dp.training.gradients.mode import Clipping, GradientMode, LossPerExample, Piece
from cords_dp.training.gradients.owners import Rows, bundles, products_by_owner

_HUGE = 1e20  # r · C/‖r‖‖a‖ has to stay far above float32's smallest numbers, where rounding is no longer relative
_MOST_ROWS = 2  # owners' gradients are formed where they take at most so many times the memory of their records
_FEW = 1024  # numbers of a gradient


class LinearHeads(GradientMode):
    """Closed form for `LinearHead`, `ScatterLinear` and models like them."""

    name = "linear"
    rank = 0
    averages_views = False
    sums_owners = True

    def prepare(self, model: nn.Module) -> nn.Module:
        layer = getattr(model, "linear", None)
        if not isinstance(layer, nn.Linear) or layer.bias is None or not hasattr(model, "embed"):
            raise UnsupportedModelError(
                "closed-form gradients need a model with embed() and one linear layer with bias"
            )
        if {id(p) for p in model.parameters()} != {id(layer.weight), id(layer.bias)}:
            raise UnsupportedModelError("closed-form gradients need a model whose only weights are its linear layer's")
        return model

    def piece_size(self, model: nn.Module, x: Tensor, wanted: int) -> int:
        """Take all records at once where rows are read where they lie: they take no memory."""
        return max(1, len(x)) if _stored(model, x) is not None else wanted

    @torch.no_grad()
    def clipped_sums(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        criterion: LossPerExample,
        piece: Piece,
        clipping: Clipping,
    ) -> list[Tensor]:
        layer: nn.Linear = model.linear  # type: ignore[assignment]
        if piece.owners is not None:
            inputs = model.embed(piece.x)  # type: ignore[operator]
            r = _in_the_logits(layer, inputs @ layer.weight.T, criterion, piece.y)
            of_owners = _owner_sums(layer, r, inputs, piece, clipping)
            return [of_owners[p] for p in parameters]
        stored = _stored(model, piece.x)
        rows = _DenseRows(model.embed(piece.x)) if stored is None else stored  # type: ignore[operator]
        products, lengths = rows.products(layer.weight)
        r = _in_the_logits(layer, products, criterion, piece.y)
        norms = torch.where(lengths < _HUGE, row_norms(r) * lengths.square().add(1).sqrt(), math.inf)
        factors = clipping.factors(norms, piece.weights, r.dtype)
        if not bool(torch.isfinite(norms).all()):
            r = keep_rows(r, torch.isfinite(norms))
        clipped = r * factors[:, None]
        sums = {layer.weight: rows.weighted_sum(clipped), layer.bias: rows.plain_sum(clipped)}
        return [sums[p] for p in parameters]


def _in_the_logits(layer: nn.Linear, products: Tensor, criterion: LossPerExample, y: Tensor) -> Tensor:
    """Return each record's gradient in the logits."""
    with torch.enable_grad():
        logits = (products + layer.bias).detach().requires_grad_()
        return torch.autograd.grad(criterion(logits, y).sum(), logits)[0]


def _owner_sums(layer: nn.Linear, r: Tensor, inputs: Tensor, piece: Piece, clipping: Clipping) -> dict[Tensor, Tensor]:
    """Σ clip(Σ_j w_j r_j ⊗ [a_j; 1]) over owners; a record that is not finite has no part in its owner's vector."""
    assert piece.owners is not None
    a, r = finite_or_zero(torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)), finite_or_zero(r)
    total = torch.zeros(r.shape[1], a.shape[1], dtype=torch.float64, device=r.device)
    for part in _owner_parts(a, r, piece.weights, Rows.of(piece.owners)):
        norms = part.lengths()
        kept = torch.isfinite(norms)
        factors = clipping.factors(norms, torch.ones_like(norms), r.dtype)
        total += part.clipped_sum(factors, None if bool(kept.all()) else kept).view_as(total)
    return {layer.weight: total[:, :-1], layer.bias: total[:, -1]}


def _owner_parts(a: Tensor, r: Tensor, weights: Tensor, owners: Rows) -> Iterator[GradientRows | Positions]:
    """Yield the vectors of all owners, in whichever form is less work for owners of their size."""
    rows = _rows_are_cheaper(owners.counts, a.shape[1], r.shape[1])
    if rows.any():
        yield GradientRows(products_by_owner(a, r * weights.to(r.dtype)[:, None], owners.where(rows)))
    if not rows.all():
        for bundle in bundles(owners.where(~rows), weights):
            yield Positions(bundle.of(a), bundle.weighted(r))


def _rows_are_cheaper(records: np.ndarray, inputs: int, outputs: int) -> np.ndarray:
    """Tell whether forming owners' gradients is less work than their records' inner products.

    It looks at one owner's number of records at a time. A gradient of few numbers is formed in any case where there is
    a sum to form: all of them then take one pass, whatever the sizes of their owners.
    """
    numbers = inputs * outputs
    return (numbers <= _MOST_ROWS * records * (inputs + outputs)) | ((records > 1) & (numbers <= _FEW))


class InputRows(Protocol):
    """The inputs of a linear layer."""

    def products(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return each row times the weights, and its float64 length, never understated; not finite if a row is not."""

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return Σ weight · row, a row for each column of weights. Rows that are not finite (weight 0) count as 0."""

    def plain_sum(self, weights: Tensor) -> Tensor:
        """Return Σ weight, in float64: what a row of ones would be given."""


@dataclass(frozen=True)
class _DenseRows:
    rows: Tensor

    def products(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return self.rows @ weight.T, row_norms(self.rows)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        rows = self.rows
        if not bool(torch.isfinite(rows.sum())):  # one NaN shows in the sum; 0 · NaN would be NaN
            rows = finite_or_zero(rows)
        return float64_sum(weights, rows)

    def plain_sum(self, weights: Tensor) -> Tensor:
        return float64_sum(weights, weights.new_ones(len(weights), 1)).squeeze(1)


def _stored(model: nn.Module, x: Tensor) -> InputRows | None:
    """Return stored features where they lie, if the model reads such."""
    return model.stored_rows(x) if hasattr(model, "stored_rows") else None  # type: ignore[operator]
