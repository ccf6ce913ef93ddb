"""Small heads on frozen features: what a private run trains where the features are somebody else's work.

``features=None`` takes records as they are, where their source knows a length that none exceeds (``input_norm``, a
table), and scales each to mean square 1 by itself elsewhere (embeddings). Where public bounds of the numbers are
declared (``data_norm``, ``bounds``), rows keep their lengths, which are at most 1 (`Bounds`). A head takes raw records
or ready features; it tells them apart by their shape, which `features.Features` keeps different.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cords_dp.errors import ConfigError
from cords_dp.models.features import Features, unit_mean_square

if TYPE_CHECKING:
    from cords_dp.data.half_rows import HalfRows


class Bounds:
    """Brings rows of numbers to a length of at most 1 by public bounds.

    Formal guarantee: a row becomes a function of itself and of declared numbers. ``norm``: a row that is longer is
    shortened to it, and all are divided by it. ``low, high``: a value outside is moved to the nearer end, the range
    becomes [−1, 1], and the row is divided by the root of its length; of numbers, or one for each column.
    """

    def __init__(self, norm: float | None, ends: Sequence[Any] | None):
        if (norm is None) == (ends is None):
            raise ConfigError("model.args.bounds", ends, "give bounds=(lowest, highest) or data_norm, not both")
        self.norm = norm
        if norm is not None:
            if not (isinstance(norm, (int, float)) and 0 < norm < math.inf):
                raise ConfigError("model.args.data_norm", norm, "must be a number above 0, the public length of a row")
            return
        assert ends is not None
        try:
            low, high = (torch.as_tensor(end, dtype=torch.float32) for end in ends)
            sound = bool((low < high).all()) and bool((torch.isfinite(low) & torch.isfinite(high)).all())
        except (TypeError, ValueError, RuntimeError):
            sound = False
        if not sound:
            raise ConfigError("model.args.bounds", ends, "must be (lowest, highest): numbers, or one for each column")
        self.low, self.high = low, high

    def rows(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if self.norm is not None:
            return x / x.norm(dim=1, keepdim=True).clamp(min=self.norm)
        low, high = self.low.to(x.device), self.high.to(x.device)
        return (2 * (x.clamp(low, high) - low) / (high - low) - 1) / x.shape[1] ** 0.5


class _Head(nn.Module):
    """Reads records or ready features as rows whose length is at most ``row_norm``."""

    linear: nn.Linear

    def __init__(
        self,
        input_shape: Sequence[int],
        features: Features | None,
        input_norm: float | None,
        data_norm: float | None = None,
        bounds: Sequence[Any] | None = None,
    ):
        super().__init__()
        declared = data_norm is not None or bounds is not None
        self._bounds = Bounds(data_norm, bounds) if declared else None
        if declared and (features is not None or input_norm is not None):
            key, value = ("data_norm", data_norm) if bounds is None else ("bounds", bounds)
            raise ConfigError(f"model.args.{key}", value, "the length of these records, or of their features, is known")
        if features is not None:
            self.input_transform = features
        self.features = math.prod(features.feature_shape if features is not None else input_shape)
        self._as_they_are = features is None and input_norm is not None
        self.row_norm = input_norm if features is None and input_norm is not None else self.features**0.5
        if declared:
            self.row_norm = 1.0

    def rows(self, x: Tensor) -> Tensor:
        transform = getattr(self, "input_transform", None)
        if self._bounds is not None:
            return self._bounds.rows(x)
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
        data_norm: float | None = None,
        bounds: Sequence[Any] | None = None,
    ):
        super().__init__(input_shape, features, input_norm, data_norm, bounds)
        self.input_norm = self.row_norm
        self.linear = nn.Linear(self.features, num_classes)
        nn.init.zeros_(self.linear.weight)  # a linear model needs no symmetry breaking
        nn.init.zeros_(self.linear.bias)

    def embed(self, x: Tensor) -> Tensor:
        return self.rows(x)

    def stored_rows(self, x: Tensor) -> HalfRows | None:
        """Return ready features in half precision, to be read where they lie; None if ``x`` is something else."""
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
        data_norm: float | None = None,
        bounds: Sequence[Any] | None = None,
    ):
        super().__init__(input_shape, features, input_norm, data_norm, bounds)
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
