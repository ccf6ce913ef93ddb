"""What the data's owner may do with a table and a run must not: everything here is exact, and nothing is private.

``cords-dp data import`` turns a CSV file as every tool writes it (RFC 4180) into a Parquet file, for a run to read.
``cords-dp data check --read`` shows, on the screen alone, what a run would make of a table and never says.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet

from cords_dp.data.sources.table.encoding import as_texts, faults
from cords_dp.data.sources.table.files import CSV_SUFFIXES, QuotedCsv, TableFile
from cords_dp.data.sources.table.schema import Categorical, Column, Schema
from cords_dp.data.sources.table.source import single_column_hint, table_file
from cords_dp.errors import ConfigError, DataError
from cords_dp.files import replacing
from cords_dp.progress import shown_bar

_ROWS = 1 << 16
_REPLACED = "\ufffd"  # what bytes that are no UTF-8 are read as


class Imported(NamedTuple):
    """records: how many were written. columns: their names. refused: the lines at which records begin that could not be
    read. foreign: how many values hold bytes that are no UTF-8."""

    records: int
    columns: tuple[str, ...]
    refused: tuple[int, ...]
    foreign: int


def import_csv(path: Path, out: Path, *, header: Sequence[str] | None = None, delimiter: str | None = None) -> Imported:
    """Write the records of a CSV file as Parquet. All columns are texts: what they mean is for the schema to say."""
    if path.suffix not in CSV_SUFFIXES:
        raise ConfigError(
            "FILE", path.name, f"must be one of {', '.join(CSV_SUFFIXES)}; a run reads others as they are"
        )
    if out.suffix != ".parquet":
        raise ConfigError("--out", out.name, "must end with .parquet")
    file = table_file(path, header=header, target="", delimiter=delimiter, key="FILE", quoted=True)
    assert isinstance(file, QuotedCsv)
    if hint := single_column_hint(file):
        raise ConfigError("FILE", path.name, hint.removeprefix("; "))
    with replacing(out) as temporary:
        found = _write(file, temporary)
        if not found.records:
            raise DataError(f"{path.name} has no records that can be read")
    return found


def _write(file: QuotedCsv, out: Path) -> Imported:
    schema = pa.schema([(name, pa.string()) for name in file.header])
    written, foreign, refused = 0, 0, []
    records = file.records()
    with (
        pa_parquet.ParquetWriter(out, schema) as parquet,
        shown_bar(unit="record", desc=f"reading {file.path.name}", leave=False) as bar,
    ):
        while piece := list(itertools.islice(records, _ROWS)):
            rows = [record.fields for record in piece if record.fields is not None]
            refused += [record.line for record in piece if record.fields is None]
            if rows:
                columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
                parquet.write_table(pa.Table.from_arrays(columns, schema=schema))
            written += len(rows)
            foreign += sum(_REPLACED in value for row in rows for value in row)
            bar.update(len(piece))
    return Imported(written, file.header, tuple(refused), foreign)


NOTE = "Exact figures and values of records, for the data's owner only: not private. Nothing was written or logged."
_SPELLINGS = 5
_LONGEST = 24


@dataclass
class ColumnLook:
    """How many values of a column a run would not read as they are, by kind; and how unknown ones are spelt."""

    column: Column
    counts: Counter[str] = field(default_factory=Counter)
    spellings: Counter[str] = field(default_factory=Counter)

    def add(self, values: Any, missing: tuple[str, ...], readable: np.ndarray) -> None:
        found = faults(self.column, values, missing)
        unknown = np.zeros(len(readable), dtype=bool)
        for kind, mask in found.items():
            self.counts[kind] += int((mask & readable).sum())
            if kind in ("unreadable", "unlisted"):
                unknown |= mask & readable
        if unknown.any():
            self.spellings.update(as_texts(values).filter(unknown).to_pylist())


@dataclass(frozen=True)
class Look:
    """total: records (of a CSV file: lines). unreadable: those without any value, of which nothing else is counted."""

    total: int
    unreadable: int
    columns: tuple[ColumnLook, ...]
    target: ColumnLook

    @property
    def labelled(self) -> int:
        """How many records have a label that a run can learn from."""
        counts = self.target.counts
        return self.total - self.unreadable - sum(counts[kind] for kind in ("missing", "unreadable", "unlisted"))

    def facts(self) -> dict[str, Any]:
        """Return everything for JSON."""
        named = {
            look.column.name: {**look.counts, "spellings": dict(look.spellings.most_common(_SPELLINGS))}
            for look in (self.target, *self.columns)
        }
        sizes = {"records": self.total, "unreadable": self.unreadable, "labelled": self.labelled}
        return {"note": NOTE, **sizes, "columns": named}


def look_at(file: TableFile, schema: Schema) -> Look:
    """Read a table as a run would, and count what it would make of the values."""
    total = file.count()
    if not total:
        raise DataError(f"{file.path.name} has no records")
    readable = np.ones(total, dtype=bool)
    readable[file.unreadable()] = False
    looks = [ColumnLook(column) for column in (schema.target, *schema.columns)]
    place = 0
    for chunk in file.chunks([look.column.name for look in looks]):
        size = len(next(iter(chunk.values())))
        for look in looks:
            look.add(chunk[look.column.name], schema.missing, readable[place : place + size])
        place += size
    return Look(total, int((~readable).sum()), tuple(looks[1:]), looks[0])


# --- words -----------------------------------------------------------------------------------------------------

_KINDS = ("missing", "unreadable", "out of range", "unlisted")
_HEAD = ("column", *_KINDS, "most frequent spellings that are not known")


def describe_look(look: Look) -> str:
    """Return everything for the screen."""
    readable = look.total - look.unreadable
    size = f"{look.total:,} records"
    if look.unreadable:
        size = (
            f"{_share(look.unreadable, look.total)} of {look.total:,} lines cannot be read. "
            "To a run a line of a CSV file is a record;\n`cords-dp data import` reads values with line breaks."
        )
    rows = [_row(one, readable, " (target)" if one is look.target else "") for one in (look.target, *look.columns)]
    return "\n\n".join([NOTE, size, *([_aligned([_HEAD, *rows])] if readable else []), _describe_labels(look)])


def _row(look: ColumnLook, readable: int, mark: str) -> tuple[str, ...]:
    shares = [_share(look.counts[kind], readable) if kind in look.counts else "" for kind in _KINDS]
    spelt = (f"{_quoted(text)} {count:,}" for text, count in look.spellings.most_common(_SPELLINGS))
    return (look.column.name + mark, *shares, ", ".join(spelt))


def _aligned(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = []
    for first, *shares, last in rows:
        middle = (cell.rjust(width) for cell, width in zip(shares, widths[1:-1], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *middle, last]).rstrip())
    return "\n".join(lines)


def _describe_labels(look: Look) -> str:
    target, what, fix = look.target.column, "a target that can be read", ""
    if isinstance(target, Categorical):
        what, fix = "a label that the schema knows", f": spell labels as it does ({', '.join(target.categories)})"
    if not look.labelled:
        return f"No record has {what}.\nA run would learn nothing{fix}."
    rest = f"\nA run learns nothing from the others{fix}." if look.labelled < look.total else ""
    return f"{_share(look.labelled, look.total)} of the records have {what}.{rest}"


def _share(count: int, total: int) -> str:
    share = 100 * count / max(total, 1)
    if 0 < count < total and not 0.1 <= share <= 99.9:
        return "under 0.1 %" if share < 1 else "over 99.9 %"
    return f"{share:.1f} %"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…")
