"""Features of records that a fixed, public transform computes: once, in bounded memory, kept on disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor
from torch.utils.data import Dataset
from tqdm import tqdm

from cords_dp.datasets.arrays import ArrayDataset
from cords_dp.errors import DatasetUnavailableError
from cords_dp.files import replacing

_BATCH = 256


class Transform(Protocol):
    """A fixed function of one record: no weights, nothing fitted on data. ``settings`` tell two transforms apart."""

    name: str
    settings: tuple[Any, ...]
    feature_shape: tuple[int, ...]

    def __call__(self, records: Tensor) -> Tensor: ...


class FeatureDataset(Dataset):
    """Ready features of a dataset's records, read from disk in half precision."""

    def __init__(self, features: np.ndarray, source: ArrayDataset):
        self.features, self.source = torch.from_numpy(features), source

    @property
    def targets(self) -> Tensor:
        return self.source.targets

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.batch([index])
        return x[0], y[0]

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        rows = self.source.rows[torch.as_tensor(indices, dtype=torch.int64)]
        return self.features[rows].float(), self.source.all_targets[rows]


def with_features(dataset: Dataset, transform: Transform, cache: Path, *, progress: bool = True) -> Dataset:
    """The dataset with every record passed through ``transform``: computed once, in bounded memory.

    The features of all published records are kept, so that every split of them finds its own. The file is
    named after the records' bytes and the transform. Datasets of other kinds are left as they are; the model
    then transforms each batch anew.
    """
    if not isinstance(dataset, ArrayDataset):
        return dataset
    path = cache / f"{transform.name}-{_fingerprint(dataset, transform)}.npy"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):  # two runs that start together compute them once
            if not path.is_file():
                with replacing(path) as temporary:
                    _write_features(dataset, transform, temporary, progress)
    return FeatureDataset(_stored(path, (len(dataset.x), *transform.feature_shape)), dataset)


def _stored(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Features that were computed before. Objects, whose unpickling could run code, are refused."""
    try:
        # "c": mapped, so that all processes share one copy in memory, and never written back
        features = np.load(path, mmap_mode="c", allow_pickle=False)
        if isinstance(features, np.ndarray) and features.shape == shape and features.dtype == np.float16:
            return features
    except Exception as error:  # numpy and pickle raise many kinds
        raise DatasetUnavailableError(f"the features in {path.name} are damaged; remove the file") from error
    raise DatasetUnavailableError(f"the features in {path.name} are not those of this dataset; remove the file")


def _fingerprint(dataset: ArrayDataset, transform: Transform) -> str:
    settings = json.dumps([*transform.settings, dataset.constants])
    digest = hashlib.sha256(settings.encode())
    digest.update(dataset.x.numpy().tobytes())
    return digest.hexdigest()[:24]


def _write_features(dataset: ArrayDataset, transform: Transform, path: Path, progress: bool) -> None:
    total = len(dataset.x)
    store = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(total, *transform.feature_shape))
    with tqdm(total=total, unit="record", desc=transform.name, disable=not progress, leave=False) as bar:
        for start in range(0, total, _BATCH):
            rows = torch.arange(start, min(start + _BATCH, total))
            store[start : start + len(rows)] = transform(dataset.read(rows)[0]).numpy().astype(np.float16)
            bar.update(len(rows))
    store.flush()
