"""A run whose test accuracy is also told for each group of records, as a column of a table names them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dotmap import DotMap
from torch import nn
from torch.utils.data import Dataset

from cords_dp.config import to_plain
from cords_dp.datasets import sequential_batches
from cords_dp.datasets.table.schema import Categorical
from cords_dp.datasets.table.store import TableDataset
from cords_dp.experiments.jobs import RESULT, kept_files

_BATCH = 4096


def execute_by_group(config: Mapping[str, Any], *, column: str) -> dict[str, bytes]:
    """As `jobs.execute`; the result has ``accuracy_VALUE`` for each category of the column. Of the test set alone."""
    from cords_dp.experiments.run import run_and_hand_over

    with tempfile.TemporaryDirectory(prefix="cords_dp-") as folder:
        out = Path(folder)
        trainer, _ = run_and_hand_over(DotMap(to_plain(config)), out, progress=False)
        assert trainer.model is not None
        assert trainer.data is not None
        files = kept_files(out)
        shares = group_accuracies(trainer.model, trainer.data.test, column)
        result = {**json.loads(files[RESULT]), **{f"accuracy_{name}": share for name, share in shares.items()}}
        return {**files, RESULT: json.dumps(result, indent=2).encode()}


@torch.no_grad()
def group_accuracies(model: nn.Module, dataset: Dataset, column: str) -> dict[str, float]:
    """The share of right predictions for each category of a column that occurs in the (public) test set."""
    model.eval()
    right = np.concatenate([(model(x).argmax(1) == y).numpy() for x, y in sequential_batches(dataset, _BATCH)])
    codes, categories = _groups(dataset, column)
    return {name: float(right[codes == code].mean()) for code, name in enumerate(categories) if (codes == code).any()}


def _groups(dataset: Any, column: str) -> tuple[np.ndarray, tuple[str, ...]]:
    while not isinstance(dataset, TableDataset):
        dataset = dataset.source  # whatever reads the table for the model
    place = [coded.name for coded in dataset.encoding.coded].index(column)
    known = dataset.encoding.coded[place]
    assert isinstance(known, Categorical)
    return dataset.stored["codes"][dataset.rows, place], known.categories
