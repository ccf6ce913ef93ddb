"""Files that hold a table: their header, which is public, and their columns, a few thousand rows at a time.

What a parser says about a bad file can quote the line that it stumbled over. It is never shown, and errors are raised
outside of the handlers, so that no traceback shows the cause either.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pa_parquet

from cords_dp.data.sources.table.csv_lines import SEPARATOR, Record, clean_blocks, count_lines, quoted_records
from cords_dp.errors import DatasetUnavailableError

if TYPE_CHECKING:
    import pandas as pd

Chunk = Mapping[str, pa.Array]
CSV_SUFFIXES = (".csv", ".tsv", ".txt", ".data")
SUFFIXES = (*CSV_SUFFIXES, ".parquet", ".npz")
_ROWS = 1 << 16
_LONGEST_HEADER = 1 << 22


class TableFile(ABC):
    """path: the file. header: the names of its columns, in its order. types: how columns are stored, where the file
    says so: "number", "text" or "date", or another type's name. settings: what else decides how it is read."""

    path: Path
    header: tuple[str, ...]
    types: Mapping[str, str]
    settings: tuple[str, ...] = ()

    def fields(self) -> int:
        """Return how many values a record has; in a file without a header those of its first line."""
        return len(self.header)

    @abstractmethod
    def count(self) -> int:
        """Count the records: public."""

    @abstractmethod
    def chunks(self, names: Sequence[str], start: int = 0, stop: int | None = None) -> Iterator[Chunk]:
        """Yield these columns of the rows from ``start`` up to ``stop``, in the file's order. Private values."""

    def unreadable(self) -> list[int]:
        """Return the places of records that have no values because they cannot be read. Private; not for a run."""
        return []


def open_table(
    path: Path, *, header: Sequence[str] | None = None, target: str = "", delimiter: str = "", quoted: bool = False
) -> TableFile:
    """Open the table in a file, of which the header is read. ``target``: what ``y`` of an .npz file is called.
    ``quoted``: read a CSV file by RFC 4180, with line breaks in quotation marks, as its owner may and a run must
    not."""
    if path.suffix == ".parquet":
        return _Parquet(path)
    if path.suffix == ".npz":
        return _Arrays(path, target)
    kind = QuotedCsv if quoted else _Csv
    return kind(path, header, delimiter or ("\t" if path.suffix == ".tsv" else ","))


def open_frame(frame: pd.DataFrame) -> TableFile:
    """Return a pandas table as one that was read from a file."""
    return _Frame(frame)


def _damaged(path: Path) -> DatasetUnavailableError:
    return DatasetUnavailableError(f"{path.name} cannot be read as a table: it is damaged, cut off or of another kind")


class _Csv(TableFile):
    """One line, one record. Columns are texts; what they mean is for the schema to say."""

    def __init__(self, path: Path, header: Sequence[str] | None, delimiter: str):
        self.path, self._named, self._delimiter = path, header is None, delimiter
        self.header = _header_line(path, delimiter) if header is None else tuple(header)
        self.types, self.settings = {}, (delimiter, "named" if self._named else "unnamed")

    def count(self) -> int:
        with self._records() as file:
            return count_lines(file)

    @contextlib.contextmanager
    def _records(self) -> Iterator[BinaryIO]:
        with open(self.path, "rb") as file:
            if self._named:
                file.readline(_LONGEST_HEADER)
            yield file

    def chunks(self, names: Sequence[str], start: int = 0, stop: int | None = None) -> Iterator[Chunk]:
        places = {name: str(self.header.index(name)) for name in names}
        with self._records() as file:
            for block in clean_blocks(file, len(self.header), self._delimiter, start=start, stop=stop):
                table = _parsed(block, len(self.header), sorted(set(places.values())))
                if table is None:
                    raise _damaged(self.path)
                yield {name: table.column(place).combine_chunks() for name, place in places.items()}

    def unreadable(self) -> list[int]:
        """List lines without any value: blank ones, and what `clean_blocks` makes of those that cannot be read."""
        found: list[int] = []
        place = 0
        for chunk in self.chunks(self.header):
            empty = np.logical_and.reduce(
                [pc.equal(column, "").to_numpy(zero_copy_only=False) for column in chunk.values()]
            )
            found += (place + np.flatnonzero(empty)).tolist()
            place += len(empty)
        return found

    def fields(self) -> int:
        return len(_first_line(self.path, self._delimiter))


def _parsed(block: bytes, width: int, wanted: list[str]) -> pa.Table | None:
    """Parse lines in their one form as columns of text. No type is inferred from values."""
    names = [str(place) for place in range(width)]
    try:
        return pa_csv.read_csv(
            io.BytesIO(block),
            read_options=pa_csv.ReadOptions(column_names=names, block_size=len(block) + 1),
            parse_options=pa_csv.ParseOptions(
                delimiter=SEPARATOR, quote_char=False, escape_char=False, ignore_empty_lines=False
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types={name: pa.string() for name in names},
                include_columns=wanted,
                strings_can_be_null=False,
                check_utf8=False,  # `clean_blocks` has seen to it
            ),
        )
    except Exception:
        return None


