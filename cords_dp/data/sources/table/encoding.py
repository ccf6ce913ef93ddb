"""From a table's values to vectors, one record at a time.

A record is kept as numbers in [−1, 1] and small codes, and becomes a vector of cells when a batch is read: a number and
a flag for each numeric column, one cell that is 1 for each column with categories or bins.

Formal guarantee: the vector and the label of a record are a function of that record and of the schema (and of scales
that were released before, see `Scales`) alone. A column adds at most 1 to the squared length of the cells, and cells
are multiplied with 1/√(columns): no vector is longer than 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cords_dp.data.sources.table.schema import Categorical, Column, Numeric, Schema

NO_CLASS = -100  # torch's cross-entropy leaves such a record out
NORM = 1.0


@dataclass(frozen=True)
class Scales:
    """Centres and widths of the numeric columns without bins, in units of the public range [−1, 1]."""

    centres: tuple[float, ...]
    widths: tuple[float, ...]

    def applied(self, numbers: np.ndarray) -> np.ndarray:
        """Centre numbers around 0, moved into [−1, 1] again, so that the length of a record stays bounded."""
        centres, widths = np.array(self.centres, dtype=np.float32), np.array(self.widths, dtype=np.float32)
        return np.clip((numbers - centres) / widths, np.float32(-1), np.float32(1))


class Encoding:
    """What a schema makes of records."""

    def __init__(self, schema: Schema, scales: Scales | None = None):
        self.schema, self.scales = schema, scales
        self.numeric = [c for c in schema.columns if isinstance(c, Numeric) and c.bins is None]
        self.coded = [c for c in schema.columns if isinstance(c, Categorical) or c.bins is not None]
        starts = dict(zip(schema.columns, np.cumsum([0, *(c.cells for c in schema.columns)]), strict=False))
        self._number_cells = np.array([starts[c] for c in self.numeric], dtype=np.int64)
        self._code_cells = np.array([starts[c] for c in self.coded], dtype=np.int64)
        codes = np.uint8 if all(c.cells <= 256 for c in self.coded) else np.uint16
        label = np.int32 if schema.classes else np.float32
        self.row_type = np.dtype(
            [("numbers", np.float32, (len(self.numeric),)), ("codes", codes, (len(self.coded),)), ("label", label)]
        )

    # -- from a file ------------------------------------------------------------------------------------

    def rows(self, chunk: Mapping[str, pa.Array]) -> np.ndarray:
        """Encode records in their compact form. Without a target in the chunk labels are unknown."""
        rows = np.zeros(len(next(iter(chunk.values()))), dtype=self.row_type)
        missing = self.schema.missing
        for place, column in enumerate(self.numeric):
            rows["numbers"][:, place] = column.scaled(_values(column, chunk[column.name], missing))
        for place, coded in enumerate(self.coded):
            rows["codes"][:, place] = _codes(coded, chunk[coded.name], missing)
        rows["label"] = self._labels(chunk)
        return rows

    def _labels(self, chunk: Mapping[str, pa.Array]) -> np.ndarray | float:
        target = self.schema.target
        if isinstance(target, Numeric):
            return target.scaled(_numbers(chunk[target.name], self.schema.missing)) if target.name in chunk else np.nan
        if target.name not in chunk:
            return NO_CLASS
        codes = _codes(target, chunk[target.name], self.schema.missing)
        return np.where(codes < len(target.categories), codes, NO_CLASS)

    # -- for a batch ------------------------------------------------------------------------------------

    def vectors(self, rows: np.ndarray) -> np.ndarray:
        """Fill in the cells of compact records, one vector of float32 for each."""
        scale = np.float32(NORM / np.sqrt(len(self.schema.columns)))
        cells = np.zeros((len(rows), self.schema.width), dtype=np.float32)
        missing = np.isnan(rows["numbers"])
        numbers = rows["numbers"] if self.scales is None else self.scales.applied(rows["numbers"])
        cells[:, self._number_cells] = np.where(missing, np.float32(0), numbers) * scale
        cells[:, self._number_cells + 1] = missing * scale
        cells[np.arange(len(rows))[:, None], self._code_cells + rows["codes"]] = scale
        return cells


def _codes(column: Column, values: pa.Array, missing: tuple[str, ...]) -> np.ndarray:
    """Return each value's cell: of its category or bin; then, for categories, of unknown ones; then of missing ones."""
    if isinstance(column, Numeric):
        scaled = column.scaled(_values(column, values, missing))
        bins = np.searchsorted(column.edges, scaled, side="right")
        return np.where(np.isnan(scaled), len(column.edges) + 1, bins)
    texts = as_texts(values)
    known = pc.index_in(texts, value_set=pa.array(column.categories, pa.string()))
    absent = _absent(texts, missing)
    count = len(column.categories)
    other = pc.if_else(absent, pa.scalar(count + 1, pa.int32()), pa.scalar(count, pa.int32()))
    return pc.coalesce(known, other).to_numpy(zero_copy_only=False)


