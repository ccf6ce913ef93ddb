"""Records that lie in files and are read a few at a time, and what the sources of such records share."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cords_dp.config.values import Key, list_of, number, path, text, whole
from cords_dp.data.arrays import RowsOfStore, Splits
from cords_dp.data.images import PixelConstants
from cords_dp.data.sources.base import SPLIT_KEYS, split_rows
from cords_dp.errors import ConfigError, DataError

NO_CLASS = -1  # a label that no class has: its record contributes nothing
_IMAGENET = PixelConstants((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_GREY = PixelConstants((0.5,), (0.25,))


class StoredRecords(RowsOfStore):
    """Some rows of a store. ``all_targets``: the labels of all of it. ``constants`` and `content` name its features."""

    constants: Any = None

    def __init__(self, all_targets: Tensor):
        self.all_targets = all_targets
        self.rows = torch.arange(len(all_targets))

    @abstractmethod
    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Records by their place in the store, and their labels. Row i depends on record i alone."""

    @abstractmethod
    def content(self) -> Iterator[bytes]:
        """Bytes that decide the x of every record in the store, in pieces."""

    def at(self, rows: np.ndarray) -> StoredRecords:
        """The same store with other rows."""
        picked = copy.copy(self)
        picked.rows = torch.from_numpy(np.asarray(rows, dtype=np.int64))
        return picked

    @property
    def store_size(self) -> int:
        return len(self.all_targets)

    def part(self, start: int, stop: int, rows: np.ndarray) -> StoredRecords:
        kept = self.at(rows)
        kept.all_targets = self.all_targets[start:stop].clone()
        kept.keep_range(start, stop)
        return kept

    @abstractmethod
    def keep_range(self, start: int, stop: int) -> None:
        """Forget all records of the store but these; nothing is read."""

    @property
    def targets(self) -> Tensor:
        return self.all_targets[self.rows]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.batch([index])
        return x[0], y[0]

    def batch(self, indices: Sequence[int] | np.ndarray | Tensor) -> tuple[Tensor, Tensor]:
        return self.read(self.rows[torch.as_tensor(np.asarray(indices), dtype=torch.int64)])


def split_stores(
    store: StoredRecords,
    validation: StoredRecords | None,
    test: StoredRecords | None,
    section: Mapping[str, Any],
    rng: np.random.Generator,
    classes: int,
) -> Splits:
    """Rows of one store for the sets that have none of their own: by the number of records and the seed alone.

    Of the test set, which is taken as public, those without a known label are left out: nothing can be said of them.
    """
    own = {f"{name}_path": True for name, part in (("validation", validation), ("test", test)) if part is not None}
    rows = split_rows(len(store), {**section, **own}, rng)
    tested = store.at(rows.test) if test is None else test
    return Splits(
        store.at(rows.train),
        store.at(rows.validation) if validation is None else validation,
        tested.at(tested.rows[(tested.targets >= 0) & (tested.targets < classes)].numpy()),
        classes,
    )


# --- keys that several sources read ------------------------------------------------------------------------------


def class_names(key: str, value: Any) -> tuple[str, ...]:
    """Names of the classes, in the order of the labels; a number stands for 0, 1, …"""
    if isinstance(value, int):
        return tuple(map(str, range(whole(key, value, low=2, high=100_000))))
    names = list_of(key, value, text)
    if len(names) < 2 or len(set(names)) < len(names):
        raise ConfigError(key, value, "must be two or more names, all different, or the number of classes")
    return names


def declared_classes(section: Mapping[str, Any]) -> tuple[str, ...]:
    """The classes that the config declares: labels are private, so they cannot be looked up."""
    if section.get("classes") is None:
        fix = "declare the classes: their names in the order of the labels, or how many there are"
        raise ConfigError("dataset.classes", None, fix)
    return class_names("dataset.classes", section["classes"])


def label_numbers(labels: np.ndarray, classes: Sequence[str]) -> Tensor:
    """Labels as places in ``classes``, each by itself: a name, or a number. What is no class is `NO_CLASS`."""
    if labels.dtype.kind in "iub":
        known = (labels >= 0) & (labels < len(classes))
        return torch.from_numpy(np.where(known, labels, NO_CLASS).astype(np.int64))
    numbers = {str(number): number for number in range(len(classes))}
    place = {**numbers, **{name: number for number, name in enumerate(classes)}}
    found = (place.get(str(label), NO_CLASS) if isinstance(label, (str, int)) else NO_CLASS for label in labels)
    return torch.tensor(list(found), dtype=torch.int64)


OWN_SPLIT_KEYS = {name: key for name, key in SPLIT_KEYS.items() if name != "cache"}
_CONSTANTS = "constants by which pixels are normalised"
IMAGE_KEYS: dict[str, Key] = {
    "size": Key(partial(whole, low=8, high=1024), None, "pixels a side that images are brought to"),
    "channels": Key(partial(whole, low=1, high=3), None, "1 for grey, 3 for colour"),
    "mean": Key(partial(list_of, check=partial(number, low=-10, high=10)), None, _CONSTANTS),
    "std": Key(partial(list_of, check=partial(number, low=0, high=10)), None, _CONSTANTS),
}
PATH = Key(path, None, "the file or folder")
CLASSES = Key(class_names, None, "names of the classes, in the order of the labels, or how many there are")
TARGET = Key(text, None, "the column to predict")
TEXT = Key(text, None, "the column of texts")
MAX_LENGTH = Key(partial(whole, low=8, high=100_000), None, "bytes to which every text is cut")


def pixel_constants(section: Mapping[str, Any], channels: int) -> PixelConstants:
    """Constants of the config, or those that are usual: ImageNet's for colours. They are never fitted."""
    usual = _IMAGENET if channels == 3 else _GREY
    given = [tuple(map(float, section.get(key) or getattr(usual, key))) for key in ("mean", "std")]
    for key, values in zip(("mean", "std"), given, strict=True):
        if len(values) != channels:
            raise ConfigError(f"dataset.{key}", section.get(key), f"must be {channels} numbers, one for each channel")
    return PixelConstants(*given)


def normalised(pixels: Tensor, constants: PixelConstants) -> Tensor:
    """Pixels N×C×H×W of 0…255 by public constants."""
    mean, std = (torch.tensor(values).reshape(1, -1, 1, 1) * 255 for values in constants)
    return (pixels.float() - mean) / std


def refuse_empty(store: StoredRecords, what: str) -> None:
    if len(store) < 1:
        raise DataError(f"there is no record in {what}")
