"""Last-layer gradients of many records without ever building them.

The gradient of a loss with respect to a last linear layer is an outer product, ``g = r ⊗ [1; h]``, where
``r`` is the loss gradient at the logits (softmax − one-hot for cross-entropy) and ``h`` the layer's input. Norms,
inner products and sums follow from ``r`` and ``h``; the n × classes·(dim+1) matrix is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import torch
from torch import Tensor, nn

from cords_dp.data.half_rows import HalfRows
from cords_dp.data.record_set import RecordSet, sequential_batches
from cords_dp.noise.clipping import clip_factors, finite_or_zero, row_norms

LossPerExample = Callable[["Tensor", "Tensor"], "Tensor"]
_BATCH = 1024
_SUMMED = 512  # rows turned into float64 at a time: they stay in the processor's cache


@dataclass(frozen=True)
class LastLayerGradients:
    """Gradients ``g_j = r_j ⊗ a_j`` of n records: ``r`` is n×classes, ``a`` is n×(1+dim), or n×1 for biases only."""

    r: Tensor
    a: Tensor

    def __len__(self) -> int:
        return len(self.r)

    @property
    def width(self) -> int:
        """1 + dim: as many columns as the layer has weights and a bias."""
        return self.a.shape[1]

    def rows(self, index: Tensor) -> LastLayerGradients:
        return LastLayerGradients(self.r[index], self.a[index])

    def with_unit_inputs(self) -> LastLayerGradients:
        """Scale the last layer's input to norm 1, each record by itself."""
        return LastLayerGradients(self.r, self.a / self.a.norm(dim=1, keepdim=True).clamp_min(1e-12))

    def with_residuals(self, r: Tensor) -> LastLayerGradients:
        """Return the same records at other logits. What is known about their inputs stays known."""
        other = replace(self, r=r)
        other.__dict__.update({k: self.__dict__[k] for k in ("_input_norms", "_finite_inputs") if k in self.__dict__})
        return other

    @property
    def present(self) -> Tensor:
        """Which records have an input, whose first number is never 0; null ones and those not finite have none."""
        return self.a[:, 0] != 0

    def without(self, index: Tensor) -> LastLayerGradients:
        """Make some records null: no residual, no input."""
        r, a = self.r.clone(), self.a.clone()
        r[index], a[index] = 0.0, 0.0
        return replace(self, r=r, a=a)

    def factors(self, clip: float) -> Tensor:
        """Return factors that clip each record's gradient to norm ``clip``; 0 for a record that is not finite."""
        return clip_factors(row_norms(self.r) * self._input_norms, clip).to(self.r.dtype)

    @cached_property
    def _input_norms(self) -> Tensor:
        return row_norms(self.a)  # in float64; a pass over all inputs, which are the same in every greedy round

    def scores(self, v: Tensor, clip: float) -> Tensor:
        """Compute ``u_j = ⟨clip(g_j), v⟩`` for a classes×(1+dim) matrix ``v``; |u_j| ≤ clip·‖v‖."""
        inner = (self.r * self.products(v)).sum(dim=1)
        return finite_or_zero((self.factors(clip) * inner)[:, None])[:, 0]

    def clipped_sum(self, clip: float) -> Tensor:
        """Compute ``Σ_j clip(g_j)``, classes×(1+dim), in float64. One record's part has norm at most ``clip``.

        Rounded only after its noise: rounding a long sum moves it by more than the slack.
        """
        return self._weighted_sum(finite_or_zero(self.r * self.factors(clip)[:, None]).double())

    def products(self, v: Tensor) -> Tensor:
        """Return each record's input times the rows of a classes×(1+dim) matrix."""
        return self.a @ v.T

    def _weighted_sum(self, weights: Tensor) -> Tensor:
        total = weights.new_zeros(weights.shape[1], self.a.shape[1])
        for part, inputs in zip(weights.split(_SUMMED), self._finite_inputs.split(_SUMMED), strict=True):
            total += part.T @ inputs.double()  # float32 would lose records in a long sum
        return total

    @cached_property
    def _finite_inputs(self) -> Tensor:
        return finite_or_zero(self.a)


@dataclass(frozen=True)
class StoredGradients(LastLayerGradients):
    """Gradients of a linear head on stored features, which are the last layer's inputs and read where they lie.

    ``a`` is the column of ones.
    """

    stored: HalfRows

    @property
    def width(self) -> int:
        return 1 + self.stored.shape[1]

    def rows(self, index: Tensor) -> LastLayerGradients:
        return StoredGradients(self.r[index], self.a[index], self.stored.at(index))

    def with_unit_inputs(self) -> LastLayerGradients:
        dense = finite_or_zero(torch.cat([self.a, self.stored.dense()], dim=1))
        return LastLayerGradients(self.r, dense).with_unit_inputs()

    @cached_property
    def _input_norms(self) -> Tensor:
        _, lengths = self.stored.products(self.r.new_zeros(1, self.stored.shape[1]))
        return lengths.square().add(1).sqrt()

    def products(self, v: Tensor) -> Tensor:
        return finite_or_zero(self.stored.products(v[:, 1:])[0] + v[:, 0])

    def _weighted_sum(self, weights: Tensor) -> Tensor:
        return torch.cat([weights.sum(dim=0)[:, None], self.stored.weighted_sum(weights)], dim=1)


