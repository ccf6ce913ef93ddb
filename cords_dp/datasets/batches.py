"""Records by index."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate


def records_at(dataset: Dataset, indices: np.ndarray) -> tuple[Tensor, Tensor]:
    """Records by index: at once where the dataset can (``batch``), one by one elsewhere."""
    if hasattr(dataset, "batch"):
        return dataset.batch(indices)
    if len(indices) == 0:
        x, y = default_collate([dataset[0]])
        return x[:0], y[:0]
    x, y = default_collate([dataset[int(i)] for i in indices])
    return x, torch.as_tensor(y)


def sequential_batches(dataset: Dataset, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All records in order, ``size`` at a time."""
    total = len(dataset)  # type: ignore[arg-type]
    for start in range(0, total, size):
        yield records_at(dataset, np.arange(start, min(start + size, total)))
