"""``dataset.name = "table"``: a CSV, Parquet or .npz file and the schema that says what is public about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any, ClassVar

import numpy as np

from cords_dp.config.values import Key, folder, one_of, path, text, whole
from cords_dp.data.record_set import RecordSet, Share, Splits, read_part
from cords_dp.data.sources.base import (
    SPLIT_KEYS,
    Facts,
    Rows,
    Source,
    check_split,
    owner_key,
    split_rows,
    split_store,
    tested_records,
)
from cords_dp.data.sources.table import scaling
from cords_dp.data.sources.table.encoding import NORM, Encoding
from cords_dp.data.sources.table.files import CSV_SUFFIXES, SUFFIXES, TableFile, open_frame, open_table
from cords_dp.data.sources.table.schema import Numeric, Schema, load_schema, read_schema
from cords_dp.data.sources.table.store import TableStore, stored_table
from cords_dp.errors import ConfigError, DataError, DatasetUnavailableError
from cords_dp.planning.schedule import Preparation

_FILES = ("path", "validation_path", "test_path")
_DELIMITERS = (",", ";", "\t", "|", ":")
_SILENT = (
    "A run does not tell what it cannot read; "
    "`cords-dp data check FILE --schema FILE --read` shows it to the data's owner."
)
_LINES = "To a run a line of a CSV file is a record; `cords-dp data import` reads values with line breaks."


def _schema(key: str, value: Any) -> Any:
    return value if isinstance(value, Mapping) else path(key, value)


class TableSource(Source):
    """Rows of a table as vectors of length at most 1 (`table.encoding`)."""

    name: ClassVar[str] = "table"
    keys: ClassVar[Mapping[str, Key]] = {
        **SPLIT_KEYS,
        "owner": owner_key("A column, which is neither learned from nor predicted"),
        "path": Key(path, None, "the file"),
        "target": Key(text, None, "the column to predict"),
        "schema": Key(_schema, None, "a YAML file or a dict"),
        "binning": Key(
            partial(whole, low=2, high=10_000), None, "bins of numeric columns for which the schema has none"
        ),
        "scaling": Key(
            partial(one_of, choices=("range", "private")),
            None,
            '"range" brings numbers to [−1, 1] by their public range; "private" then centres them by means and spreads '
            "that are released and paid for (`table.scaling`)",
        ),
        "delimiter": Key(partial(one_of, choices=_DELIMITERS), None, "of a CSV file"),
    }

    def check(self, section: Mapping[str, Any], *, private: bool) -> None:
        schema = _schema_of(section)
        check_split(section)
        if self.preparation(section) is not None and not private:
            raise ConfigError("dataset.scaling", "private", "is for private strategies; leave the key out")
        for key in _FILES:
            if key == "path" or section.get(key) is not None:
                _open(section, key, schema)
        folder("dataset.datadir", _folder(section))

    def facts(self, section: Mapping[str, Any]) -> Facts:
        schema = _schema_of(section)
        return Facts((schema.width,), schema.classes, norm=NORM)

    def build(self, section: Mapping[str, Any], rng: np.random.Generator) -> Splits:
        encoding = Encoding(_schema_of(section))

        def records(key: str) -> RecordSet[TableStore]:
            return RecordSet(_stored(section, key, encoding))

        train = records("path")
        validation, test = (None if section.get(key) is None else records(key) for key in _FILES[1:])
        owned = section.get("owner") is not None
        owners = [_names(section, key, encoding.schema) for key in _FILES] if owned else None
        return split_store(train, validation, test, section, rng, len(encoding.schema.classes) or 1, owners)

    def build_part(self, section: Mapping[str, Any], rng: np.random.Generator, share: Share) -> Splits:
        """Read this process's range of the file: row groups of Parquet, lines of CSV, which the others count only.

        The records of a public test set without a label are left out by each for itself, so its ``total`` is not the
        number of records that are tested. With owners every process reads the file: who has a record in a range is
        private.
        """
        if section.get("owner") is not None:
            return self.build(section, rng)
        encoding = Encoding(_schema_of(section))

        def part_of(key: str, rows: np.ndarray | None, total: int) -> RecordSet[TableStore]:
            return read_part(total, rows, share, lambda start, stop: _stored(section, key, encoding, (start, stop)))

        total = _counted(section, "path", encoding)
        split = split_rows(total, section, rng)
        parts = []
        for part in Rows._fields:
            key = f"{part}_path"
            if section.get(key) is not None:
                rows, size = None, _counted(section, key, encoding)
            else:
                key, rows, size = "path", getattr(split, part), total
            parts.append(part_of(key, rows, size))
        outputs = len(encoding.schema.classes) or 1
        return Splits(parts[0], parts[1], tested_records(parts[2], section, outputs), outputs)

    def remark(self, section: Mapping[str, Any]) -> str:
        """Return one of two fixed lines, by the names of the files: no record decides what is said."""
        paths = (section.get(key) for key in _FILES)
        lines = any(Path(path).suffix in CSV_SUFFIXES for path in paths if path is not None)
        return f"{_SILENT} {_LINES}" if lines else _SILENT

    def preparation(self, section: Mapping[str, Any]) -> Preparation | None:
        return scaling.preparation(Encoding(_schema_of(section))) if section.get("scaling") == "private" else None

    def sums(self, dataset: RecordSet[TableStore]) -> np.ndarray:
        return scaling.sums(dataset)

    def fitted(self, released: np.ndarray, deviation: float) -> dict[str, Any]:
        return scaling.fitted(released, deviation)

    def prepared(self, dataset: RecordSet[TableStore], fit: Mapping[str, Any]) -> RecordSet[TableStore]:
        return scaling.scaled(dataset, fit)

    def card(self, section: Mapping[str, Any]) -> dict[str, Any]:
        schema = _schema_of(section)
        return {
            "source": self.name,
            "schema": schema.to_plain(),
            "classes": list(schema.classes),
            "shape": [schema.width],
            "delimiter": section.get("delimiter"),
        }

    def read(self, card: Mapping[str, Any], path: str) -> RecordSet[TableStore]:
        """Read the records of a file, whose columns may be more than the schema names. A CSV file is read by RFC 4180:
        this is an act of its owner, who may see what a run must not show."""
        encoding, where = Encoding(read_schema(card["schema"])), Path(path).expanduser()
        schema = encoding.schema
        file = _to_predict(where, schema, card.get("delimiter"))
        if schema.header is not None and file.fields() == len(schema.header) - 1:  # its lines end without a target
            rest = replace(schema, header=tuple(name for name in schema.header if name != schema.target.name))
            file = _to_predict(where, rest, card.get("delimiter"))
        records = stored_table(file, encoding, Path(gettempdir()), cache=False, target=False)
        return _as_fitted(TableStore(records, encoding, file, file.unreadable()), card)

    def read_frame(self, card: Mapping[str, Any], frame: Any) -> RecordSet[TableStore] | None:
        encoding, file = Encoding(read_schema(card["schema"])), open_frame(frame)
        names = [column.name for column in encoding.schema.columns]
        if len(file.header) == encoding.schema.width and not set(names) & set(file.header):
            return None  # cells
        check_header(file, encoding.schema, target=False, others=True)
        rows = [np.zeros(0, dtype=encoding.row_type), *map(encoding.rows, file.chunks(names))]
        return _as_fitted(TableStore(np.concatenate(rows), encoding), card)

    def in_target_unit(self, card: Mapping[str, Any], values: np.ndarray) -> np.ndarray:
        """Return targets that were scaled to [−1, 1] in their own unit, by the public range of the schema."""
        target = read_schema(card["schema"]).target
        return target.unscaled(values) if isinstance(target, Numeric) else values


def _as_fitted(store: TableStore, card: Mapping[str, Any]) -> RecordSet[TableStore]:
    """Return records for a prediction, around the centres that a run has released, if it has."""
    records = RecordSet(store)
    return scaling.scaled(records, card["fitted"]) if card.get("fitted") else records


def _to_predict(where: Path, schema: Schema, delimiter: str | None) -> TableFile:
    name = schema.target.name
    file = table_file(where, header=schema.header, target=name, delimiter=delimiter, key="--input", quoted=True)
    check_header(file, schema, target=False, others=True)
    return file


def _stored(
    section: Mapping[str, Any], key: str, encoding: Encoding, bounds: tuple[int, int] | None = None
) -> TableStore:
    file, cache = _open(section, key, encoding.schema), section.get("cache") is not False
    return TableStore(stored_table(file, encoding, _folder(section), cache=cache, bounds=bounds), encoding)


def _names(section: Mapping[str, Any], key: str, schema: Schema) -> Iterator[Any]:
    """Yield each record's owner, as the file has it, None for a word for missing values. Nothing keeps them."""
    column = section["owner"]
    for chunk in _open(section, key, schema).chunks([column]):
        for name in chunk[column].to_pylist():
            yield None if isinstance(name, str) and name.strip() in schema.missing else name


