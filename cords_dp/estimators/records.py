"""From X and y, as scikit-learn's users hold them, to the records of a run.

A DataFrame with a schema becomes a table, rows of numbers become vectors, bytes of three or four dimensions images,
texts rows of bytes: the stores and cards of the sources that read the same from files (`data.sources`), so a saved
model predicts from files, too. Nothing is written to disk.

Formal guarantee: record i is a function of row i of X and y, of the parameters and of public facts (columns and types
of a DataFrame, shapes and types of an array, how many records there are). No statistic is fitted on records, and none
decides whether this fails. The one exception is the set of labels where nobody declares it (`label_set`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from cords_dp.data.record_set import RecordSet
from cords_dp.data.sources.arrays import ArrayFile, image_constants, record_shape
from cords_dp.data.sources.base import Facts
from cords_dp.data.sources.texts import TEXT_LENGTH, ByteStore, encode_texts
from cords_dp.errors import ConfigError, DataError, PrivacyWarning

TABLE, VECTORS, IMAGES, TEXTS = "table", "embeddings", "arrays", "text"  # by the names of their sources


@dataclass(frozen=True)
class Given:
    """Records of a user, and what is public of them. card: what a prediction needs (`Source.card`)."""

    records: RecordSet
    facts: Facts
    card: Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """What is predicted, as it was declared. classes: empty for a regression. range: public, None if not declared."""

    classes: np.ndarray
    range: tuple[float, float] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(map(_name, self.classes.tolist()))

    def numbers(self, y: np.ndarray) -> Tensor:
        """Each target by itself: the place of its class, −1 for what is none; or a number in [−1, 1] of its range."""
        if len(self.classes):
            return torch.from_numpy(pd.Index(self.classes).get_indexer(pd.Index(y)).astype(np.int64))
        values = np.asarray(y, dtype=np.float64)
        if self.range is not None:
            low, high = self.range
            values = 2 * (np.clip(values, low, high) - low) / (high - low) - 1
        with np.errstate(over="ignore"):  # beyond float32 is not finite: such a record contributes nothing
            return torch.from_numpy(values.astype(np.float32))


def _name(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) and value.is_integer() else str(value).strip()


# --- kinds ------------------------------------------------------------------------------------------------------------


def kind_of(x: Any, *, schema: Any, bounded: bool) -> str:
    """Tell what X is by its type and shape. A DataFrame needs a schema, or declared bounds of its numbers."""
    if isinstance(x, pd.DataFrame) and not (schema is None and bounded):
        return TABLE
    if schema is not None:
        raise ConfigError("schema", None, f"describes the columns of a DataFrame, and X is a {type(x).__name__}")
    if _are_texts(x):
        return TEXTS
    return IMAGES if getattr(x, "ndim", 2) > 2 else VECTORS


def _are_texts(x: Any) -> bool:
    """Tell whether X is texts; one that is missing among them, or no text, decides nothing and counts as empty."""
    if isinstance(x, (list, tuple)):
        return any(isinstance(text, str) for text in x)
    return isinstance(x, (np.ndarray, pd.Series)) and x.ndim == 1 and x.dtype.kind not in "iufbcmM"


def numbers_of(x: Any) -> Any:
    """Return rows of numbers with every object and every text read as a number by itself: NaN if it is none.

    Otherwise one value that is no number would end a fit, with an error that quotes it.
    """
    if isinstance(x, pd.DataFrame):
        kinds = [getattr(dtype, "kind", "O") for dtype in x.dtypes]
        if any(kind in "mM" for kind in kinds):
            raise DataError("X has columns of dates: make numbers of them, or give a schema")
        read = [numbers_alone(x.iloc[:, i]) if kind in "OUS" else x.iloc[:, i] for i, kind in enumerate(kinds)]
        return pd.concat(read, axis=1) if any(kind in "OUS" for kind in kinds) else x
    if isinstance(x, (list, tuple)):
        x = np.array(x, dtype=object)
    if getattr(x, "ndim", 2) == 1:
        raise DataError("X has one dimension, and must have a row for each record. Reshape your data")
    refuse_complex(x)
    return numbers_alone(x) if isinstance(x, np.ndarray) and x.dtype.kind in "OUS" and x.ndim == 2 else x


def refuse_complex(values: Any) -> None:
    """Refuse complex numbers, by their type: scikit-learn's own error shows the values."""
    if getattr(getattr(values, "dtype", None), "kind", "") == "c":
        raise DataError("Complex data not supported")


