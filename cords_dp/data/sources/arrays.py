"""``dataset.name = "arrays"`` and ``"embeddings"``: x and y in ``.npz`` or ``.npy`` files.

An ``.npz`` file (or a folder of ``.npy`` files) holds ``x`` and ``y``, which are split without looking at them, or
``x_train``, ``y_train`` and, where there are sets of their own, ``x_val``, ``y_val``, ``x_test``, ``y_test``. A single
``.npy`` file holds x, and ``labels`` names the file of y. Files are mapped, never read whole, unless they are
compressed. Pixels (uint8) are scaled by public constants, other numbers are taken as they are. Labels are private, so
the classes have to be declared. What is read before training is public: the names of the arrays, their shapes and
types. Objects, whose unpickling could run code, are refused.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cords_dp.config.values import Key, path
from cords_dp.data.record_set import RecordSet, Share, Splits, read_part
from cords_dp.data.sources.base import (
    CLASSES,
    IMAGE_KEYS,
    NO_CLASS,
    OWN_SPLIT_KEYS,
    PATH,
    Facts,
    Source,
    check_split,
    declared_classes,
    label_numbers,
    owner_key,
    pixel_constants,
    split_rows,
    split_store,
    tested_records,
    with_own_files,
)
from cords_dp.data.store import LabelledStore, PixelConstants, normalised
from cords_dp.errors import ConfigError, DataError, DatasetUnavailableError

_PIECE = 4096
_X, _Y = ("x", "x_train"), ("y", "y_train")
_OWN = {
    "validation": (("x_val", "x_valid", "x_validation"), ("y_val", "y_valid", "y_validation")),
    "test": (("x_test",), ("y_test",)),
}


class ArrayFile(LabelledStore):
    """Rows of an array: pixels N×H×W, N×H×W×C or N×C×H×W of 0…255, or any numbers."""

    may_fail = False

    def __init__(self, x: np.ndarray, labels: Tensor, constants: PixelConstants | None):
        super().__init__(labels)
        self.x, self.constants = x, constants

    def records(self, rows: np.ndarray) -> Tensor:
        x = np.asarray(self.x[rows])
        if self.constants is None:
            with np.errstate(over="ignore"):  # beyond float32 is not finite: such a record contributes nothing
                return torch.from_numpy(x.astype(np.float32))
        pixels = torch.from_numpy(x)
        if pixels.dim() == 3:
            pixels = pixels[:, None]
        elif not _channels_first(self.x.shape):
            pixels = pixels.permute(0, 3, 1, 2)
        return normalised(pixels, self.constants)

    def keep_range(self, start: int, stop: int) -> None:
        self.x = self.x[start:stop]

    def content(self) -> Iterator[bytes]:
        yield json.dumps(["array", str(self.x.dtype), list(self.x.shape)]).encode()
        for start in range(0, len(self.x), _PIECE):
            yield self.x[start : start + _PIECE].tobytes()


def _owner_names(section: Mapping[str, Any], parts: Any) -> list[Any] | None:
    """Return whose each record is: a file of one name or number a row. Private; nothing keeps them."""
    if section.get("owner") is None:
        return None
    if parts.validation is not None or parts.test is not None:
        fix = "is for arrays that are split here; take V and the test set out of their own files (…_fraction)"
        raise ConfigError("dataset.owner", section["owner"], fix)
    file = Path(section["owner"]).expanduser()
    if section.get("labels") is not None and file.resolve() == Path(section["labels"]).expanduser().resolve():
        raise ConfigError("dataset.owner", file.name, "holds what is predicted; name a file of whose each row is")
    try:
        names = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError("dataset.owner", file.name, "must be a .npy file of names or numbers, one a row") from error
    if not isinstance(names, np.ndarray) or names.shape != (len(parts.train.x),):
        raise ConfigError("dataset.owner", file.name, "must be a .npy file of names or numbers, one for each row of x")
    return [names, (), ()]


class ArraySource(Source):
    """Arrays of images or of numbers."""

    name = "arrays"
    keys = {
        **OWN_SPLIT_KEYS,
        **{key: IMAGE_KEYS[key] for key in ("mean", "std")},
        "path": PATH,
        "labels": Key(path, None, "the file of y, where `path` holds x alone"),
        "classes": CLASSES,
        "owner": owner_key("A .npy file of names or numbers beside the records, one for each"),
    }

    def check(self, section: Mapping[str, Any], *, private: bool) -> None:
        self.facts(section)
        parts = _open(section)
        _owner_names(section, parts)
        check_split(with_own_files(section, validation=parts.validation, test=parts.test))

    def facts(self, section: Mapping[str, Any]) -> Facts:
        classes, x = declared_classes(section), _open(section).train.x
        constants = image_constants(section, x)
        shape = record_shape(x, constants)
        self._check_shape(shape, constants)
        return Facts(shape, classes, images=len(shape) == 3, constants=constants)

    def _check_shape(self, shape: tuple[int, ...], constants: PixelConstants | None) -> None:
        if not shape:
            raise ConfigError("dataset.path", None, "x must have a row for each record")

    def build(self, section: Mapping[str, Any], rng: np.random.Generator) -> Splits:
        facts, parts = self.facts(section), _open(section)

        def records(pair: _Pair) -> RecordSet:
            _check_pair(section, facts, pair)
            return RecordSet(ArrayFile(pair.x, label_numbers(pair.y, facts.classes), facts.constants))

        own = [None if pair is None else records(pair) for pair in (parts.validation, parts.test)]
        names = _owner_names(section, parts)
        return split_store(records(parts.train), own[0], own[1], section, rng, facts.num_classes, names)

    def build_part(self, section: Mapping[str, Any], rng: np.random.Generator, share: Share) -> Splits:
        """Read the labels of this process's range, and map that range of x; with owners all of it."""
        if section.get("owner") is not None:
            return self.build(section, rng)
        facts, parts = self.facts(section), _open(section)

        def part_of(pair: _Pair, rows: np.ndarray | None) -> RecordSet:
            def read(start: int, stop: int) -> ArrayFile:
                labels = label_numbers(np.asarray(pair.y[start:stop]), facts.classes)
                return ArrayFile(pair.x[start:stop], labels, facts.constants)

            _check_pair(section, facts, pair)
            return read_part(len(pair.x), rows, share, read)

        given = with_own_files(section, validation=parts.validation, test=parts.test)
        rows = split_rows(len(parts.train.x), given, rng)
        train, validation, test = (
            part_of(parts.train, chosen) if pair is None or pair is parts.train else part_of(pair, None)
            for pair, chosen in zip(parts, rows, strict=True)
        )
        return Splits(train, validation, tested_records(test, section, facts.num_classes), facts.num_classes)

    def card(self, section: Mapping[str, Any]) -> dict[str, Any]:
        facts = self.facts(section)
        pixels = facts.constants and facts.constants.to_plain()
        return {"source": self.name, "shape": list(facts.shape), "classes": list(facts.classes), "pixels": pixels}

    def read(self, card: Mapping[str, Any], path: str) -> RecordSet:
        file = Path(path).expanduser()
        arrays = open_arrays(file)
        x = pick(arrays, ("x", "x_test")) if len(arrays) > 1 else next(iter(arrays.values()), None)
        pixels = PixelConstants.of(card["pixels"]) if card["pixels"] else None
        if x is None:
            raise DatasetUnavailableError(f"{file.name} holds no array x")
        if (x.dtype == np.uint8) != bool(pixels) and x.ndim > 2:
            raise DatasetUnavailableError(f"{file.name} holds {x.dtype}, unlike the arrays of the training")
        if x.ndim < 2 or record_shape(x, pixels) != tuple(card["shape"]):
            raise DatasetUnavailableError(f"{file.name} holds records of another shape than {tuple(card['shape'])}")
        return RecordSet(ArrayFile(x, torch.full((len(x),), NO_CLASS), pixels))