def _first_line(path: Path, delimiter: str) -> tuple[str, ...]:
    with open(path, "rb") as file:
        line = file.readline(_LONGEST_HEADER).decode("utf-8-sig", errors="replace").rstrip("\r\n")
    try:
        names = tuple(name.strip() for name in next(csv.reader([line], delimiter=delimiter, strict=True)))
    except (csv.Error, StopIteration):
        names = ()
    return names


def _header_line(path: Path, delimiter: str) -> tuple[str, ...]:
    return _column_names(path, _first_line(path, delimiter))


def _column_names(path: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    """Check the names in the first line; refuse them if they seem to be a record."""
    if not any(names) or any(_is_number(name) for name in names):
        raise DatasetUnavailableError(
            f"the first line of {path.name} does not name the columns; list them under `header` in the schema "
            "(`data import`, `data describe`: as --header)"
        )
    return _checked_header(path, names)


def _checked_header(path: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse names that do not tell columns apart. None is shown: without a header they are the first record."""
    names = tuple(name or f"column {place}" for place, name in enumerate(names, start=1))  # pandas' index has no name
    if len(set(names)) < len(names):
        raise DatasetUnavailableError(f"the header of {path.name} names a column twice")
    return names


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class QuotedCsv(TableFile):
    """Records as RFC 4180 has them (`csv_lines.quoted_records`). One that cannot be read has no values."""

    def __init__(self, path: Path, header: Sequence[str] | None, delimiter: str):
        self.path, self._named, self._delimiter = path, header is None, delimiter
        self.header = _column_names(path, self._first()) if header is None else tuple(header)
        self.types = {}

    def count(self) -> int:
        return sum(1 for _ in self.records())

    def records(self) -> Iterator[Record]:
        """Read the records below the header, if there is one."""
        with self._lines() as lines:
            records = quoted_records(lines, len(self.header), self._delimiter)
            yield from itertools.islice(records, 1 if self._named else 0, None)

    def chunks(self, names: Sequence[str], start: int = 0, stop: int | None = None) -> Iterator[Chunk]:
        places = {name: self.header.index(name) for name in names}
        wanted = itertools.islice(self.records(), start, stop)
        while rows := [record.fields for record in itertools.islice(wanted, _ROWS)]:
            yield {
                name: pa.array([None if row is None else row[place] for row in rows], pa.string())
                for name, place in places.items()
            }

    def unreadable(self) -> list[int]:
        return [place for place, record in enumerate(self.records()) if record.fields is None]

    def fields(self) -> int:
        return len(self._first())

    def _lines(self) -> TextIO:
        return open(self.path, newline="", encoding="utf-8-sig", errors="replace")

    def _first(self) -> tuple[str, ...]:
        """Return the fields of the first record."""
        with self._lines() as lines:
            try:
                first = next(csv.reader(lines, delimiter=self._delimiter, strict=True, skipinitialspace=True))
            except (csv.Error, StopIteration):
                first = []
        return tuple(name.strip() for name in first)


class _Parquet(TableFile):
    """Row groups are read a few thousand rows at a time."""

    def __init__(self, path: Path):
        self.path = path
        try:
            schema = pa_parquet.read_schema(path)
        except Exception:
            schema = None
        if schema is None:
            raise _damaged(path)
        self.header = _checked_header(path, tuple(schema.names))
        self.types = {field.name: _kind(field.type) for field in schema}

    def count(self) -> int:
        with pa_parquet.ParquetFile(self.path) as file:
            return int(file.metadata.num_rows)

    def chunks(self, names: Sequence[str], start: int = 0, stop: int | None = None) -> Iterator[Chunk]:
        batches = self._batches(names, start, stop)
        while True:
            try:
                batch = next(batches, None)
                chunk = {} if batch is None else {name: _plain(batch.column(name)) for name in names}
                failed = False
            except Exception:
                failed = True
            if failed:
                raise _damaged(self.path)
            if batch is None:
                return
            yield chunk

    def _batches(self, names: Sequence[str], start: int, stop: int | None) -> Iterator[pa.RecordBatch]:
        """Yield batches of the rows; row groups outside of the range are not read."""
        with pa_parquet.ParquetFile(self.path) as file:
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            ends = np.cumsum(sizes)
            stop = int(sum(sizes)) if stop is None else stop
            groups = [g for g, end in enumerate(ends) if end > start and end - sizes[g] < stop]
            place = int(ends[groups[0]] - sizes[groups[0]]) if groups else 0
            for batch in file.iter_batches(batch_size=_ROWS, row_groups=groups, columns=list(dict.fromkeys(names))):
                first, last = max(start - place, 0), min(stop - place, len(batch))
                if first < last:
                    yield batch.slice(first, last - first)
                place += len(batch)


def _kind(stored: pa.DataType) -> str:
    if pa.types.is_dictionary(stored):
        return _kind(stored.value_type)
    if pa.types.is_string(stored) or pa.types.is_large_string(stored):
        return "text"
    if pa.types.is_date(stored) or pa.types.is_timestamp(stored):
        return "date"
    number = pa.types.is_integer(stored) or pa.types.is_floating(stored) or pa.types.is_decimal(stored)
    return "number" if number or pa.types.is_boolean(stored) or pa.types.is_null(stored) else str(stored)


def _plain(column: pa.Array) -> pa.Array:
    """Return texts or numbers, whatever way they are stored."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return _decoded(column.cast(pa.string()))
    if pa.types.is_decimal(column.type) or pa.types.is_float16(column.type):
        return column.cast(pa.float64(), safe=False)
    return column


def _decoded(texts: pa.Array) -> pa.Array:
    """Decode texts in which a byte that is no UTF-8 spoils its own value only."""
    try:
        texts.validate(full=True)
        return texts
    except pa.ArrowInvalid:
        raw = texts.cast(pa.binary()).to_pylist()
    return pa.array([None if value is None else value.decode("utf-8", "replace") for value in raw], pa.string())


class _Arrays(TableFile):
    """An .npz file: an array for each column; or ``x`` with a row for each record, ``columns``, and ``y``."""

    def __init__(self, path: Path, target: str):
        self.path, self._target = path, target
        found = self._member("columns") if self._has("columns", "x") else None
        self._matrix = found is not None
        if found is not None:
            names = tuple(str(name).strip() for name in found.ravel().tolist())
            names += (target,) if self._has("y") else ()
        else:
            names = self._files()
        self.header, self.types = _checked_header(path, names), {}

    def count(self) -> int:
        return len(self._member("x" if self._matrix else self.header[0]))

    def chunks(self, names: Sequence[str], start: int = 0, stop: int | None = None) -> Iterator[Chunk]:
        columns = self._columns(names)
        sizes = {len(column) for column in columns.values()}
        if len(sizes) != 1:
            raise DatasetUnavailableError(f"the arrays of {self.path.name} are of different lengths")
        (total,) = sizes
        stop = total if stop is None else stop
        for first in range(start, stop, _ROWS):
            last = min(first + _ROWS, stop)
            yield {name: _from_numpy(column[first:last]) for name, column in columns.items()}

    def _columns(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        if not self._matrix:
            columns = {name: self._member(name) for name in names}
        else:
            x, places = self._member("x"), {name: place for place, name in enumerate(self.header)}
            if x.ndim != 2 or x.shape[1] != len(self.header) - self._has("y"):
                raise DatasetUnavailableError(
                    f"x of {self.path.name} must have a row for each record, as wide as columns"
                )
            columns = {name: x[:, places[name]] for name in names if name != self._target or not self._has("y")}
            if self._has("y") and self._target in names:
                columns[self._target] = self._member("y")
        if any(column.ndim != 1 or column.dtype.kind not in "fiubUS" for column in columns.values()):
            raise DatasetUnavailableError(f"the arrays of {self.path.name} must be rows of numbers or of texts")
        return columns

    def _files(self) -> tuple[str, ...]:
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                return tuple(archive.files)
        except Exception:
            pass
        raise _damaged(self.path)

    def _has(self, *names: str) -> bool:
        return set(names) <= set(self._files())

    def _member(self, name: str) -> np.ndarray:
        """Load one array. Objects, whose unpickling could run code, are refused."""
        try:
            with np.load(self.path, allow_pickle=False) as archive:
                return np.asarray(archive[name])
        except Exception:
            pass
        raise _damaged(self.path)


def _from_numpy(column: np.ndarray) -> Any:
    kind = column.dtype.kind
    if kind in "US":
        raw = column if kind == "S" else np.char.encode(column, "utf-8", "replace")  # half of a pair is no text
        return pa.array(np.char.decode(raw, "utf-8", "replace").tolist(), pa.string())
    return pa.array(np.ascontiguousarray(column, dtype={"f": "f8", "i": "i8", "u": "u8", "b": "?"}[kind]))


class _Frame(TableFile):
    """A pandas table. Its values are what they would be in a CSV file that it is written to."""

    def __init__(self, frame: pd.DataFrame):
        self.path, self._frame = Path("the DataFrame"), frame
        self.header = _checked_header(self.path, tuple(str(name).strip() for name in frame.columns))
        kinds = {"i": "number", "u": "number", "f": "number", "M": "date", "m": "duration", "c": "complex numbers"}
        self.types = {
            name: kinds.get(getattr(dtype, "kind", ""), "text")
            for name, dtype in zip(self.header, frame.dtypes, strict=True)
        }

    def count(self) -> int:
        return len(self._frame)

    def chunks(self, names: Sequence[str], start: int = 0, stop: int | None = None) -> Iterator[Chunk]:
        stop = len(self._frame) if stop is None else stop
        for first in range(start, stop, _ROWS):
            part = self._frame.iloc[first : min(first + _ROWS, stop)]
            yield {name: self._column(part, name) for name in names}

    def _column(self, part: pd.DataFrame, name: str) -> pa.Array:
        values = part.iloc[:, self.header.index(name)]
        if self.types[name] == "number":
            return _plain(pa.Array.from_pandas(values))
        texts = (str(value).encode("utf-8", "replace").decode() for value in values)
        return pa.array([None if gone else text for gone, text in zip(values.isna(), texts, strict=True)], pa.string())
