"""In-memory datasets that hand out whole batches at once.

Records by index.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from cords_dp.errors import DataError


class RawData(NamedTuple):
    """Arrays as published: features (uint8 images as N×C×H×W, or floats) and integer labels."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


class RowsOfStore(Dataset, ABC):
    """A set that picks ``rows`` out of a store, which other sets may share."""

    rows: Any  # whole numbers, as a tensor or an array

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def store_size(self) -> int:
        """How many records the store has."""

    @abstractmethod
    def part(self, start: int, stop: int, rows: np.ndarray) -> RowsOfStore:
        """A set of these rows, counted from ``start`` on, out of a store that holds ``start … stop − 1`` only."""


class ArrayDataset(RowsOfStore):
    """Records in memory, normalised by fixed public constants when they are read.

    ``rows`` picks records out of shared arrays, so that the splits of one published dataset share its memory.
    No statistic is ever fitted on the records: what `batch` returns for one record depends on that record
    and on the constants alone.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        rows: np.ndarray | None = None,
    ):
        self.x = torch.from_numpy(np.ascontiguousarray(x))
        self.all_targets = torch.from_numpy(np.asarray(y, dtype=np.int64))
        self.rows = torch.arange(len(y)) if rows is None else torch.from_numpy(np.asarray(rows, dtype=np.int64))
        self.constants = (tuple(mean), tuple(std))
        shape = (1, -1, 1, 1)
        self._mean = torch.tensor(mean).reshape(shape) * 255 if mean else None
        self._std = torch.tensor(std).reshape(shape) * 255 if std else None

    @property
    def targets(self) -> Tensor:
        return self.all_targets[self.rows]

    @property
    def store_size(self) -> int:
        return len(self.all_targets)

    def part(self, start: int, stop: int, rows: np.ndarray) -> ArrayDataset:
        """A copy, so that the memory of the other rows can be given back."""
        x, y = (whole[start:stop].clone().numpy() for whole in (self.x, self.all_targets))
        return ArrayDataset(x, y, *self.constants, rows=rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.batch([index])
        return x[0], y[0]

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        return self.read(self.rows[torch.as_tensor(indices, dtype=torch.int64)])

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Records by their place in the shared arrays."""
        x = self.x[rows].float()
        if self._mean is not None and self._std is not None:
            x = (x - self._mean) / self._std
        return x, self.all_targets[rows]


class Splits(NamedTuple):
    """What CORDS' ``gen_dataset`` returns: train, validation and test sets and the number of classes."""

    train: Dataset
    validation: Dataset
    test: Dataset
    num_classes: int


def records_at(dataset: Dataset, indices: np.ndarray) -> tuple[Tensor, Tensor]:
    """Records by index: at once where the dataset can (``batch``), one by one elsewhere."""
    return dataset.batch(indices) if hasattr(dataset, "batch") else one_by_one(dataset, indices)


def one_by_one(dataset: Dataset, indices: np.ndarray) -> tuple[Tensor, Tensor]:
    """Records by index, each asked for by itself; of no records, an empty batch of the right shape."""
    if len(indices) == 0:
        x, y = _collated([dataset[0]])
        return x[:0], y[:0]
    return _collated([dataset[int(i)] for i in indices])


def _collated(records: list[Any]) -> tuple[Tensor, Tensor]:
    """Records as one batch. What torch says about those that do not fit together tells their shapes: it stays here."""
    try:
        x, y = default_collate(records)
        return torch.as_tensor(x), torch.as_tensor(y)
    except Exception:
        problem = "a dataset must give (x, y): tensors or numbers, of the same shape and type for every record"
    raise DataError(problem)  # outside of the handler, so that no traceback shows the cause


def sequential_batches(dataset: Dataset, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All records in order, ``size`` at a time."""
    total = len(dataset)  # type: ignore[arg-type]
    for start in range(0, total, size):
        yield records_at(dataset, np.arange(start, min(start + size, total)))
