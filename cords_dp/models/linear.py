"""A linear classifier on records that are vectors: the model that a small budget teaches most on many tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn


class LinearHead(nn.Module):
    """One linear layer, whose input is the record itself.

    input_norm: a length that no record exceeds (`datasets.Facts`); ``optimizer.lr="auto"`` follows it.
    """

    def __init__(self, num_classes: int, input_shape: Sequence[int], input_norm: float | None = None):
        super().__init__()
        self.features = int(np.prod(tuple(input_shape)))
        self.input_norm = input_norm
        self.linear = nn.Linear(self.features, num_classes)
        nn.init.zeros_(self.linear.weight)  # a linear model needs no symmetry breaking
        nn.init.zeros_(self.linear.bias)

    def embed(self, x: Tensor) -> Tensor:
        return x.flatten(1)

    def forward(self, x: Tensor, last: bool = False, freeze: bool = False) -> Any:
        embedding = self.embed(x)
        out = self.linear(embedding)
        return (out, embedding) if last else out

    def get_embedding_dim(self) -> int:
        return self.features
