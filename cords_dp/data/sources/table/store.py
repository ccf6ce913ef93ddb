"""A table in its compact form on disk, so that a run needs no more memory than a batch.

The file holds private records in plain. It is for its owner's eyes only (mode 0600) and lies below ``dataset.datadir``,
or nowhere: with ``dataset.cache=False`` it has no name and is gone when the run ends. It is there whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from filelock import FileLock
from torch import Tensor

from cords_dp.data.sources.table.encoding import Encoding
from cords_dp.data.sources.table.files import TableFile
from cords_dp.data.sources.table.schema import Categorical
from cords_dp.data.store import Store
from cords_dp.errors import ConfigError, DataError, DatasetUnavailableError
from cords_dp.files import remove_stale, replacing, write_durably
from cords_dp.progress import shown_bar

_NOTE = """These files hold private records in plain: compact copies of tables that were trained on (dataset.cache).
Only their owner can read them. They can be removed at any time; a run makes them again.
"""
_FORMAT = 1  # of the compact copy; raise it with any change of what a record becomes


class TableStore(Store):
    """Records of a compact table; cells are filled in when they are read.

    file: the table that they come from, for its owner's predictions. Those at ``unreadable`` are NaN in every cell.
    """

    may_fail = False

    def __init__(
        self, stored: np.ndarray, encoding: Encoding, file: TableFile | None = None, unreadable: Sequence[int] = ()
    ):
        self.stored, self.encoding, self._file, self._unreadable = stored, encoding, file, unreadable

    def __len__(self) -> int:
        return len(self.stored)

    def read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        records = self.stored[rows]
        x = torch.from_numpy(self.encoding.vectors(records))
        if len(self._unreadable):
            x[torch.from_numpy(np.isin(rows, self._unreadable))] = torch.nan
        return x, self._targets(records["label"])

    def labels(self, rows: np.ndarray) -> Tensor:
        return self._targets(self.stored["label"][rows])

    def _targets(self, labels: np.ndarray) -> Tensor:
        return torch.from_numpy(labels.astype(np.int64 if self.encoding.schema.classes else np.float32))

    def range(self, start: int, stop: int) -> TableStore:
        return TableStore(self.stored[start:stop], self.encoding)

    def category_codes(self, column: str) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return every record's code in a categorical column, and the categories that the codes count."""
        place = [coded.name for coded in self.encoding.coded].index(column)
        known = self.encoding.coded[place]
        if not isinstance(known, Categorical):
            raise DataError(f"column {column!r} has no categories")
        return self.stored["codes"][:, place], known.categories

    def with_encoding(self, encoding: Encoding) -> TableStore:
        """Return the same records in other units."""
        return TableStore(self.stored, encoding, self._file, self._unreadable)

    def identifiers(self, column: str) -> list[Any]:
        """Return the values of a column that need not be in the schema, as the file has them."""
        if self._file is None:
            return super().identifiers(column)
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
    """Return the records of a file in compact form, mapped into memory: all, or those in a range of row numbers, which
    has a copy of its own. Converted once, while others wait."""
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
    with shown_bar(unit="record", desc=f"reading {file.path.name}", leave=False) as bar:
        for chunk in file.chunks(names, *(bounds or ())):
            rows = encoding.rows(chunk)
            out.write(rows.tobytes())
            bar.update(len(rows))


def _private_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (folder / "README.txt").is_file():
        write_durably(folder / "README.txt", _NOTE)


def _name(file: TableFile, encoding: Encoding, bounds: Range | None) -> str:
    """Name the copy after the file's place, its schema, its size and when it was written: nothing of what is in it."""
    known = os.stat(file.path)
    facts = [_FORMAT, str(file.path.resolve()), file.header, file.settings, encoding.schema.to_plain()]
    what = json.dumps(facts if bounds is None else [*facts, bounds])
    when = json.dumps([known.st_size, known.st_mtime_ns])
    digests = (hashlib.sha256(text.encode()).hexdigest()[:16] for text in (what, when))
    return "table-" + "-".join(digests) + ".rows"
