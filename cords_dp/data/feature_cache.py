"""Features of records that a fixed, public transform computes: once, in bounded memory, kept on disk.

Features tell as much as the records they come from. The folder of the cache is for the owner alone (0700, files 0600)
and says so in a README; ``model.feature_cache=False`` keeps them in a file without a name, which is gone when the
process ends, however it ends.

Features are those of a record's x, whatever its label: labels are read from the store at every run, and what makes a
record with an impossible label contribute nothing (`record_set.Target`) is laid over the features, never under them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor, nn
from torch.utils.data import Dataset

from cords_dp.data.handed_over import as_records
from cords_dp.data.record_set import RecordSet, Splits
from cords_dp.data.store import LabelledStore
from cords_dp.errors import DatasetUnavailableError
from cords_dp.files import allocate, remove_stale, sync, write_durably
from cords_dp.processes import in_order
from cords_dp.progress import shown_bar

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


class FeatureStore(LabelledStore):
    """Ready features, read from disk in half precision.

    ``half``: hand them out as they are stored, for a model that converts them itself.
    """

    may_fail = False

    def __init__(self, features: np.ndarray, labels: Tensor, *, half: bool = False):
        super().__init__(labels)
        self.features, self.half = torch.from_numpy(features), half

    def records(self, rows: np.ndarray) -> Tensor:
        stored = self.half_rows(rows)
        if stored is None:
            return torch.index_select(self.features, 0, torch.from_numpy(rows)).float()
        return stored.gathered().reshape(-1, *self.features.shape[1:])

    def half_rows(self, rows: np.ndarray) -> HalfRows | None:
        if not self.half:
            return None
        from cords_dp.data.half_rows import HalfRows  # late: it compiles

        return HalfRows(self.features, torch.from_numpy(rows))

    def keep_range(self, start: int, stop: int) -> None:
        self.features = self.features[start:stop]


def threads_for(dataset: Dataset) -> contextlib.AbstractContextManager[None]:
    """Give the threads of this process to the reader of stored features, if there is one, or else to torch."""
    if as_records(dataset).half_rows() is None:
        return contextlib.nullcontext()
    from cords_dp.data.half_rows import torch_on_one_thread  # late: it compiles

    return torch_on_one_thread()


def featured(data: Splits, model: nn.Module, config: Mapping[str, Any], *, device: str, progress: bool) -> Splits:
    """Pass every record through the model's fixed input transform once, where it has one."""
    transform = getattr(model, "input_transform", None)
    if transform is None:
        return data
    kept = config["model"].get("feature_cache") is not False
    folder = Path(config["dataset"].get("datadir") or "data").expanduser() / "features"
    half = getattr(model, "reads_half", False)
    cache = folder if kept else None
    return data.each(lambda part: with_features(part, transform, cache, progress=progress, device=device, half=half))


def with_features(
    dataset: Dataset,
    transform: Transform,
    cache: Path | None,
    *,
    progress: bool = True,
    device: str = "cpu",
    half: bool = False,
) -> RecordSet:
    """Pass every record of a set through ``transform``: once, in bounded memory.

    Where a store tells its content, the features of all of it are kept, so that every set of its rows finds its own; of
    several processes each computes those of its range. The file is named after the records' content and the transform.
    ``cache``: the folder, or None to keep nothing. ``half``: see `FeatureStore`. What guards targets stays over the
    features.
    """
    records = as_records(dataset)
    reader = _Reader(records, progress)
    features = _features(reader, transform, cache, progress, device)
    return records.with_store(FeatureStore(features, reader.labels(), half=half), reader.rows)


def _features(reader: _Reader, transform: Transform, cache: Path | None, progress: bool, device: str) -> np.ndarray:
    shape = (reader.size, *transform.feature_shape)
    if not reader.size:
        return np.zeros(shape, np.float16)
    if cache is None:
        with tempfile.TemporaryFile(prefix="cords_dp-") as file:  # it has no name, and ends with the last who maps it
            features = np.memmap(file, dtype=np.float16, mode="w+", shape=shape)
            allocate(file.fileno(), features.nbytes)
            _write_features(reader, transform, features, progress, device)
        return features
    path = cache / f"{re.sub(r'[^0-9A-Za-z.-]', '_', transform.name)}-{reader.fingerprint(transform)}.npy"
    with contextlib.suppress(OSError):  # not there yet, or somebody else's
        cache.chmod(0o700)
    if not path.is_file():
        _make_private(cache)
        with FileLock(path.with_suffix(".lock")):  # two runs that start together compute them once
            if not path.is_file():
                part = GrowingFile(path, shape)
                _write_features(reader, transform, part.features, progress, device, part)
                part.finish()  # not after an error: what was written stays there for the next run
    return _stored(path, shape)