@dataclass(frozen=True)
class LastLayer:
    """What the last layer sees of many records: gradients as factors, logits, labels."""

    gradients: LastLayerGradients
    logits: Tensor
    labels: Tensor

    def rows(self, index: Tensor) -> LastLayer:
        return LastLayer(self.gradients.rows(index), self.logits[index], self.labels[index])


def last_layer(
    model: nn.Module,
    loss: LossPerExample,
    dataset: RecordSet,
    *,
    linear_layer: bool,
    device: str,
    projection: int | None = None,
) -> LastLayer:
    """Compute gradients, logits and labels of every record at the model's current weights.

    ``linear_layer`` False leaves the layer's biases only, as CORDS has it. With ``projection`` the last layer's input
    is multiplied by a public random matrix to that many dimensions, which nearly keeps inner products.
    """
    model.eval()  # dropout would make a record's score depend on chance
    if linear_layer and projection is None and hasattr(model, "stored_rows"):
        stored = dataset.half_rows()
        if stored is not None and device == "cpu":
            with torch.no_grad():
                return _of_stored(model, loss, dataset, stored)
    held = len(dataset)
    columns: list[Tensor] = []  # each in one piece: small pieces between large ones would break up the memory
    start = 0
    for x, y in sequential_batches(dataset, _BATCH) if held else [_made_up(dataset)]:
        with torch.no_grad():
            batch = _of_batch(model, loss, x.to(device), y.to(device), linear_layer, projection)
        columns = columns or [part.new_empty((max(held, 1), *part.shape[1:])) for part in batch]
        for column, part in zip(columns, batch, strict=True):
            column[start : start + len(y)] = part
        start += len(y)
    r, a, logits, labels = (column[:held] for column in columns)
    return LastLayer(LastLayerGradients(r, a), logits, labels)


def _made_up(dataset: RecordSet) -> tuple[Tensor, Tensor]:
    """Make one record of zeros, for a process that holds none: many models cannot read an empty batch."""
    x, y = dataset.no_records()
    return x.new_zeros(1, *x.shape[1:]), y.new_zeros(1, *y.shape[1:])


def _of_batch(
    model: nn.Module, loss: LossPerExample, x: Tensor, y: Tensor, linear_layer: bool, projection: int | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if not linear_layer:
        logits = model(x)
        return finite_or_zero(logit_gradients(logits, y, loss)), logits.new_ones(len(logits), 1), logits, y
    logits, embedding = model(x, last=True, freeze=True)
    if projection is not None and projection < embedding.shape[1]:
        embedding = embedding @ _projection_matrix(embedding.shape[1], projection).to(embedding)
    inputs = embedding.new_ones(len(embedding), 1 + embedding.shape[1])
    inputs[:, 1:] = embedding
    return finite_or_zero(logit_gradients(logits, y, loss)), finite_or_zero(inputs), logits, y


def _of_stored(model: nn.Module, loss: LossPerExample, dataset: RecordSet, stored: HalfRows) -> LastLayer:
    """Pass over the features once for the logits; labels come from the dataset, which knows which are impossible."""
    layer: nn.Linear = model.linear  # type: ignore[assignment]
    products, lengths = stored.products(layer.weight)
    logits = products + layer.bias
    labels, known = dataset.labels()
    logits[~known] = torch.nan
    r = finite_or_zero(logit_gradients(logits, labels, loss))
    gradients = StoredGradients(r, logits.new_ones(len(logits), 1), stored)
    gradients.__dict__["_input_norms"] = lengths.square().add(1).sqrt()
    return LastLayer(gradients, logits, labels)


@lru_cache(maxsize=4)
def _projection_matrix(rows: int, columns: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)  # public, the same for everyone
    return torch.randn(rows, columns, generator=generator) / columns**0.5


def logit_gradients(logits: Tensor, labels: Tensor, loss: LossPerExample) -> Tensor:
    """Compute ∂ℓ/∂logits of each record. The losses are per record, so one backward pass of their sum gives all."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf, labels).sum(), leaf)
    return gradient


def moved_sum(layer: LastLayer, loss: LossPerExample, clip: float, move: Tensor | None = None) -> Tensor:
    """Compute ``Σ_j clip(g_j)`` at weights moved by ``−move``: GLISTER's greedy step. One record's part ≤ clip."""
    if move is None:
        return layer.gradients.clipped_sum(clip)
    logits = layer.logits - layer.gradients.products(move.to(layer.logits))
    return layer.gradients.with_residuals(logit_gradients(logits, layer.labels, loss)).clipped_sum(clip)


def to_norm(v: Tensor, norm: float) -> Tensor:
    """Stretch or shrink ``v`` to the given norm: the largest scores that the same sensitivity pays for."""
    length = float(v.norm())
    if not math.isfinite(length) or length == 0:
        return torch.zeros_like(v)
    return v * (norm / length)
