"""Small data and models whose gradients the auditor chooses."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from cords_dp.datasets import ArrayDataset

CRITERION = nn.CrossEntropyLoss(reduction="none")
LENGTH = 100.0  # of a canary: its gradient is far longer than any clip norm


class AuditedSet(ArrayDataset):
    """An array dataset that knows whether it plays D or V."""

    audited_as = "D"


class OneLinearLayer(nn.Module):
    """Logistic regression with weights at zero, in the form that closed-form gradients need."""

    def __init__(self, inputs: int, classes: int = 2):
        super().__init__()
        self.linear = nn.Linear(inputs, classes)
        self.reset()

    def reset(self) -> None:
        with torch.no_grad():
            for p in self.parameters():
                p.zero_()

    def embed(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


class SmallNet(nn.Module):
    """CORDS' contract in its smallest form."""

    def __init__(self, inputs: int = 6, classes: int = 2, hidden: int = 5):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.body, self.head, self.hidden = nn.Linear(inputs, hidden), nn.Linear(hidden, classes), hidden

    def forward(self, x: Tensor, last: bool = False, freeze: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        embedding = torch.tanh(self.body(x))
        out = self.head(embedding)
        return (out, embedding) if last else out

    def get_embedding_dim(self) -> int:
        return self.hidden


def canaries(count: int, inputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Dirac canaries: the clipped gradient of canary i is, but for 1 in 20,000, along weights that no other has.

    With two classes softmax − one-hot is a multiple of (1, −1), so the direction is the same at all weights.
    """
    x = np.zeros((count, inputs), dtype=np.float32)
    x[np.arange(count), np.arange(count)] = LENGTH
    return x, np.arange(count) % 2


def along_canaries(gradient: Tensor, count: int) -> np.ndarray:
    """How far a gradient of a two-class linear layer (classes × inputs) goes along each canary's own direction."""
    signs = 1 - 2 * (np.arange(count) % 2)  # class 0: p − one-hot is negative in row 0
    weight = gradient.detach().double().numpy()
    return signs * (weight[1, :count] - weight[0, :count]) / np.sqrt(2.0)


def shifted_classes(count: int, share: float, seed: int, inputs: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Two overlapping classes; ``share`` of the records are of class 1. Public: the seed is part of the audit."""
    rng = np.random.default_rng(seed)
    y = (np.arange(count) < share * count).astype(np.int64)
    rng.shuffle(y)
    x = rng.normal(size=(count, inputs)) + np.where(y[:, None] == 1, 0.8, -0.8)
    return x.astype(np.float32), y
