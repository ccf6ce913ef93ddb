"""What is publicly known about a table: its columns, their ranges and categories, and the target.

A schema is written by hand (YAML, or a dict in the config) from knowledge that does not come from the records. Nothing
is inferred from values. So a schema may be shown, quoted in an error and kept beside the model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cords_dp.config.values import flag, suggest, whole
from cords_dp.errors import ConfigError

TODO = "TODO"  # stands in a template where knowledge is to be filled in
MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")
_MOST_CATEGORIES, _MOST_BINS, _MOST_COLUMNS, _WIDEST = 60_000, 10_000, 10_000, 1_000_000
_LARGEST = 1e300
_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True)
class Numeric:
    """A column of numbers in a public range; values outside are moved to its ends.

    bins: into how many equal parts of the range the values are sorted, or the inner borders; None keeps the number.
    log: distances are those of sign(v)·log(1 + |v|), for columns with few very large values.
    dates: values are dates, and numbers are days since 1970.
    """

    name: str
    low: float
    high: float
    bins: int | tuple[float, ...] | None = None
    log: bool = False
    dates: bool = False

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """Bring values into [−1, 1], each by itself; NaN where a value is no finite number."""
        values = np.where(np.isfinite(values), values, np.nan)
        low, high, inside = (self._stretched(v) for v in (self.low, self.high, np.clip(values, self.low, self.high)))
        return np.clip(2 * (inside - low) / (high - low) - 1, -1.0, 1.0)

    def unscaled(self, values: np.ndarray) -> np.ndarray:
        """Invert `scaled` in [−1, 1]: what a regression has predicted, in the column's own unit."""
        low, high = self._stretched(self.low), self._stretched(self.high)
        stretched = low + (np.clip(values, -1.0, 1.0) + 1) / 2 * (high - low)
        return np.sign(stretched) * np.expm1(np.abs(stretched)) if self.log else stretched

    def _stretched(self, values: Any) -> Any:
        return np.sign(values) * np.log1p(np.abs(values)) if self.log else values

    @cached_property
    def edges(self) -> np.ndarray:
        """Inner borders of the bins, in [−1, 1]."""
        if isinstance(self.bins, int):
            return np.linspace(-1.0, 1.0, self.bins + 1)[1:-1]
        return self.scaled(np.array(self.bins or (), dtype=np.float64))

    @property
    def cells(self) -> int:
        """A value and a flag for missing ones; or one cell for each bin and one for missing values."""
        return 2 if self.bins is None else len(self.edges) + 2

    def to_plain(self) -> dict[str, Any]:
        ends = [_EPOCH + timedelta(days=int(end)) for end in (self.low, self.high)] if self.dates else None
        plain: dict[str, Any] = {"name": self.name, "range": list(map(str, ends)) if ends else [self.low, self.high]}
        if self.bins is not None:
            plain["bins"] = self.bins if isinstance(self.bins, int) else list(self.bins)
        return {**plain, "log": True} if self.log else plain


@dataclass(frozen=True)
class Categorical:
    """A column with public categories. Other values share one cell, missing values have one."""

    name: str
    categories: tuple[str, ...]

    @property
    def cells(self) -> int:
        return len(self.categories) + 2

    def to_plain(self) -> dict[str, Any]:
        return {"name": self.name, "categories": list(self.categories)}


Column = Numeric | Categorical


@dataclass(frozen=True)
class Schema:
    """columns: what a record is made of, in the order of the schema. target: what is predicted. ignore: columns of the
    file that are not used. missing: words that stand for a missing value. header: the columns of a file that does not
    name them itself, in its order."""

    columns: tuple[Column, ...]
    target: Column
    ignore: tuple[str, ...] = ()
    missing: tuple[str, ...] = MISSING
    header: tuple[str, ...] | None = None

    @property
    def width(self) -> int:
        """How many cells a record has."""
        return sum(column.cells for column in self.columns)

    @property
    def classes(self) -> tuple[str, ...]:
        """Of the target; empty for a regression."""
        return self.target.categories if isinstance(self.target, Categorical) else ()

    def to_plain(self) -> dict[str, Any]:
        """Fit for JSON and YAML, and for `read_schema`. Columns are a list, since their order counts."""
        target = self.target.to_plain()
        if "categories" in target:
            target["classes"] = target.pop("categories")
        plain = {
            "target": target,
            "columns": [column.to_plain() for column in self.columns],
            "ignore": list(self.ignore),
            "missing": list(self.missing),
        }
        return plain if self.header is None else {**plain, "header": list(self.header)}


# --- reading --------------------------------------------------------------------------------------------------


