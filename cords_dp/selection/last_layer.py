"""Last-layer gradients of many records without ever building them.

The gradient of a loss with respect to a last linear layer is an outer product, ``g = r ⊗ [1; h]``, where
``r`` is the loss gradient at the logits (softmax − one-hot for cross-entropy) and ``h`` the layer's input. Norms,
inner products and sums follow from ``r`` and ``h``; the n × classes·(dim+1) matrix is not needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from cords_dp.datasets import sequential_batches
from cords_dp.errors import ConfigError
from cords_dp.mechanisms import clip_factors, finite_or_zero
from cords_dp.mechanisms.clipping import row_norms

LossPerExample = Callable[[Tensor, Tensor], Tensor]
_BATCH = 1024


@dataclass(frozen=True)
class LastLayerGradients:
    """Gradients ``g_j = r_j ⊗ a_j`` of n records: ``r`` is n×classes, ``a`` is n×(1+dim), or n×1 for biases only."""

    r: Tensor
    a: Tensor

    def __len__(self) -> int:
        return len(self.r)

    def rows(self, index: Tensor) -> LastLayerGradients:
        return LastLayerGradients(self.r[index], self.a[index])

    def with_unit_inputs(self) -> LastLayerGradients:
        """The last layer's input scaled to norm 1, each record by itself."""
        return LastLayerGradients(self.r, self.a / self.a.norm(dim=1, keepdim=True).clamp_min(1e-12))

    def factors(self, clip: float) -> Tensor:
        """Factors that clip each record's gradient to norm ``clip``; 0 for a record that is not finite."""
        return clip_factors(row_norms(self.r) * self._input_norms, clip).to(self.r.dtype)

    @cached_property
    def _input_norms(self) -> Tensor:
        return row_norms(self.a)  # in float64; a pass over all inputs, which are the same in every greedy round

    def scores(self, v: Tensor, clip: float) -> Tensor:
        """``u_j = ⟨clip(g_j), v⟩`` for a classes×(1+dim) matrix ``v``; |u_j| ≤ clip·‖v‖."""
        inner = (self.r * (self.a @ v.T)).sum(dim=1)
        return finite_or_zero((self.factors(clip) * inner)[:, None])[:, 0]

    def clipped_sum(self, clip: float) -> Tensor:
        """``Σ_j clip(g_j)``, classes×(1+dim), in float64. One record's part has norm at most ``clip``."""
        weighted = finite_or_zero(self.r * self.factors(clip)[:, None])
        total = weighted.new_zeros(weighted.shape[1], self.a.shape[1], dtype=torch.float64)
        for part, inputs in zip(weighted.split(_BATCH), self.a.split(_BATCH), strict=True):
            total += part.double().T @ finite_or_zero(inputs).double()  # float32 would lose records in a long sum
        return total  # rounded only after its noise: rounding a long sum moves it by more than the slack


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
    dataset: Dataset,
    *,
    linear_layer: bool,
    device: str,
    projection: int | None = None,
) -> LastLayer:
    """Gradients, logits and labels of every record at the model's current weights.

    ``linear_layer`` False leaves the layer's biases only, as CORDS has it. With ``projection`` the last layer's input
    is multiplied by a public random matrix to that many dimensions, which nearly keeps inner products.
    """
    model.eval()  # dropout would make a record's score depend on chance
    residuals, inputs, logits, labels = [], [], [], []
    for x, y in sequential_batches(dataset, _BATCH):
        y = y.to(device)
        with torch.no_grad():
            out, embedding = model(x.to(device), last=True, freeze=True)
        residuals.append(finite_or_zero(logit_gradients(out, y, loss)))
        embedding = embedding.detach()
        if projection is not None and projection < embedding.shape[1]:
            embedding = embedding @ _projection_matrix(embedding.shape[1], projection).to(embedding)
        ones = out.new_ones(len(out), 1)
        inputs.append(finite_or_zero(torch.cat([ones, embedding], dim=1) if linear_layer else ones))
        logits.append(out.detach())
        labels.append(y)
    gradients = LastLayerGradients(torch.cat(residuals), torch.cat(inputs))
    return LastLayer(gradients, torch.cat(logits), torch.cat(labels))


@lru_cache(maxsize=4)
def _projection_matrix(rows: int, columns: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)  # public, the same for everyone
    return torch.randn(rows, columns, generator=generator) / columns**0.5


def logit_gradients(logits: Tensor, labels: Tensor, loss: LossPerExample) -> Tensor:
    """∂ℓ/∂logits of each record. The losses are per record, so one backward pass of their sum gives all."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf, labels).sum(), leaf)
    return gradient


def moved_sum(layer: LastLayer, loss: LossPerExample, clip: float, move: Tensor | None = None) -> Tensor:
    """``Σ_j clip(g_j)`` at last-layer weights moved by ``−move``: GLISTER's greedy step. One record's part ≤ clip."""
    if move is None:
        return layer.gradients.clipped_sum(clip)
    logits = layer.logits - layer.gradients.a @ move.to(layer.logits).T
    return LastLayerGradients(logit_gradients(logits, layer.labels, loss), layer.gradients.a).clipped_sum(clip)


def to_norm(v: Tensor, norm: float) -> Tensor:
    """``v`` stretched or shrunk to the given norm: the largest scores that the same sensitivity pays for."""
    length = float(v.norm())
    if not math.isfinite(length) or length == 0:
        return torch.zeros_like(v)
    return v * (norm / length)


def check_selection_type(kind: str) -> None:
    """CORDS' ``selection_type``: what has a proved sensitivity."""
    if kind not in ("Supervised", "PerClass"):
        raise ConfigError(
            "dss_args.selection_type",
            kind,
            "no sensitivity is proved for it under differential privacy; use 'Supervised'",
        )