def _make_private(cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (cache / "README.txt").exists():
        (cache / "README.txt").write_text(_README)
    remove_stale(cache)  # of a run that was killed


class _Reader:
    """The records whose features are kept, a few at a time: the whole store's where it tells its content, or the set's.

    ``rows``: where the set's records then lie among them; None if they stay where they are.
    """

    def __init__(self, records: RecordSet, progress: bool):
        self._store, self._progress = records.store, progress
        self._content = self._store.content()
        self._picked = None if self._content is not None else records.rows
        self.size = len(self._store) if self._picked is None else len(self._picked)
        self.rows = None if self._picked is None else np.arange(self.size)
        self._labels: Tensor | None = None

    def batches(self, size: int, first: int = 0) -> Iterator[Tensor]:
        """Yield the x of all records from ``first`` on. Their labels are noted on the way: reading may be slow."""
        noted = self._labels  # in one piece: small pieces between large ones would break up the memory
        for start in range(first, self.size, size):
            places = np.arange(start, min(start + size, self.size))
            x, y = self._store.read(places if self._picked is None else self._picked[places])
            if self._picked is not None:
                noted = y.new_empty((self.size, *y.shape[1:])) if noted is None else noted
                noted[torch.from_numpy(places)] = y
            yield x
        self._labels = noted

    def labels(self) -> Tensor:
        if self._picked is None or not self.size:
            return self._store.labels(np.arange(self.size))
        assert self._labels is not None
        return self._labels

    def fingerprint(self, transform: Transform) -> str:
        digest = hashlib.sha256(json.dumps([*transform.settings, self._store.constants]).encode())
        for piece in self._read_content() if self._content is None else self._content:
            digest.update(piece)
        return digest.hexdigest()[:24]

    def _read_content(self) -> Iterator[bytes]:
        """Yield what decides the records, in pieces, for a store that has nothing shorter to say."""
        with shown_bar(total=self.size, unit="record", desc="reading", shown=self._progress, leave=False) as bar:
            for x in self.batches(_BATCH):
                yield str((x.dtype, *x.shape[1:])).encode() + x.cpu().contiguous().numpy().tobytes()
                bar.update(len(x))


def _stored(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Map features that were computed before. Objects, whose unpickling could run code, are refused."""
    try:
        # "c": mapped, so that all processes share one copy in memory, and never written back
        features = np.load(path, mmap_mode="c", allow_pickle=False)
        if isinstance(features, np.ndarray) and features.shape == shape and features.dtype == np.float16:
            return features
    except Exception as error:  # numpy and pickle raise many kinds
        raise DatasetUnavailableError(f"the features in {path.name} are damaged; remove the file") from error
    raise DatasetUnavailableError(f"the features in {path.name} are not those of this dataset; remove the file")


def _write_features(
    reader: _Reader,
    transform: Transform,
    features: np.ndarray,
    progress: bool,
    device: str,
    part: GrowingFile | None = None,
) -> None:
    if reader.size >= _MANY and device == "cpu" and hasattr(transform, "prepare_for_many"):
        transform.prepare_for_many(progress)
    start = part.rows if part else 0
    bar = shown_bar(total=reader.size, initial=start, unit="record", desc=transform.name, shown=progress, leave=False)

    def compute(x: Tensor) -> np.ndarray:
        with np.errstate(over="ignore"):  # a feature that half precision cannot hold makes its record void
            return transform(x.to(device)).cpu().numpy().astype(np.float16)

    workers = _cores() if device == "cpu" and getattr(transform, "uses_one_core", False) else 1
    with bar, in_order(compute, reader.batches(getattr(transform, "batch", _BATCH), start), workers) as results:
        for rows in results:
            features[start : start + len(rows)] = rows
            start += len(rows)
            bar.update(len(rows))
            if part:
                part.note(start)


def _cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_SECONDS = 5.0  # between notes of how far the file has grown: what a kill can cost


class GrowingFile:
    """A large array on disk, written from its first row on; after a kill the next writer continues where it ended.

    ``features``: the array, in half precision. ``rows``: how many of its rows are on the device for sure.
    """

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
        descriptor = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            features = np.lib.format.open_memmap(self._part, mode="w+", dtype=np.float16, shape=shape)
            allocate(descriptor, os.fstat(descriptor).st_size)
        except OSError as error:
            self._part.unlink(missing_ok=True)
            error.filename = error.filename or str(self._path)
            raise
        finally:
            os.close(descriptor)
        return 0, features

    def note(self, rows: int) -> None:
        """Say that so many rows are written. The device is waited for now and then only."""
        if time.monotonic() - self._noted > _SECONDS:
            self.features.flush()  # rows first: the count must never be ahead of them
            write_durably(self._count, str(rows), mode=0o600)
            self._noted = time.monotonic()

    def finish(self) -> None:
        """Give the file its name, once all rows are written."""
        self.features.flush()
        sync(self._part)
        os.replace(self._part, self._path)
        self._count.unlink(missing_ok=True)
        sync(self._path.parent)
