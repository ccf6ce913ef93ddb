"""Features of records that a fixed, public transform computes: once, in bounded memory, kept on disk.

Features tell as much as the records they come from. The folder of the cache is for the owner alone (0700, files 0600)
and says so in a README; ``model.feature_cache=False`` keeps them in a file without a name, which is gone when the
process ends, however it ends.

Features are those of a record's x, whatever its label: labels are read from the dataset at every run, and what makes a
record with an impossible label contribute nothing (`own.GuardedDataset`) is laid over the features, never under them.

A large array on disk that is written from its first row on; after a kill the next writer goes on where it ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor
from torch.utils.data import Dataset
from tqdm import tqdm

from cords_dp.data.arrays import ArrayDataset, records_at
from cords_dp.data.handed_over import GuardedDataset, RealTargets
from cords_dp.data.shards import Part
from cords_dp.data.store import StoredRecords
from cords_dp.errors import DatasetUnavailableError
from cords_dp.files import remove_stale, sync, write_durably
from cords_dp.processes import in_order

if TYPE_CHECKING:
    from cords_dp.data.half_rows import HalfRows


_BATCH = 256
_MANY = 4096  # records from which on it pays to compile code for them
_README = """The files in this folder hold features of records, as private as the records themselves.
They are for their owner's eyes and can be removed at any time; a run that needs them computes them again.
A file that ends in .part is not finished: the next run goes on with it.
A run with model.feature_cache=False (run_experiment.py --no-feature-cache) leaves nothing here.
"""


class Transform(Protocol):
    """A fixed function of one record: no weights, nothing fitted on data. ``settings`` tell two transforms apart.

    It may have ``batch`` (how many records at a time), ``uses_one_core`` (calls may run side by side in threads) and
    ``prepare_for_many(progress)`` (called once before many records).
    """

    name: str
    settings: tuple[Any, ...]
    feature_shape: tuple[int, ...]

    def __call__(self, records: Tensor) -> Tensor: ...


class FeatureDataset(Dataset):
    """Ready features of a dataset's records, read from disk in half precision. ``rows``: which of those stored.

    ``half``: hand them out as they are stored, for a model that converts them itself.
    """

    def __init__(self, features: np.ndarray, all_targets: Tensor, rows: Tensor, *, half: bool = False):
        self.features, self.all_targets, self.rows, self.half = torch.from_numpy(features), all_targets, rows, half

    @property
    def targets(self) -> Tensor:
        return self.all_targets[self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.batch([index])
        return x[0], y[0]

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        rows = self.rows[torch.as_tensor(indices, dtype=torch.int64)]
        if not self.half:
            return torch.index_select(self.features, 0, rows).float(), self.all_targets[rows]
        from cords_dp.data.half_rows import HalfRows  # late: it compiles

        x = HalfRows(self.features, rows).gathered().reshape(-1, *self.features.shape[1:])
        return x, self.all_targets[rows]


def stored_rows(dataset: Dataset) -> HalfRows | None:
    """All features of a dataset where they are stored; None if it has none in half precision.

    Records with impossible labels keep their features here: whoever uses them has to leave those records out.
    """
    if isinstance(dataset, (GuardedDataset, RealTargets, Part)):
        return stored_rows(dataset.source)
    if not isinstance(dataset, FeatureDataset) or not dataset.half:
        return None
    from cords_dp.data.half_rows import HalfRows  # late: it compiles

    return HalfRows(dataset.features, dataset.rows)


def threads_for(dataset: Dataset) -> contextlib.AbstractContextManager[None]:
    """Who gets the threads of this process: whoever reads the rows of stored features, or else torch."""
    if stored_rows(dataset) is None:
        return contextlib.nullcontext()
    from cords_dp.data.half_rows import torch_on_one_thread  # late: it compiles

    return torch_on_one_thread()


def all_labels(dataset: Dataset) -> tuple[Tensor, Tensor]:
    """The labels of a dataset with stored features, and which of them are possible."""
    if isinstance(dataset, Part):
        return all_labels(dataset.source)
    if isinstance(dataset, RealTargets):
        labels, known = all_labels(dataset.source)
        return labels.float(), known
    if isinstance(dataset, GuardedDataset):
        labels, known = all_labels(dataset.source)
        known = known & (labels >= 0) & (labels < dataset.num_classes)
        return torch.where(known, labels, torch.zeros_like(labels)).long(), known
    assert isinstance(dataset, FeatureDataset)
    return dataset.targets, torch.ones(len(dataset), dtype=torch.bool)


def with_features(
    dataset: Dataset,
    transform: Transform,
    cache: Path | None,
    *,
    progress: bool = True,
    device: str = "cpu",
    half: bool = False,
) -> Dataset:
    """The dataset with every record passed through ``transform``: computed once, in bounded memory.

    Of a dataset that picks rows out of a store (`ArrayDataset`, `StoredRecords`), the features of the whole store are
    kept, so that every split of it finds its own. The file is named after the records' content and the transform.
    ``cache``: the folder, or None to keep nothing. ``half``: see `FeatureDataset`.
    """
    if isinstance(dataset, GuardedDataset):
        inner = with_features(dataset.source, transform, cache, progress=progress, device=device, half=half)
        return GuardedDataset(inner, dataset.num_classes)
    if isinstance(dataset, RealTargets):
        inner = with_features(dataset.source, transform, cache, progress=progress, device=device, half=half)
        return RealTargets(inner)
    if isinstance(dataset, Part):  # each process computes those of its own records, into a file of their own
        inner = with_features(dataset.source, transform, cache, progress=progress, device=device, half=half)
        return Part(inner, dataset.total, dataset.places, rows_digest=dataset.rows_digest)
    store = _Store(dataset, progress)
    if not store.size:
        targets = records_at(dataset, np.arange(0))[1]
        nothing = np.zeros((0, *transform.feature_shape), np.float16)
        return FeatureDataset(nothing, targets, store.rows, half=half)
    shape = (store.size, *transform.feature_shape)
    if cache is None:
        with tempfile.TemporaryFile(prefix="cords_dp-") as file:  # it has no name, and ends with the last who maps it
            features = np.memmap(file, dtype=np.float16, mode="w+", shape=shape)
            _write_features(store, transform, features, progress, device)
        return FeatureDataset(features, store.targets, store.rows, half=half)
    path = cache / f"{re.sub(r'[^0-9A-Za-z.-]', '_', transform.name)}-{store.fingerprint(transform)}.npy"
    with contextlib.suppress(OSError):  # not there yet, or somebody else's
        cache.chmod(0o700)
    if not path.is_file():
        _make_private(cache)
        with FileLock(path.with_suffix(".lock")):  # two runs that start together compute them once
            if not path.is_file():
                with growing(path, shape) as part:
                    _write_features(store, transform, part.features, progress, device, part)
    return FeatureDataset(_stored(path, shape), store.targets, store.rows, half=half)


def _make_private(cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (cache / "README.txt").exists():
        (cache / "README.txt").write_text(_README)
    remove_stale(cache)  # of a run that was killed


class _Store:
    """All records behind a dataset, a few at a time, their labels, and which of them the dataset picks."""

    def __init__(self, dataset: Dataset, progress: bool):
        self.dataset, self.progress = dataset, progress
        if isinstance(dataset, (ArrayDataset, StoredRecords)):
            self.size, self.rows = len(dataset.all_targets), dataset.rows
        else:
            self.size = len(dataset)  # type: ignore[arg-type]
            self.rows = torch.arange(self.size)
        self._labels: Tensor | None = None

    def batches(self, size: int, first: int = 0) -> Iterator[Tensor]:
        """The x of all records from ``first`` on. Labels that a dataset does not list are noted on the way."""
        noted = self._labels  # in one piece: small pieces between large ones would break up the memory
        for start in range(first, self.size, size):
            rows = torch.arange(start, min(start + size, self.size))
            if isinstance(self.dataset, (ArrayDataset, StoredRecords)):
                yield self.dataset.read(rows)[0]
            else:
                x, y = records_at(self.dataset, rows.numpy())
                noted = y.new_empty((self.size, *y.shape[1:])) if noted is None else noted
                noted[rows] = y
                yield x
        self._labels = noted

    @property
    def targets(self) -> Tensor:
        if isinstance(self.dataset, (ArrayDataset, StoredRecords)):
            return self.dataset.all_targets
        assert self._labels is not None
        return self._labels

    def fingerprint(self, transform: Transform) -> str:
        constants = self.dataset.constants if isinstance(self.dataset, (ArrayDataset, StoredRecords)) else None
        digest = hashlib.sha256(json.dumps([*transform.settings, constants]).encode())
        for piece in self._content():
            digest.update(piece)
        return digest.hexdigest()[:24]

    def _content(self) -> Iterator[bytes]:
        """What decides the records, in pieces: bytes as they are stored where the dataset can give them."""
        if isinstance(self.dataset, ArrayDataset):
            for start in range(0, self.size, _BATCH):
                yield self.dataset.x[start : start + _BATCH].numpy().tobytes()
        elif isinstance(self.dataset, StoredRecords):
            yield from self.dataset.content()
        else:
            with tqdm(total=self.size, unit="record", desc="reading", disable=not self.progress, leave=False) as bar:
                for x in self.batches(_BATCH):
                    yield str((x.dtype, *x.shape[1:])).encode() + x.cpu().contiguous().numpy().tobytes()
                    bar.update(len(x))


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


def _write_features(
    store: _Store,
    transform: Transform,
    features: np.ndarray,
    progress: bool,
    device: str,
    part: GrowingFile | None = None,
) -> None:
    if store.size >= _MANY and device == "cpu" and hasattr(transform, "prepare_for_many"):
        transform.prepare_for_many(progress)
    start = part.rows if part else 0
    bar = tqdm(total=store.size, initial=start, unit="record", desc=transform.name, disable=not progress, leave=False)

    def compute(x: Tensor) -> np.ndarray:
        with np.errstate(over="ignore"):  # a feature that half precision cannot hold makes its record void
            return transform(x.to(device)).cpu().numpy().astype(np.float16)

    workers = _cores() if device == "cpu" and getattr(transform, "uses_one_core", False) else 1
    with bar, in_order(compute, store.batches(getattr(transform, "batch", _BATCH), start), workers) as results:
        for rows in results:
            features[start : start + len(rows)] = rows
            start += len(rows)
            bar.update(len(rows))
            if part:
                part.note(start)


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_SECONDS = 5.0  # between notes of how far the file has grown: what a kill can cost


class GrowingFile:
    """``features``: the array, in half precision. ``rows``: how many of its rows are on the device for sure."""

    def __init__(self, path: Path, shape: tuple[int, ...]):
        self._path = path
        self._part, self._count = path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.rows")
        self.rows, self.features = self._found(shape)
        self._noted = time.monotonic()

    def _found(self, shape: tuple[int, ...]) -> tuple[int, np.memmap]:
        try:
            rows = int(self._count.read_text())
            features = np.lib.format.open_memmap(self._part, mode="r+")
            if features.shape == shape and features.dtype == np.float16 and 0 <= rows <= shape[0]:
                return rows, features
        except (OSError, ValueError, EOFError):
            pass  # nothing there, or not whole: begin again
        self._count.unlink(missing_ok=True)
        self._part.unlink(missing_ok=True)
        os.close(os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        return 0, np.lib.format.open_memmap(self._part, mode="w+", dtype=np.float16, shape=shape)

    def note(self, rows: int) -> None:
        """Say that so many rows are written. The device is waited for now and then only."""
        if time.monotonic() - self._noted > _SECONDS:
            self.features.flush()  # rows first: the count must never be ahead of them
            write_durably(self._count, str(rows), mode=0o600)
            self._noted = time.monotonic()

    def finish(self) -> None:
        """All rows are written: the file takes its name."""
        self.features.flush()
        sync(self._part)
        os.replace(self._part, self._path)
        self._count.unlink(missing_ok=True)
        sync(self._path.parent)


@contextlib.contextmanager
def growing(path: Path, shape: tuple[int, ...]) -> Iterator[GrowingFile]:
    """A file that gets the name ``path`` when the block ends, and is kept unfinished if it fails."""
    file = GrowingFile(path, shape)
    yield file
    file.finish()