def numbers_alone(values: Any) -> Any:
    """Return objects and texts as numbers, each read by itself; NaN for what is none."""
    flat = np.fromiter(map(_number, np.asarray(values, dtype=object).ravel()), dtype=np.float64)
    if isinstance(values, pd.Series):
        return pd.Series(flat, index=values.index, name=values.name)
    return flat.reshape(np.shape(values))


def _number(value: Any) -> float:
    try:
        return float(value)
    except Exception:  # what it says might tell what is in a record
        return float("nan")


# --- targets ----------------------------------------------------------------------------------------------------------

_told: set[str] = set()


def warn_once(what: str, message: str) -> None:
    """Warn, once a process."""
    if what not in _told:
        _told.add(what)
        warnings.warn(message, PrivacyWarning, stacklevel=5)


def label_set(y: np.ndarray, declared: Any) -> np.ndarray:
    """Return the classes: those that were declared, or those that y has.

    Not private: the second way reads the set of labels off the records. It tells that somebody has each of them, and
    nothing else. Who cannot take that as public declares the classes; the statement says which way it was. A missing
    label is none of them.
    """
    if declared is not None:
        classes = np.asarray(declared)
        if classes.ndim != 1 or len(classes) < 2 or len({*classes.tolist()}) < len(classes):
            raise ConfigError("classes", declared, "must be two or more labels, all different")
        return classes
    y = y[~pd.isna(y)]
    warn_once(
        "classes",
        "the set of labels is read from y and taken to be public: that somebody has each of them is not protected. "
        "Declare it: classes=[...], or in the schema.",
    )
    try:
        check_classification_targets(y)
        found = np.unique(y)
    except TypeError:
        raise DataError("y has labels of several types, as numbers and texts; declare them: classes=[...]") from None
    if len(found) < 2:
        raise DataError(f"y has {len(found)} class; a classifier needs two or more, which classes=[...] can declare")
    return found


# --- records ----------------------------------------------------------------------------------------------------------


def vectors(x: np.ndarray, y: np.ndarray, target: Target) -> Given:
    """Rows of numbers; a row that is not finite contributes nothing."""
    shape = tuple(x.shape[1:])
    store = ArrayFile(x, target.numbers(y), None)
    return Given(RecordSet(store), Facts(shape, target.names), _card(VECTORS, shape, target, pixels=None))


def images(x: Any, y: np.ndarray, target: Target) -> Given:
    """Pixels (uint8) are normalised by public constants, other numbers are taken as they are, channels first."""
    x = np.asarray(x)
    if x.ndim not in (3, 4) or x.dtype.kind not in "iufb":
        raise DataError("X must be rows of numbers, or images: bytes N×H×W, N×H×W×C or N×C×H×W, or numbers N×C×H×W")
    constants = image_constants({}, x)
    shape = record_shape(x, constants)
    pixels = constants and {"mean": list(constants.mean), "std": list(constants.std)}
    facts = Facts(shape, target.names, images=len(shape) == 3, constants=constants)
    store = ArrayFile(x, target.numbers(y), constants)
    return Given(RecordSet(store), facts, _card(IMAGES, shape, target, pixels=pixels))


def texts(x: Sequence[str], y: np.ndarray, target: Target, length: int | None) -> Given:
    """Return texts as bytes, cut or filled up to one public length."""
    rows = encode_texts(list(x), length or TEXT_LENGTH).numpy()
    shape = (rows.shape[1],)
    facts = Facts(shape, target.names, dtype=torch.uint8)
    return Given(RecordSet(ByteStore(rows, target.numbers(y))), facts, _card(TEXTS, shape, target, text="text"))


def _card(source: str, shape: Sequence[int], target: Target, **more: Any) -> dict[str, Any]:
    card = {"source": source, "shape": list(shape), "classes": list(target.names), **more}
    return card if target.range is None else {**card, "target_range": list(target.range)}


# --- tables -----------------------------------------------------------------------------------------------------------


