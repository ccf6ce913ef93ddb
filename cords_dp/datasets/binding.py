"""Which data a run is on, as a digest of public facts: a ledger is continued on the same data and split only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
from torch.utils.data import Dataset, Subset

from cords_dp.config import to_plain
from cords_dp.datasets.arrays import ArrayDataset, Splits
from cords_dp.datasets.own import GuardedDataset, RealTargets
from cords_dp.datasets.padding import PaddedDataset
from cords_dp.datasets.shards import Part, digest_of_rows
from cords_dp.datasets.sources import find_source
from cords_dp.errors import DataError

_PLACES = ("datadir", "cache")  # where files lie says nothing about what is in them


def data_binding(config: Mapping[str, Any], seed: int | None, data: Splits, *, built: bool = False) -> str:
    """A digest of the dataset section, the seed of the split, and which rows are in D and in V.

    Nothing about the records themselves goes in: a digest of private values could be tried out. So of datasets that the
    user hands over without saying which rows of what they are, only the kind and the size are known. ``built``: the
    sets were made from the config, so a source's ``rows`` are numbers of rows in its file.
    """
    section = {key: _named(key, value) for key, value in to_plain(config["dataset"]).items() if key not in _PLACES}
    if built and (source := find_source(section.get("name"))) is not None:
        section["card"] = source.card(config["dataset"])
    facts = [section, seed, _rows(data.train, built), _rows(data.validation, built), data.num_classes]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _named(key: str, value: Any) -> Any:
    """A file by its name, since it may be moved; what a source says about it is in its card."""
    return PurePath(value).name if isinstance(value, str) and key.endswith(("path", "schema", "labels")) else value


def _rows(dataset: Dataset, built: bool) -> list[Any]:
    if isinstance(dataset, Part):  # the whole set's: a run may be resumed with more or fewer processes
        if dataset.rows_digest is None:
            raise DataError("a set is bound to a ledger before it is cut into parts, or knows the rows of the whole")
        return ["rows", dataset.total, dataset.rows_digest]
    size = len(dataset)  # type: ignore[arg-type]
    if isinstance(dataset, ArrayDataset) or (built and hasattr(dataset, "rows")):
        return ["rows", size, digest_of_rows(np.asarray(dataset.rows))]
    if isinstance(dataset, (GuardedDataset, PaddedDataset, RealTargets)):
        return _rows(dataset.source, built)
    if isinstance(dataset, Subset):
        return ["subset", size, digest_of_rows(np.asarray(dataset.indices)), _rows(dataset.dataset, built)]
    return [type(dataset).__name__, size]
