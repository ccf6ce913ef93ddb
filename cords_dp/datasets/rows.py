"""Which rows of a file, of arrays or of a published set the records of a training set are.

A run splits records by a permutation, so the number of a record in D says nothing to anybody else. Rows depend on the
number of records and on the seed alone. Where they depend on labels or values, because an imbalance is made for a
study or files are sorted by class, they are not told.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Subset

from cords_dp.datasets.published import DATASETS, dataset_name, refuse_telling_rows
from cords_dp.datasets.shards import Guard, Part


def rows_of(dataset: Dataset) -> np.ndarray | None:
    """The row of each record where the set was made from; None for a set that does not tell."""
    if isinstance(dataset, Part):  # a part counts from its own first row
        return None
    if isinstance(dataset, Guard):
        return rows_of(dataset.source)
    if isinstance(dataset, Subset):
        inner, picked = rows_of(dataset.dataset), np.asarray(dataset.indices)
        return picked if inner is None else inner[picked]
    rows = getattr(dataset, "rows", None)
    return None if rows is None else np.asarray(rows)


def described_rows(config: Mapping[str, Any], rows: np.ndarray | None, picked: list[int]) -> dict[str, Any]:
    """Some records of D by their rows, and a sentence that says which rows these are."""
    name, section = dataset_name(config), config["dataset"]
    refuse_telling_rows(section)
    if rows is None:
        return {"records": "numbers in the training set as this run has split it, from 0", "rows": sorted(picked)}
    numbers = rows[picked]
    if name in DATASETS and name != "synthetic":  # a set may have changed copies behind its own records: i + n is i
        numbers = numbers % DATASETS[name].num_train
        words = f"training records of {name} in the publisher's order, from 0"
    else:
        file = PurePath(section["path"]).name if isinstance(section.get("path"), str) else name
        words = f"records of {file} in its order, from 0"
    return {"records": words, "rows": sorted(int(number) for number in numbers)}
