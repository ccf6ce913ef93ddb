"""Small heads on frozen features: what a private run trains where the features are somebody else's work.

``features=None`` takes records as they are, where their source knows a length that none exceeds (``input_norm``, a
table), and scales each to mean square 1 by itself elsewhere (embeddings). A head takes raw records or ready features;
it tells them apart by their shape, which `frozen.Features` keeps different.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cords_dp.models.features import Features, unit_mean_square

if TYPE_CHECKING:
    from cords_dp.data.half_rows import HalfRows


class _Head(nn.Module):
    """Reads records or ready features as rows whose length is at most ``row_norm``."""

    linear: nn.Linear

    def __init__(self, input_shape: Sequence[int], features: Features | None, input_norm: float | None):
        super().__init__()
        if features is not None:
            self.input_transform = features
        self.features = math.prod(features.feature_shape if features is not None else input_shape)
        self._as_they_are = features is None and input_norm is not None
        self.row_norm = input_norm if features is None and input_norm is not None else self.features**0.5

    def rows(self, x: Tensor) -> Tensor:
        transform = getattr(self, "input_transform", None)
        if transform is None:
            return x.flatten(1) if self._as_they_are else unit_mean_square(x)
        if tuple(x.shape[1:]) == transform.input_shape:
            x = transform(x)
        return x.flatten(1).to(self.linear.weight.dtype)

    def get_embedding_dim(self) -> int:
        return self.linear.in_features


class LinearHead(_Head):
    """A linear classifier on frozen features. The last layer's input is the feature vector itself.

    Ready features may come in the half precision that they are stored in (``reads_half``).
    """

    reads_half = True

    def __init__(
        self,
        num_classes: int,
        input_shape: Sequence[int],
        features: Features | None = None,
        input_norm: float | None = None,
    ):
        super().__init__(input_shape, features, input_norm)
        self.input_norm = self.row_norm
        self.linear = nn.Linear(self.features, num_classes)
        nn.init.zeros_(self.linear.weight)  # a linear model needs no symmetry breaking
        nn.init.zeros_(self.linear.bias)

    def embed(self, x: Tensor) -> Tensor:
        return self.rows(x)

    def stored_rows(self, x: Tensor) -> HalfRows | None:
        """Ready features in half precision, to be read where they lie; None if ``x`` is something else."""
        transform = getattr(self, "input_transform", None)
        ready = transform is not None and tuple(x.shape[1:]) != transform.input_shape
        if not (ready and x.dtype == torch.float16 and x.device.type == self.linear.weight.device.type == "cpu"):
            return None
        from cords_dp.data.half_rows import HalfRows  # late: it compiles

        return HalfRows(x.contiguous())

    def forward(self, x: Tensor, last: bool = False, freeze: bool = False) -> Any:
        if not last and not torch.is_grad_enabled() and (stored := self.stored_rows(x)) is not None:
            return stored.products(self.linear.weight)[0] + self.linear.bias
        embedding = self.embed(x)
        out = self.linear(embedding)
        return (out, embedding) if last else out


class MLPHead(_Head):
    """One hidden layer of tanh units on frozen features."""

    def __init__(
        self,
        num_classes: int,
        input_shape: Sequence[int],
        features: Features | None = None,
        input_norm: float | None = None,
        width: int = 64,
    ):
        super().__init__(input_shape, features, input_norm)
        self.hidden = nn.Linear(self.features, width)
        self.linear = nn.Linear(width, num_classes)
        # Noise reaches the logits through both layers: by the √width of the tanh units at most, and by the length of
        # a row through output weights whose rows have length √(1/3) at first.
        self.input_norm = (width + self.row_norm**2 / 3) ** 0.5

    def forward(self, x: Tensor, last: bool = False, freeze: bool = False) -> Any:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not freeze):
            embedding = torch.tanh(self.hidden(self.rows(x)))
        out = self.linear(embedding)
        return (out, embedding) if last else out
