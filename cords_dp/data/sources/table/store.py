"""A table in its compact form on disk, so that a run needs no more memory than a batch.

The file holds private records in plain. It is for its owner's eyes only (mode 0600) and lies below ``dataset.datadir``,
or nowhere: with ``dataset.cache=False`` it has no name and is gone when the run ends. It is there whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor
from tqdm import tqdm

from cords_dp.data.arrays import RowsOfStore
from cords_dp.data.sources.table.encoding import Encoding
from cords_dp.data.sources.table.files import TableFile
from cords_dp.data.sources.table.schema import Categorical
from cords_dp.errors import ConfigError, DataError, DatasetUnavailableError
from cords_dp.files import remove_stale, replacing, write_durably

_NOTE = """These files hold private records in plain: compact copies of tables that were trained on (dataset.cache).
Only their owner can read them. They can be removed at any time; a run makes them again.
"""
_FORMAT = 1  # of the compact copy; raise it with any change of what a record becomes


class TableDataset(RowsOfStore):
    """Records of a compact table; cells are filled in when a batch is read."""

    def __init__(self, stored: np.ndarray, encoding: Encoding, rows: np.ndarray):
        self.stored, self.encoding, self.rows = stored, encoding, rows

    @property
    def store_size(self) -> int:
        return len(self.stored)

    def part(self, start: int, stop: int, rows: np.ndarray) -> TableDataset:
        return TableDataset(self.stored[start:stop], self.encoding, rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.batch([index])
        return x[0], y[0]

    def batch(self, indices: Iterable[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        records = self.stored[self.rows[np.asarray(indices, dtype=np.int64)]]
        labels = records["label"].astype(np.int64 if self.encoding.schema.classes else np.float32)
        return torch.from_numpy(self.encoding.vectors(records)), torch.from_numpy(labels)

    def category_codes(self, column: str) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return each record's code in a categorical column, and the categories that the codes count."""
        place = [coded.name for coded in self.encoding.coded].index(column)
        known = self.encoding.coded[place]
        if not isinstance(known, Categorical):
            raise DataError(f"column {column!r} has no categories")
        return self.stored["codes"][self.rows, place], known.categories

    def with_encoding(self, encoding: Encoding) -> TableDataset:
        """The same records in other units."""
        return TableDataset(self.stored, encoding, self.rows)


class FileRecords(TableDataset):
    """The records of a whole file, for its owner's predictions. Those at ``unreadable`` are NaN in every cell."""

    def __init__(self, stored: np.ndarray, encoding: Encoding, file: TableFile, unreadable: Sequence[int]):
        super().__init__(stored, encoding, np.arange(len(stored)))
        self._file, self._unreadable = file, unreadable

    def batch(self, indices: Iterable[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        x, y = super().batch(indices)
        x[torch.from_numpy(np.isin(np.asarray(indices), self._unreadable))] = torch.nan
        return x, y

    def with_encoding(self, encoding: Encoding) -> FileRecords:
        return FileRecords(self.stored, encoding, self._file, self._unreadable)

    def identifiers(self, column: str) -> list[Any]:
        """Return the values of a column that need not be in the schema, as the file has them."""
        if column not in self._file.header:
            raise ConfigError("--id", column, f"{self._file.path.name} has no such column")
        return [value for chunk in self._file.chunks([column]) for value in chunk[column].to_pylist()]


Range = tuple[int, int]


def stored_table(
    file: TableFile,
    encoding: Encoding,
    folder: Path,
    *,
    cache: bool,
    target: bool = True,
    bounds: Range | None = None,
) -> np.ndarray:
    """The records of a file in compact form, mapped into memory: all, or those in a range of row numbers, which has a
    copy of its own. Converted once, while others wait."""
    if bounds is not None and bounds[0] == bounds[1]:
        return np.zeros(0, dtype=encoding.row_type)
    if not cache:
        return _unnamed(file, encoding, folder, target, bounds)
    path = folder / _name(file, encoding, bounds)
    _private_folder(folder)
    with FileLock(path.with_suffix(".lock"), mode=0o600):
        if not path.is_file():
            remove_stale(folder)
            for old in folder.glob(f"{path.name.rsplit('-', 1)[0]}-*.rows"):
                old.unlink(missing_ok=True)  # of the same file before it was changed
            with replacing(path) as temporary:
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with open(descriptor, "wb") as out:
                    _convert(file, encoding, out, target, bounds)
    return _mapped(path, file, encoding)


def _unnamed(file: TableFile, encoding: Encoding, folder: Path, target: bool, bounds: Range | None) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as out:  # has no name, so nobody else can open it
        _convert(file, encoding, out, target, bounds)  # type: ignore[arg-type]
        out.flush()
        return _mapped(out, file, encoding)  # type: ignore[arg-type]


def _mapped(stored: Path | BinaryIO, file: TableFile, encoding: Encoding) -> np.ndarray:
    size = stored.stat().st_size if isinstance(stored, Path) else os.fstat(stored.fileno()).st_size
    if not size:
        raise DataError(f"{file.path.name} has no records")
    if size % encoding.row_type.itemsize:
        raise DatasetUnavailableError(f"the compact copy of {file.path.name} is damaged; remove it")
    return np.memmap(stored, dtype=encoding.row_type, mode="r")


def _convert(file: TableFile, encoding: Encoding, out: BinaryIO, target: bool, bounds: Range | None) -> None:
    schema = encoding.schema
    names = [column.name for column in schema.columns] + ([schema.target.name] if target else [])
    with tqdm(unit="record", desc=f"reading {file.path.name}", disable=None, leave=False) as bar:
        for chunk in file.chunks(names, *(bounds or ())):
            rows = encoding.rows(chunk)
            out.write(rows.tobytes())
            bar.update(len(rows))


def _private_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (folder / "README.txt").is_file():
        write_durably(folder / "README.txt", _NOTE)


def _name(file: TableFile, encoding: Encoding, bounds: Range | None) -> str:
    """After the file's place, its schema, its size and when it was written: nothing of what is in it."""
    known = os.stat(file.path)
    facts = [_FORMAT, str(file.path.resolve()), file.header, file.settings, encoding.schema.to_plain()]
    what = json.dumps(facts if bounds is None else [*facts, bounds])
    when = json.dumps([known.st_size, known.st_mtime_ns])
    digests = (hashlib.sha256(text.encode()).hexdigest()[:16] for text in (what, when))
    return "table-" + "-".join(digests) + ".rows"