def read_table_schema(given: Any, x: pd.DataFrame, *, target: str, classes: Any, range_: Any, regression: bool) -> Any:
    """Return the schema of a DataFrame: an object, a dict or the path of a YAML file.

    One that names no target is completed by the name of y and what else was declared. Without a schema the error prints
    a template for these columns: from their names and types, no value is read.
    """
    from cords_dp.data.sources.table.files import open_frame
    from cords_dp.data.sources.table.schema import Schema, load_schema, read_schema
    from cords_dp.data.sources.table.template import schema_template

    if given is None:
        file = open_frame(with_target(x, np.zeros(len(x)), target))
        template = schema_template(file, target=target, ranges={}, categories={})
        raise ConfigError(
            "schema",
            None,
            "a DataFrame needs a schema: what is public about its columns, as a dict or the path of a YAML file. Fill "
            f"in this one (a frame of numbers may have bounds= or data_norm= instead):\n\n{template}",
        )
    if isinstance(given, Schema):
        schema = given
    elif isinstance(given, Mapping) and given.get("target") is None:
        own = {"range": list(range_)} if regression and range_ else {"classes": [_name(c) for c in np.asarray(classes)]}
        schema = read_schema({**given, "target": {"name": target, **own}})
    else:
        schema = load_schema(given)
    if regression == bool(schema.classes):
        fix = "is a number: use PrivateRegressor" if not schema.classes else "has classes: use PrivateClassifier"
        raise ConfigError("schema.target", schema.target.name, fix)
    if classes is not None and {*schema.classes} != {_name(c) for c in np.asarray(classes).tolist()}:
        raise ConfigError("classes", classes, "are not those of the schema's target; declare them once")
    return schema


def target_range(card: Mapping[str, Any]) -> tuple[float, float]:
    """Return the public range of a regression's target, from a model's card: its schema's, or the one declared."""
    from cords_dp.data.sources.table.schema import Numeric, read_schema

    if card.get("schema"):
        target = read_schema(card["schema"]).target
        assert isinstance(target, Numeric)
        return float(target.low), float(target.high)
    if card.get("target_range") is None:
        fix = "must be declared for an evaluation: how far one row's error can go has to be public"
        raise ConfigError("target_range", None, fix)
    low, high = map(float, card["target_range"])
    return low, high


def table_classes(schema: Any, y: np.ndarray) -> np.ndarray:
    """Return the schema's classes in the type of y, which is public: 0 and 1 where labels are whole numbers."""
    classes = np.array(schema.classes, dtype=object)
    if y.dtype.kind not in "iufb":
        return classes
    try:
        if y.dtype.kind == "b":
            return np.array([{"True": True, "False": False}[name] for name in schema.classes])
        return np.array([float(name) for name in schema.classes]).astype(y.dtype)
    except (KeyError, ValueError):
        raise ConfigError(
            "schema.target.classes", list(schema.classes), f"y holds {y.dtype}, and these are no such values"
        ) from None


def with_target(x: pd.DataFrame, y: np.ndarray, name: str) -> pd.DataFrame:
    """Return a frame with its target; what X itself has under that name goes."""
    return x.drop(columns=name, errors="ignore").assign(**{name: y})


def frame_chunks(frame: pd.DataFrame, names: Sequence[str]) -> Iterator[Any]:
    """Return the columns of a frame as a table's encoding reads them."""
    from cords_dp.data.sources.table.files import open_frame

    return open_frame(frame).chunks(names)


def table(x: pd.DataFrame, y: np.ndarray, schema: Any) -> Given:
    """Return the rows of a DataFrame, by its schema. A column of the target's name in X is left alone: y counts."""
    from cords_dp.data.sources.table.encoding import NORM, Encoding
    from cords_dp.data.sources.table.files import open_frame
    from cords_dp.data.sources.table.source import TableSource, check_header
    from cords_dp.data.sources.table.store import TableStore

    name = schema.target.name
    encoding, file = Encoding(replace(schema, header=None)), open_frame(with_target(x, y, name))
    check_header(file, schema)
    names = [*(column.name for column in schema.columns), name]
    rows = [np.zeros(0, dtype=encoding.row_type), *map(encoding.rows, file.chunks(names))]
    facts = Facts((schema.width,), schema.classes, norm=NORM)
    card = TableSource().card({"schema": schema.to_plain()})
    return Given(RecordSet(TableStore(np.concatenate(rows), encoding)), facts, card)