class EmbeddingSource(ArraySource):
    """Vectors that a network of one's own has made of each record, scaled one by one by the model (`LinearHead`)."""

    name = "embeddings"

    def _check_shape(self, shape: tuple[int, ...], constants: PixelConstants | None) -> None:
        if len(shape) != 1 or constants is not None:
            raise ConfigError("dataset.name", self.name, "x must have one row of numbers for each record; use 'arrays'")


class _Pair(NamedTuple):
    x: np.ndarray
    y: np.ndarray


def _check_pair(section: Mapping[str, Any], facts: Facts, pair: _Pair) -> None:
    if record_shape(pair.x, image_constants(section, pair.x)) != facts.shape:
        raise DatasetUnavailableError("the arrays of the training, validation and test sets differ in shape")
    if len(pair.x) < 1:
        raise DataError("there is no record in one of the arrays")


class _Parts(NamedTuple):
    train: _Pair
    validation: _Pair | None
    test: _Pair | None


def _open(section: Mapping[str, Any]) -> _Parts:
    """Open the arrays that the section names, mapped, with shapes and types checked."""
    if section.get("path") is None:
        raise ConfigError("dataset.path", None, "say in which .npz or .npy file the records are")
    main = path("dataset.path", section["path"])
    arrays = open_arrays(main)
    if section.get("labels") is not None:
        labels = path("dataset.labels", section["labels"])
        arrays = {"x": next(iter(arrays.values())), "y": next(iter(open_arrays(labels).values()))}
    train = _pair(arrays, _X, _Y, main)
    if train is None:
        fix = "must hold x and y, or x_train and y_train; beside one .npy file dataset.labels names that of y"
        raise ConfigError("dataset.path", main.name, fix)
    own = {part: _pair(arrays, *names, main) for part, names in _OWN.items()}
    for part in _OWN:
        if section.get(f"{part}_path") is not None:
            file = path(f"dataset.{part}_path", section[f"{part}_path"])
            own[part] = _pair(open_arrays(file), ("x",), ("y",), file)
            if own[part] is None:
                raise ConfigError(f"dataset.{part}_path", file.name, "must hold x and y")
    return _Parts(train, own["validation"], own["test"])


