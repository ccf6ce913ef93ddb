"""``dataset.name = "huggingface"``: a dataset that Hugging Face's ``save_to_disk`` has written.

One of ``image`` (a column of images), ``text`` (a column of texts) and ``columns`` (columns of numbers) says what a
record is, ``target`` its label. Splits called train, validation and test are taken as they are; what is missing is
split off without looking. Class names come from the label's own type (ClassLabel), which is public, or from
``classes``. The files are arrow's, mapped into memory. Needs the extra ``huggingface``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cords_dp.config.values import Key, list_of, path, text
from cords_dp.data.record_set import RecordSet, Splits
from cords_dp.data.sources.base import (
    CLASSES,
    IMAGE_KEYS,
    MAX_LENGTH,
    NO_CLASS,
    OWN_SPLIT_KEYS,
    PATH,
    TARGET,
    TEXT,
    Facts,
    Source,
    check_split,
    declared_classes,
    label_numbers,
    owner_key,
    pixel_constants,
    refuse_empty,
    refuse_used_column,
    split_store,
    with_own_files,
)
from cords_dp.data.sources.folder import decoded_images
from cords_dp.data.sources.texts import TEXT_LENGTH, encode_texts
from cords_dp.data.store import LabelledStore, PixelConstants
from cords_dp.errors import ConfigError, DatasetUnavailableError, how_to_install

_KINDS = ("image", "text", "columns")
_PARTS = {"validation": ("validation", "val", "valid", "dev"), "test": ("test",)}
_PIECE = 1024


class HubStore(LabelledStore):
    """Records of an arrow table, by column. What cannot be read of one is NaN, or an empty text."""

    may_fail = False

    def __init__(self, table: Any, labels: Tensor, card: Mapping[str, Any]):
        super().__init__(labels)
        self.table, self.card = table, card
        self.constants = _constants(card)

    def records(self, rows: np.ndarray) -> Tensor:
        content: Mapping[str, Sequence[Any]] = self.table[rows.tolist()] if len(rows) else {}
        kind, names = self.card["kind"], self.card["columns"]
        if kind == "text":
            return encode_texts(list(content.get(names[0], [])), self.card["shape"][0])
        if kind == "image":
            assert self.constants is not None
            files = [_image_bytes(value) for value in content.get(names[0], [])]
            return decoded_images(files, self.card["shape"][1], self.constants)
        x = torch.full((len(rows), *self.card["shape"]), torch.nan)
        for place, name in enumerate(names):
            x[:, place] = torch.tensor([_number(value) for value in content.get(name, [])], dtype=torch.float32)
        return x

    def keep_range(self, start: int, stop: int) -> None:
        self.table = self.table.select(range(start, stop))

    def content(self) -> Iterator[bytes]:
        yield json.dumps([self.card["kind"], self.card["columns"], self.card["shape"]]).encode()
        for start in range(0, len(self), _PIECE):
            part = self.table[start : start + _PIECE]
            for name in self.card["columns"]:
                for value in part[name]:
                    data = _image_bytes(value) if self.card["kind"] == "image" else repr(value).encode()
                    yield len(data).to_bytes(8, "little") + data


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _image_bytes(value: Any) -> bytes:
    """Read an image that is kept in the table, or beside it."""
    if not isinstance(value, Mapping):
        return b""
    if isinstance(value.get("bytes"), bytes):
        return value["bytes"]
    try:
        return Path(str(value.get("path"))).read_bytes()
    except (OSError, ValueError):
        return b""


class HubSource(Source):
    """A dataset that was saved on disk."""

    name = "huggingface"
    keys = {
        **{key: OWN_SPLIT_KEYS[key] for key in ("validation_fraction", "test_fraction")},
        **IMAGE_KEYS,
        "path": PATH,
        "image": Key(text, None, "the column of images"),
        "text": TEXT,
        "columns": Key(partial(list_of, check=text), None, "columns of numbers"),
        "target": TARGET,
        "classes": CLASSES,
        "max_length": MAX_LENGTH,
        "owner": owner_key("A column"),
    }

    def check(self, section: Mapping[str, Any], *, private: bool) -> None:
        self.facts(section)
        check_split(with_own_files(section, **_own(_load(section))))

    def facts(self, section: Mapping[str, Any]) -> Facts:
        card = self.card(section)
        kind, shape = card["kind"], tuple(card["shape"])
        dtype = torch.uint8 if kind == "text" else torch.float32
        return Facts(shape, tuple(card["classes"]), images=kind == "image", constants=_constants(card), dtype=dtype)

    def card(self, section: Mapping[str, Any]) -> dict[str, Any]:
        train = _train(_load(section))
        kind, columns = _wanted(section)
        target = section.get("target") or "label"
        for key, column in ((f"dataset.{kind}", columns), ("dataset.target", [target])):
            missing = [name for name in column if name not in train.features]
            if missing:
                raise ConfigError(key, missing[0], f"there is no such column; there are {list(train.features)}")
        if section.get("owner") is not None:
            refuse_used_column(section["owner"], [*columns, target])
        names = getattr(train.features[target], "names", None)
        classes = declared_classes(section) if section.get("classes") is not None or names is None else tuple(names)
        card: dict[str, Any] = {"source": self.name, "kind": kind, "columns": columns, "classes": list(classes)}
        if kind == "image":
            channels, size = section.get("channels") or 3, section.get("size") or 32
            return {**card, "shape": [channels, size, size], **pixel_constants(section, channels).to_plain()}
        return {**card, "shape": [section.get("max_length") or TEXT_LENGTH if kind == "text" else len(columns)]}

    def build(self, section: Mapping[str, Any], rng: np.random.Generator) -> Splits:
        card, parts = self.card(section), _load(section)
        target = section.get("target") or "label"

        def records(table: Any) -> RecordSet:
            made = RecordSet(HubStore(_only(table, card), label_numbers(_labels(table, target), card["classes"]), card))
            refuse_empty(made, "a split of dataset.path")
            return made

        train = records(_train(parts))
        validation, test = (None if table is None else records(table) for table in _own(parts).values())
        return split_store(train, validation, test, section, rng, len(card["classes"]), _names(section, parts))

    def read(self, card: Mapping[str, Any], path: str) -> RecordSet:
        parts = _load({"path": path})
        table = parts.get("test") or _train(parts)
        missing = [name for name in card["columns"] if name not in table.features]
        if missing:
            raise DatasetUnavailableError(f"{Path(path).name} has no column {missing[0]!r}")
        return RecordSet(HubStore(_only(table, card), torch.full((len(table),), NO_CLASS), card))


def _names(section: Mapping[str, Any], parts: Any) -> list[Any] | None:
    """Return whose each record is, of the splits of a set. Private; nothing keeps them."""
    column = section.get("owner")
    if column is None:
        return None
    tables = [_train(parts), *_own(parts).values()]
    if any(table is not None and column not in table.features for table in tables):
        raise ConfigError("dataset.owner", column, "there is no such column in all splits")
    return [() if table is None else table[column] for table in tables]


def _wanted(section: Mapping[str, Any]) -> tuple[str, list[str]]:
    given = [kind for kind in _KINDS if section.get(kind) is not None]
    if len(given) != 1:
        raise ConfigError("dataset.image", None, "say what a record is by one of dataset.image, .text and .columns")
    value = section[given[0]]
    return given[0], list(value) if given[0] == "columns" else [value]


def _load(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """Load the splits on disk, by name; of a dataset without splits, all of it as train."""
    if section.get("path") is None:
        raise ConfigError("dataset.path", None, "say where save_to_disk has put the dataset")
    folder = path("dataset.path", section["path"])
    try:
        from datasets import DatasetDict, load_from_disk
    except ImportError:
        raise DatasetUnavailableError(f"needs {how_to_install('huggingface')}") from None
    try:
        loaded = load_from_disk(str(folder))
        return dict(loaded) if isinstance(loaded, DatasetDict) else {"train": loaded}
    except Exception:  # it raises many kinds, some with what they read
        pass
    raise DatasetUnavailableError(f"{folder.name} is no dataset that save_to_disk has written, or a damaged one")


def _train(parts: Mapping[str, Any]) -> Any:
    if "train" not in parts:
        raise DatasetUnavailableError(f"the dataset has no split 'train'; it has {list(parts)}")
    return parts["train"]


def _own(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return V's and the test set's own splits; None for one that is split off."""
    return {part: next((parts[name] for name in names if name in parts), None) for part, names in _PARTS.items()}


def _only(table: Any, card: Mapping[str, Any]) -> Any:
    """Return the columns of a record, images as the bytes that they were saved as."""
    from datasets import Image

    kept = table.select_columns(list(card["columns"])).with_format(None)
    if card["kind"] == "image":
        kept = kept.cast_column(card["columns"][0], Image(decode=False))
    return kept


def _labels(table: Any, target: str) -> np.ndarray:
    values = table.select_columns([target]).with_format("arrow")[:][target].to_pylist()
    labels = np.empty(len(values), dtype=object)
    labels[:] = values
    return labels


def _constants(card: Mapping[str, Any]) -> PixelConstants | None:
    return PixelConstants.of(card) if card["kind"] == "image" else None