def _counted(section: Mapping[str, Any], key: str, encoding: Encoding) -> int:
    file = _open(section, key, encoding.schema)
    total = file.count()
    if not total:
        raise DataError(f"{file.path.name} has no records")
    return total


def _schema_of(section: Mapping[str, Any]) -> Schema:
    if section.get("schema") is None:
        fix = "say what is public about the table; python -m cords_dp data describe writes a template"
        raise ConfigError("dataset.schema", None, fix)
    schema = load_schema(section["schema"], target=section.get("target"), binning=section.get("binning"))
    return schema if section.get("owner") is None else _without_owner(schema, section["owner"])


def _without_owner(schema: Schema, owner: str) -> Schema:
    """Return the schema of a table with a column of owners, which is neither predicted nor learned from."""
    if owner == schema.target.name:
        raise ConfigError("dataset.owner", owner, "is the column to predict; name the one that says whose a record is")
    if owner in (column.name for column in schema.columns):
        fix = "is a column to learn from; take it out of the schema's columns: a model must not know who somebody is"
        raise ConfigError("dataset.owner", owner, fix)
    return schema if owner in schema.ignore else replace(schema, ignore=(*schema.ignore, owner))


def _folder(section: Mapping[str, Any]) -> Path:
    return Path(section.get("datadir") or "data").expanduser() / "tables"