def _pair(arrays: Mapping[str, np.ndarray], xs: tuple[str, ...], ys: tuple[str, ...], file: Path) -> _Pair | None:
    x, y = pick(arrays, xs), pick(arrays, ys)
    if x is None or y is None:
        return None
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if x.ndim < 2 or x.dtype.kind not in "iufb" or y.ndim != 1 or y.dtype.kind not in "iubU":
        raise DatasetUnavailableError(f"{file.name}: x must hold rows of numbers, y one whole number or name for each")
    if len(x) != len(y):
        raise DatasetUnavailableError(f"{file.name}: x has {len(x)} records and y {len(y)}")
    return _Pair(x, y)


def _channels_first(shape: tuple[int, ...]) -> bool:
    return shape[1] in (1, 3)


def image_constants(section: Mapping[str, Any], x: np.ndarray) -> PixelConstants | None:
    """Return public constants of pixels, which are bytes in the form of images; None for other numbers."""
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        return None
    channels = 1 if x.ndim == 3 else x.shape[1] if _channels_first(x.shape) else x.shape[3]
    if channels not in (1, 3):
        raise ConfigError("dataset.path", None, f"images must have 1 or 3 channels, not {channels}")
    return pixel_constants(section, channels)


def record_shape(x: np.ndarray, constants: PixelConstants | None) -> tuple[int, ...]:
    """Return the shape of one record's tensor: C×H×W of pixels."""
    if constants is None:
        return tuple(x.shape[1:])
    if x.ndim == 3:
        return (1, *x.shape[1:])
    return tuple(x.shape[1:]) if _channels_first(x.shape) else (x.shape[3], *x.shape[1:3])


def open_arrays(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of an ``.npz`` file, of a folder of ``.npy`` files, or of one such file, by name."""
    if path.is_dir():
        arrays = {file.stem: _mapped(file) for file in sorted(path.glob("*.npy"))}
    elif path.suffix == ".npz" and path.is_file():
        arrays = _members(path)
    elif path.suffix == ".npy" and path.is_file():
        arrays = {path.stem: _mapped(path)}
    else:
        raise DatasetUnavailableError(f"{path.name} is no .npz file, .npy file or folder of .npy files")
    return arrays


def _mapped(path: Path) -> np.ndarray:
    try:
        return _plain(np.load(path, mmap_mode="c", allow_pickle=False))
    except Exception:  # numpy and pickle raise many kinds, some of which show what they read
        pass
    raise DatasetUnavailableError(f"{path.name} is damaged, or holds objects instead of numbers or short texts")


def _members(path: Path) -> dict[str, np.ndarray]:
    """Map members as ``np.savez`` writes them; read compressed ones into memory."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            stored = {info.filename[:-4]: _at(path, info) for info in infos}
        with np.load(path, allow_pickle=False) as loaded:
            return {name: _plain(loaded[name] if array is None else array) for name, array in stored.items()}
    except Exception:
        pass
    raise DatasetUnavailableError(f"{path.name} is damaged, or holds objects instead of numbers or short texts")


def _at(path: Path, info: zipfile.ZipInfo) -> np.ndarray | None:
    """Map an uncompressed member where it lies in the archive."""
    if info.compress_type != zipfile.ZIP_STORED:
        return None
    with open(path, "rb") as file:
        file.seek(info.header_offset + 26)  # the lengths of the name and of the extra field in the member's own header
        name, extra = np.frombuffer(file.read(4), dtype="<u2")
        file.seek(info.header_offset + 30 + int(name) + int(extra))
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = header(file)
        if fortran or dtype.hasobject or 0 in shape or not shape:
            return None
        return np.memmap(path, dtype=dtype, mode="c", offset=file.tell(), shape=shape)


def _plain(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "iufbU":
        raise ValueError
    return array


def pick(arrays: Mapping[str, np.ndarray], names: tuple[str, ...]) -> np.ndarray | None:
    """Return the first of these that is there."""
    return next((arrays[name] for name in names if name in arrays), None)