def load_schema(given: Any, *, target: str | None = None, binning: int | None = None) -> Schema:
    """Load the schema that a config gives as a dict or as the path of a YAML file."""
    if isinstance(given, Mapping):
        return read_schema(given, target=target, binning=binning)
    return read_schema(_from_file(Path(given).expanduser()), target=target, binning=binning)


def _from_file(path: Path) -> Any:
    import yaml

    if not path.is_file():
        fix = "no such file; python -m cords_dp data describe writes a template"
        raise ConfigError("dataset.schema", path.name, fix)
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it was built
        return yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError("dataset.schema", path.name, f"is no YAML file: {error}") from error


def read_schema(given: Any, *, target: str | None = None, binning: int | None = None) -> Schema:
    """Check a schema. ``target``: the config's name for it. ``binning``: bins of numeric columns that have none."""
    if not isinstance(given, Mapping):
        raise ConfigError("schema", given, "must be a dict with `columns` and `target`")
    _known_keys("schema", given, ("columns", "target", "ignore", "missing", "header"))
    _refuse_several_gaps(given)
    columns = tuple(_column(*named, binning) for named in _named_columns(given.get("columns")))
    schema = Schema(
        columns=columns,
        target=_target(given.get("target"), target),
        ignore=_texts("schema.ignore", given.get("ignore") or ()),
        missing=MISSING if given.get("missing") is None else _texts("schema.missing", given["missing"], empty=True),
        header=None if given.get("header") is None else _texts("schema.header", given["header"]),
    )
    _check_names(schema)
    return schema


def _refuse_several_gaps(given: Mapping[str, Any]) -> None:
    """Name all that is still to be filled in, at once; a single gap is told where it is found."""
    named = given.get("columns")
    columns = named if isinstance(named, Mapping) else {}
    gaps = [f"column {name!r}" for name, facts in columns.items() if _is_gap(facts)]
    gaps += ["the target"] if _is_gap(given.get("target")) else []
    if len(gaps) > 1:
        fix = "say what is publicly known of each, or move columns that are not used (ids, free text) to `ignore`"
        raise ConfigError("schema", TODO, f"still to be filled in: {', '.join(gaps)}; {fix}")


def _is_gap(facts: Any) -> bool:
    return TODO in ([facts] if not isinstance(facts, Mapping) else list(facts.values()))


def _check_names(schema: Schema) -> None:
    names = [*(c.name for c in schema.columns), schema.target.name, *schema.ignore]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError("schema", twice[0], "is named twice in columns, target and ignore")
    if schema.width > _WIDEST:
        raise ConfigError("schema", schema.width, f"has more than {_WIDEST} cells; use fewer categories or bins")
    if schema.header is None:
        return
    if len(set(schema.header)) < len(schema.header):
        raise ConfigError("schema.header", list(schema.header), "names a column twice")
    if unknown := [name for name in schema.header if name not in names]:
        raise ConfigError("schema.header", unknown[0], "is neither in columns nor in ignore, and not the target")


def _named_columns(given: Any) -> list[tuple[str, Any]]:
    """List (name, what is said about it), from a dict by name or from a list of dicts with a key ``name``."""
    if isinstance(given, Mapping):
        pairs = [(_text("schema.columns", name), facts) for name, facts in given.items()]
    elif isinstance(given, Sequence) and not isinstance(given, str):
        pairs = []
        for place, facts in enumerate(given, start=1):
            if not isinstance(facts, Mapping) or "name" not in facts:
                raise ConfigError("schema.columns", facts, f"entry {place} must be a dict with a name")
            pairs.append((_text(f"schema.columns, entry {place}", facts["name"]), facts))
    else:
        raise ConfigError("schema.columns", given, "must name the columns, each with its range or its categories")
    if not 1 <= len(pairs) <= _MOST_COLUMNS:
        raise ConfigError("schema.columns", len(pairs), f"must be 1 to {_MOST_COLUMNS} columns")
    return pairs


def _column(name: str, facts: Any, binning: int | None) -> Column:
    key = f"schema.columns.{name}"
    if not isinstance(facts, Mapping) or ("range" in facts) == ("categories" in facts):
        fix = "say what is publicly known: range: [lowest, highest] of numbers, or categories: [...]"
        raise ConfigError(key, facts, f"still to be filled in: {fix}" if facts == TODO else fix)
    if "categories" in facts:
        _known_keys(key, facts, ("name", "categories"))
        return Categorical(name, _categories(f"{key}.categories", facts["categories"]))
    _known_keys(key, facts, ("name", "range", "bins", "log"))
    days = _days(facts["range"])
    low, high = _range(f"{key}.range", facts["range"] if days is None else days)
    bins = binning if facts.get("bins") is None else facts["bins"]
    log = flag(f"{key}.log", facts.get("log") or False)
    if days is not None and (log or isinstance(bins, (list, tuple))):
        raise ConfigError(key, facts, "of dates a range is enough; `bins` may say into how many equal parts it is cut")
    return Numeric(name, low, high, _bins(f"{key}.bins", bins, low, high), log, days is not None)


