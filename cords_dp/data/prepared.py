"""The sets of a run as it reads them: guarded, padded, in released units, as features, and in batches for measuring."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from cords_dp.data.arrays import Splits, sequential_batches
from cords_dp.data.feature_cache import with_features
from cords_dp.data.handed_over import checked_splits, is_text, padded_splits, public_length
from cords_dp.data.shards import Part, Picks
from cords_dp.data.sources.base import Source
from cords_dp.errors import DataError, MechanismError

_EVALUATION_BATCH = 1024
UNREADABLE = (
    "Records that cannot be read, or differ in shape or type from the first one, contribute nothing: "
    "cords_dp.data.handed_over.unreadable_records(trainset) lists them, for the owner's eyes."
)


def readable(data: Splits, config: Mapping[str, Any], *, private: bool, own: bool) -> Splits:
    """A private run's records by themselves; ``own``: the user's, which are checked."""
    regression = bool(config["is_reg"])
    if private:
        data = padded_splits(data, config)
    if regression and not private:
        return data  # CORDS' own sets and losses
    return checked_splits(data, private=private, regression=regression) if own else data


def describe_padding(config: Mapping[str, Any]) -> list[str]:
    """What a user of texts should know about `readable`."""
    if not is_text(config):
        return []
    return [f"Every record is cut or filled up to {public_length(config)} words (dataset.max_length)."]


def featured(data: Splits, model: nn.Module, config: Mapping[str, Any], *, device: str, progress: bool) -> Splits:
    """Pass every record through the model's fixed input transform once, where it has one."""
    transform = getattr(model, "input_transform", None)
    if transform is None:
        return data
    kept = config["model"].get("feature_cache") is not False
    folder = Path(config["dataset"].get("datadir") or "data").expanduser() / "features"
    half = getattr(model, "reads_half", False)

    def features(part: Dataset) -> Dataset:
        cache = folder if kept else None
        return with_features(part, transform, cache, progress=progress, device=device, half=half)

    return Splits(features(data.train), features(data.validation), features(data.test), data.num_classes)


def evaluation_batches(
    dataset: Dataset, config: Mapping[str, Any], *, private: bool
) -> Iterable[tuple[Tensor, Tensor]]:
    collate = config["dataloader"].get("collate_fn") or None
    if collate is None or private:  # private records are collated one by one
        return sequential_batches(dataset, _EVALUATION_BATCH)
    return DataLoader(dataset, batch_size=_EVALUATION_BATCH, collate_fn=collate)


def prepared_splits(source: Source, data: Splits, fit: Mapping[str, Any]) -> Splits:
    """All sets in the units of the released values; whatever guards their records stays around them."""

    def change(dataset: Dataset) -> Dataset:
        return source.prepared(dataset, fit)

    train, validation, test = (_inside(part, change) for part in data[:3])
    return Splits(train, validation, test, data.num_classes)


def _inside(dataset: Any, change: Callable[[Dataset], Dataset]) -> Any:
    if not hasattr(dataset, "source"):
        return change(dataset)
    outer = copy.copy(dataset)
    outer.source = _inside(dataset.source, change)
    return outer


def innermost(dataset: Any) -> Any:
    """What the source has handed out, or this process's part of it: a sum over more would count records twice."""
    if isinstance(dataset, Part) and isinstance(dataset.source, Picks):
        raise MechanismError(
            "the source hands out sets that cannot be cut into parts, so its sums would be over all records in every "
            "process; let the sets be RowsOfStore, or train in one process"
        )
    return innermost(dataset.source) if hasattr(dataset, "source") else dataset


def category_codes(dataset: Any, column: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return each record's code in a categorical column of a table, and the categories that the codes count."""
    table = innermost(dataset)
    if not hasattr(table, "category_codes"):
        raise DataError("only the records of a table have columns")
    return table.category_codes(column)
