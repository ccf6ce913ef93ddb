"""Makes small data and models whose gradients the auditor chooses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from cords_dp.data.owners import Owners
from cords_dp.data.record_set import RecordSet, Splits, array_set
from cords_dp.data.store import ArrayStore

CRITERION = nn.CrossEntropyLoss(reduction="none")
_INPUTS = 6
_SIDE = 8  # inputs of the ordinary records beside canaries
LENGTH = 100.0  # of a canary: its gradient is far longer than any clip norm


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

    def __init__(self, inputs: int = _INPUTS, classes: int = 2, hidden: int = 5):
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
    """Make Dirac canaries: the clipped gradient of canary i is, but for 1 in 20,000, along weights that no other has.

    With two classes softmax − one-hot is a multiple of (1, −1), so the direction is the same at all weights.
    """
    x = np.zeros((count, inputs), dtype=np.float32)
    x[np.arange(count), np.arange(count)] = LENGTH
    return x, np.arange(count) % 2


def along_canaries(gradient: Tensor, count: int) -> np.ndarray:
    """Return how far a gradient of a two-class linear layer (classes × inputs) goes along each canary's direction."""
    signs = 1 - 2 * (np.arange(count) % 2)  # class 0: p − one-hot is negative in row 0
    weight = gradient.detach().double().numpy()
    return signs * (weight[1, :count] - weight[0, :count]) / np.sqrt(2.0)


def owners_of_all_sizes(count: int) -> Owners:
    """Make owners of one to four records each, which do not lie in a row."""
    codes = np.repeat(np.arange(count), 1 + np.arange(count) % 4)
    return Owners(np.random.default_rng(11).permutation(codes), count)


@dataclass(frozen=True)
class Toy:
    """D and V of one shape, made up: (records, labels) each."""

    name: str
    classes: int
    training: RecordSet
    validation: RecordSet


def toys(n: int, n_validation: int, *, owned: bool = False) -> list[Toy]:
    """Make data sets of several shapes: what moves a release on one of them may move nothing on another.

    ``owned``: ``n`` and ``n_validation`` count owners.
    """
    whose = [owners_of_all_sizes(count) if owned else None for count in (n, n_validation)]
    if owned:
        n, n_validation = (len(owners.codes) for owners in whose if owners is not None)

    def toy(name: str, classes: int, *sides: tuple[np.ndarray, np.ndarray]) -> Toy:
        sets = [array_set(*side) for side in sides]
        for part, owners in zip(sets, whose, strict=True):
            part.owners = owners
        return Toy(name, classes, *sets)

    two = shifted_classes(n, 0.25, 1), shifted_classes(n_validation, 0.75, 2)
    missing = _classes(n, 5, 5, leave_out=3), _classes(n_validation, 5, 6, leave_out=1)
    lonely = _classes(n, 3, 7), _classes(n_validation, 3, 8)
    lonely[0][1][:] = 1 + np.arange(n) % 2
    lonely[0][1][0] = 0  # the first record is alone in its class, and so is the first of V
    lonely[1][1][:] = 1 + np.arange(n_validation) % 2
    lonely[1][1][0] = 0
    extreme = _classes(n, 4, 9), _classes(n_validation, 4, 10)
    for x, _ in extreme:
        x[::7] *= 1e4
        x[1::7] *= 1e-6
        x[2::14, 0] = np.nan
        x[3::14, 1] = np.inf
    return [
        toy("two classes, shifted", 2, *two),
        toy("twenty classes", 20, _classes(n, 20, 3), _classes(n_validation, 20, 4)),
        toy("a class missing", 5, *missing),
        toy("a class of one record", 3, *lonely),
        toy("equal records", 3, _equal(n, 3), _equal(n_validation, 3)),
        toy("huge, tiny and not finite", 4, *extreme),
    ]


def _classes(count: int, classes: int, seed: int, leave_out: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.choice([c for c in range(classes) if c != leave_out], count)
    centres = np.random.default_rng(0).normal(size=(classes, _INPUTS))
    return (rng.normal(size=(count, _INPUTS)) + centres[y]).astype(np.float32), y.astype(np.int64)


def _equal(count: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Make records of a class all alike: every score is a tie."""
    y = np.arange(count) % classes
    return np.eye(classes, _INPUTS, dtype=np.float32)[y], y


def shifted_classes(count: int, share: float, seed: int, inputs: int = _INPUTS) -> tuple[np.ndarray, np.ndarray]:
    """Draw two overlapping classes; ``share`` of the records are of class 1. Public: the seed is part of the audit."""
    rng = np.random.default_rng(seed)
    y = (np.arange(count) < share * count).astype(np.int64)
    rng.shuffle(y)
    x = rng.normal(size=(count, inputs)) + np.where(y[:, None] == 1, 0.8, -0.8)
    return x.astype(np.float32), y


class WatchedStore(ArrayStore):
    """Remembers which records were last read: at the end of a step, its batch."""

    last = np.zeros(0, dtype=np.int64)

    def read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        self.last = rows
        return super().read(rows)


@dataclass(frozen=True)
class CanarySet:
    """``count`` canaries and as many ordinary records, a validation and a test set.

    each: where the unit is an owner, a canary is one with so many equal records, and so is every other owner.
    """

    count: int
    each: int = 1
    held_out: ClassVar[int] = 200  # records of V

    @property
    def n(self) -> int:
        return 2 * self.count

    @property
    def inputs(self) -> int:
        return self.count + _SIDE

    def splits(self) -> Splits:
        def ordinary(count: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
            x, y = shifted_classes(count, share, seed, inputs=_SIDE)
            return np.concatenate([np.zeros((count, self.count), dtype=np.float32), x], axis=1), y

        x, y = canaries(self.count, self.inputs)
        ordinary_x, ordinary_y = ordinary(self.count, 0.2, 1)
        x, y = np.concatenate([x, ordinary_x]), np.concatenate([y, ordinary_y])
        train = RecordSet(WatchedStore(np.repeat(x, self.each, axis=0), np.repeat(y, self.each)))
        validation, test = array_set(*ordinary(self.held_out, 0.8, 2)), array_set(*ordinary(50, 0.8, 3))
        return Splits(train, validation, test, 2)

    def owners(self) -> tuple[list[str], list[str]] | None:
        """Return whose the records of D and V are, by name; None where the unit is a record."""
        if self.each == 1:
            return None
        return [f"d{i // self.each}" for i in range(self.n * self.each)], [f"v{i}" for i in range(self.held_out)]
