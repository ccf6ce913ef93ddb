"""Records by index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from cords_dp.errors import DataError


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