def _target(facts: Any, name: str | None) -> Column:
    if facts is None or not isinstance(facts, Mapping) or ("classes" in facts) == ("range" in facts):
        fix = "say what the target may be: classes: [...], or range: [lowest, highest] for a regression"
        raise ConfigError("schema.target", facts, fix)
    _known_keys("schema.target", facts, ("name", "classes", "range", "log"))
    own = None if facts.get("name") is None else _text("schema.target.name", facts["name"])
    if name is not None and own is not None and name != own:
        raise ConfigError("dataset.target", name, f"the schema's target is {own!r}")
    if name is None and own is None:
        raise ConfigError("dataset.target", None, "name the column to predict, here or in the schema")
    called = str(name or own)
    if "classes" in facts:
        classes = _categories("schema.target.classes", facts["classes"])
        if len(classes) < 2:
            raise ConfigError("schema.target.classes", list(classes), "must be two or more")
        return Categorical(called, classes)
    low, high = _range("schema.target.range", facts["range"])
    return Numeric(called, low, high, None, flag("schema.target.log", facts.get("log") or False))


def _known_keys(key: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise ConfigError(f"{key}.{name}", given[name], suggest(name, known))


def _range(key: str, value: Any) -> tuple[float, float]:
    fix = "must be two numbers (or dates, as in 2020-01-31), the lowest and the highest that are publicly possible"
    if value == TODO:
        raise ConfigError(key, value, f"still to be filled in: {fix}")
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(_is_number(v) for v in value):
        raise ConfigError(key, value, fix)
    low, high = float(value[0]), float(value[1])
    if not low < high:
        raise ConfigError(key, value, "the first must be below the second")
    return low, high


def _days(ends: Any) -> list[int] | None:
    """Read a range of dates in days since 1970: as YAML reads 2020-01-31, or as texts. None for any other range."""
    if not isinstance(ends, (list, tuple)):
        return None
    days = []
    for end in ends:
        try:
            day = date.fromisoformat(end) if isinstance(end, str) else end
        except ValueError:
            return None
        if not isinstance(day, date) or isinstance(day, datetime):
            return None
        days.append((day - _EPOCH).days)
    return days


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and abs(value) <= _LARGEST
    )


def _bins(key: str, value: Any, low: float, high: float) -> int | tuple[float, ...] | None:
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        return whole(key, value, low=2, high=_MOST_BINS)
    borders = tuple(float(v) for v in value if _is_number(v))
    if len(borders) != len(value) or not borders or list(borders) != sorted(set(borders)):
        raise ConfigError(key, value, "must be a number of bins, or their inner borders in ascending order")
    if not low < borders[0] or not borders[-1] < high or len(borders) >= _MOST_BINS:
        raise ConfigError(key, value, "inner borders must lie inside of the range")
    return borders


def _categories(key: str, value: Any) -> tuple[str, ...]:
    fix = "must be the list of values that are publicly possible"
    if value == TODO:
        raise ConfigError(key, value, f"still to be filled in: {fix}")
    categories = _texts(key, value)
    if twice := [c for c in categories if categories.count(c) > 1] if len(categories) < 1000 else []:
        raise ConfigError(key, twice[0], "stands twice in the list")
    if len(set(categories)) < len(categories) or len(categories) > _MOST_CATEGORIES:
        raise ConfigError(key, len(categories), f"must be at most {_MOST_CATEGORIES} different values")
    return categories


def _texts(key: str, value: Any, *, empty: bool = False) -> tuple[str, ...]:
    if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
        raise ConfigError(key, value, "must be a list")
    return tuple(_text(key, part, empty=empty) for part in value)


def _text(key: str, value: Any, *, empty: bool = False) -> str:
    """Check a name or category, without space around it. YAML reads yes, no and dates as something else."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ConfigError(key, value, 'is not a text to YAML: write it in quotes, as in "yes"')
    text = f"{value:g}" if isinstance(value, float) and value.is_integer() else str(value).strip()
    if not (text or empty) or not text.isprintable():
        raise ConfigError(key, value, "must be a printable text")
    return text
