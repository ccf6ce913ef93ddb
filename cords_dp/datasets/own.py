"""Datasets that a user hands over: what can be wrong with them, and what then happens.

The sizes of the sets, the shape and the types of their records are public; a set in which they are wrong is refused.
What single private records hold decides nothing that shows: a label that is no class makes its record all NaN (words
of a text keep what they are, and the label becomes one without a loss), and a record that is not finite contributes
zero, by the same steps as any other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cords_dp.config.values import whole
from cords_dp.datasets.arrays import ArrayDataset, Splits
from cords_dp.datasets.batches import records_at
from cords_dp.datasets.shards import Guard, whole_size
from cords_dp.errors import DataError

_NAMES = ("trainset", "validset", "testset")


def checked_splits(data: Splits, *, private: bool, regression: bool = False) -> Splits:
    """The same sets, checked by what is public of them; a private run's D and V are guarded record by record."""
    if regression:
        return _checked_regression(data)
    classes = whole("num_cls", data.num_classes, low=2)
    parts = []
    for name, part in zip(_NAMES, data[:3], strict=True):
        _, y = _check_schema(name, part)
        if y.dim() != 1 or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise DataError(f"the labels of {name} must be whole numbers from 0 on, one for each record")
        if private and name != "testset" and not isinstance(part, GuardedDataset):
            part = GuardedDataset(part, classes)
        elif not private or name == "testset":
            _check_targets(name, part, classes)
        parts.append(part)
    return Splits(parts[0], parts[1], parts[2], classes)


def _checked_regression(data: Splits) -> Splits:
    """Targets are real numbers, as many for every record; one that is not finite makes its record contribute zero."""
    shapes = set()
    for name, part in zip(_NAMES, data[:3], strict=True):
        _, y = _check_schema(name, part)
        if y.is_complex() or y.dtype == torch.bool or y.dim() > 2:
            raise DataError(f"the targets of {name} must be numbers, or short rows of numbers")
        shapes.add(y.shape[1:])
    if len(shapes) > 1:
        raise DataError("the targets of trainset, validset and testset must have the same shape")
    (shape,) = shapes
    train, validation, test = (RealTargets(part) for part in data[:3])
    return Splits(train, validation, test, max(1, shape.numel()))


_IGNORED = -100  # torch's cross-entropy leaves such a record out


class _Reading(Guard, ABC):
    """A dataset that reads the records of another."""

    def __init__(self, source: Dataset):
        self.source = source

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.batch(np.array([index]))
        return x[0], y[0]

    @abstractmethod
    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        """Records by index, at once."""


class RealTargets(_Reading):
    """A dataset with targets in float32, as a squared error needs them."""

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        x, y = records_at(self.source, np.asarray(indices))
        return x, y.float()


class GuardedDataset(_Reading):
    """A private dataset whose records with an impossible label contribute nothing, and are never told apart."""

    def __init__(self, source: Dataset, num_classes: int):
        super().__init__(source)
        self.num_classes = num_classes

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        x, y = records_at(self.source, np.asarray(indices))
        known = (y >= 0) & (y < self.num_classes)
        if not x.is_floating_point():  # words of a text have no NaN; the loss of such a label is 0, its gradient too
            return x, torch.where(known, y, torch.full_like(y, _IGNORED)).long()
        if not bool(known.all()):
            x = torch.where(known.reshape(-1, *[1] * (x.dim() - 1)), x, torch.full_like(x, torch.nan))
        return x, torch.where(known, y, torch.zeros_like(y)).long()


def _check_schema(name: str, dataset: Any) -> tuple[Tensor, Tensor]:
    """Sizes, shape and types, from the first record, whose values are not looked at."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(f"{name} is no dataset: it needs a length and records by index")
    if whole_size(dataset) < 1:
        raise DataError(f"{name} is empty")
    x, y = records_at(dataset, np.arange(min(1, len(dataset))))
    if x.is_complex() or x.dtype == torch.float64:
        raise DataError(f"the records of {name} must be tensors of float32; convert them with .float()")
    return x, y


def _check_targets(name: str, dataset: Any, classes: int) -> None:
    """Labels of a set that is not private, where it lists them."""
    targets = dataset.targets if isinstance(dataset, ArrayDataset) else getattr(dataset, "targets", None)
    try:
        labels = torch.as_tensor(targets)
    except Exception:
        return  # it lists none, or something else by that name
    if labels.dim() == 1 and len(labels) and not bool(((labels >= 0) & (labels < classes)).all()):
        raise DataError(f"{name} has labels outside of 0 … {classes - 1}, its {classes} classes (num_cls)")