def faults(column: Column, values: pa.Array, missing: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return masks of values that a run does not take as they are: missing, unreadable, out of range, unlisted."""
    if isinstance(column, Categorical):
        texts = as_texts(values)
        unlisted = pc.invert(pc.is_in(texts, value_set=pa.array(column.categories, pa.string())))
        absent = _absent(texts, missing).to_numpy(zero_copy_only=False)
        unlisted = unlisted.to_numpy(zero_copy_only=False)
        return {"missing": absent & unlisted, "unlisted": ~absent & unlisted}
    numbers = _values(column, values, missing)
    absent, finite = np.isnan(numbers), np.isfinite(numbers)
    if pa.types.is_string(values.type):
        absent = _absent(as_texts(values), missing).to_numpy(zero_copy_only=False)
    outside = (numbers < column.low) | (numbers > column.high)
    return {"missing": absent & ~finite, "unreadable": ~absent & ~finite, "out of range": finite & outside}


def _absent(texts: pa.Array, missing: tuple[str, ...]) -> pa.Array:
    return pc.or_(pc.is_null(texts), pc.is_in(texts, value_set=pa.array(missing, pa.string())))


def as_texts(values: pa.Array) -> pa.Array:
    """Return values as they are compared with categories: without space around them."""
    return pc.utf8_trim_whitespace(values if pa.types.is_string(values.type) else values.cast(pa.string()))


def _values(column: Numeric, values: pa.Array, missing: tuple[str, ...]) -> np.ndarray:
    return _dates(values) if column.dates else _numbers(values, missing)


def _dates(values: pa.Array) -> np.ndarray:
    """Return dates as days since 1970, without a time of day; NaN for what does not begin with a date, year first."""
    if pa.types.is_string(values.type):
        days = _parsed(pc.utf8_slice_codeunits(as_texts(values), 0, 10), pa.date32())
    else:
        days = values.cast(pa.date32(), safe=False)
    return pc.fill_null(days.cast(pa.int32()).cast(pa.float64()), np.nan).to_numpy(zero_copy_only=False)


def _numbers(values: pa.Array, missing: tuple[str, ...]) -> np.ndarray:
    """Return values as float64; NaN for what is missing or no number."""
    if pa.types.is_string(values.type):
        texts = as_texts(values)
        values = _parsed(pc.if_else(_absent(texts, missing), pa.scalar(None, pa.string()), texts))
    elif not pa.types.is_floating(values.type):
        values = values.cast(pa.float64(), safe=False)
    return pc.fill_null(values.cast(pa.float64(), safe=False), np.nan).to_numpy(zero_copy_only=False)


def _parsed(texts: pa.Array, kind: Any = None) -> pa.Array:
    """Parse texts as numbers, or as values of another ``kind``; null where one is none.

    All at once where that works. Otherwise different texts are tried in ever smaller groups: each is parsed by the same
    function either way, so what a value becomes does not depend on the others.
    """
    kind = pa.float64() if kind is None else kind
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        pass
    encoded = texts.dictionary_encode()
    return _in_groups(encoded.dictionary, kind).take(encoded.indices)


def _in_groups(texts: pa.Array, kind: Any) -> Any:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        pass
    if len(texts) == 1:
        return pa.nulls(1, kind)
    size = -(-len(texts) // 8)
    return pa.concat_arrays([_in_groups(texts[start : start + size], kind) for start in range(0, len(texts), size)])