def _open(section: Mapping[str, Any], key: str, schema: Schema) -> TableFile:
    if section.get(key) is None:
        raise ConfigError(f"dataset.{key}", None, "say where the table is: a .csv, .parquet or .npz file")
    where, name, mark = Path(section[key]).expanduser(), schema.target.name, section.get("delimiter")
    file = table_file(where, header=schema.header, target=name, delimiter=mark, key=f"dataset.{key}")
    check_header(file, schema)
    if section.get("owner") is not None and section["owner"] not in file.header:
        raise ConfigError("dataset.owner", section["owner"], f"{file.path.name} has no such column")
    return file


def table_file(
    where: Path,
    *,
    header: Sequence[str] | None,
    target: str,
    delimiter: str | None,
    key: str,
    quoted: bool = False,
) -> TableFile:
    """Open the table in a file and read its header alone. ``key``: its name in errors. ``quoted``: see `open_table`."""
    if not where.is_file():
        raise ConfigError(key, where.name, "no such file")
    if where.suffix not in SUFFIXES:
        raise ConfigError(key, where.name, f"must be one of {', '.join(SUFFIXES)}")
    if delimiter is not None:
        one_of("delimiter", delimiter, _DELIMITERS)
    return open_table(where, header=header, target=target, delimiter=delimiter or "", quoted=quoted)


def single_column_hint(file: TableFile) -> str:
    """Say what is likely where a table seems to have one column. Nothing of the file is quoted."""
    if len(file.header) > 1 or file.path.suffix not in CSV_SUFFIXES:
        return ""
    return "; it seems to have a single column: where fields are not separated by commas, say by what (delimiter)"


def check_header(file: TableFile, schema: Schema, *, target: bool = True, others: bool = False) -> None:
    """Refuse a file whose columns are not those of the schema.

    Columns that the schema does not name are told by their place: in a file without a header, what stands there is a
    record. ``target``: must the target be there, too? ``others``: may there be columns that the schema does not name?
    """
    name, wanted = file.path.name, [column.name for column in schema.columns]
    known = {*wanted, schema.target.name, *schema.ignore}
    dated = {column.name for column in schema.columns if isinstance(column, Numeric) and column.dates}
    places = [str(place) for place, column in enumerate(file.header, start=1) if column not in known]
    if places and not others:
        shown = ", ".join(places[:10]) + (", …" if len(places) > 10 else "")
        raise DatasetUnavailableError(
            f"{name} has columns that the schema does not name (number {shown} of its header); add them to columns or "
            f"to ignore, or list the names under `header` if the file has none{single_column_hint(file)}"
        )
    for column in [*wanted, *([schema.target.name] if target else [])]:
        if column not in file.header:
            hint = single_column_hint(file) if others else ""
            raise DatasetUnavailableError(f"{name} has no column {column!r}, which the schema names{hint}")
        kind = file.types.get(column, "text")
        dates = column in dated
        if kind not in ("text", "date" if dates else "number"):
            fit = "dates" if dates else "numbers"
            also = "; of dates, the schema's range has to be one of dates" if kind == "date" else ""
            raise DatasetUnavailableError(
                f"column {column!r} of {name} is stored as {kind}; store {fit} or texts{also}"
            )
