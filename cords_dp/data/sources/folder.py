"""``dataset.name = "folder"``: images in a folder for each class, as torchvision's ImageFolder has them.

``path/CLASS/*.png`` is split without looking at the images; ``path/train``, ``path/val`` and ``path/test`` are sets of
their own where they exist. Images of any size are read when they are needed and brought to ``size`` × ``size``. Public
are the names of the classes (the folders' in sorted order, or ``classes``) and how many images there are.

A file becomes pixels of a public size, by itself. One that cannot be decoded gives None and no message: its record
contributes nothing, and what a decoder says about it stays here. Formats are those that Pillow decodes without
libraries that write to the terminal.
"""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cords_dp.config.values import path
from cords_dp.data.record_set import RecordSet, Splits
from cords_dp.data.sources.base import (
    CLASSES,
    IMAGE_KEYS,
    NO_CLASS,
    OWN_SPLIT_KEYS,
    PATH,
    Facts,
    Source,
    check_split,
    class_names,
    owner_key,
    pixel_constants,
    refuse_empty,
    split_store,
    with_own_files,
)
from cords_dp.data.store import LabelledStore, PixelConstants, normalised
from cords_dp.errors import ConfigError, DatasetUnavailableError

_SIZE, _CHANNELS = 32, 3
_PARTS = {"validation": ("val", "valid", "validation"), "test": ("test",)}


class ImageFiles(LabelledStore):
    """Image files, decoded when they are read; one that cannot be decoded is all NaN."""

    may_fail = False

    def __init__(self, files: Sequence[Path], labels: Tensor, size: int, constants: PixelConstants):
        super().__init__(labels)
        self.files, self.size, self.constants = list(files), size, constants

    @property
    def names(self) -> list[str]:  # type: ignore[override]
        return [file.name for file in self.files]

    def records(self, rows: np.ndarray) -> Tensor:
        return decoded_images([self.files[row] for row in rows.tolist()], self.size, self.constants)

    def keep_range(self, start: int, stop: int) -> None:
        self.files = self.files[start:stop]

    def content(self) -> Iterator[bytes]:
        yield json.dumps(["images", self.size]).encode()
        for file in self.files:
            try:
                data = file.read_bytes()
            except OSError:  # read as NaN too
                data = b""
            yield len(data).to_bytes(8, "little") + data


OwnerRule = Callable[[Sequence[str]], str | None]
_WITHIN_CLASS = "class/"
_OWNER_RULES = (
    "`parent`, the folder below its class that a file lies in, or a regular expression, whose first group, or else "
    "whole match, in a file's path below its class is the name. With `class/` before either, names count anew in each "
    "class: objects that are numbered from 1 in every class are then different ones"
)


def _owner_rule(section: Mapping[str, Any]) -> OwnerRule | None:
    """Return how a file's path from its class on tells whose it is; None where records have no owners."""
    rule = section.get("owner")
    if rule is None:
        return None
    below = _rule_below_class(rule.removeprefix(_WITHIN_CLASS), rule)
    if not rule.startswith(_WITHIN_CLASS):
        return lambda parts: below(parts[1:])

    def named(parts: Sequence[str]) -> str | None:
        name = below(parts[1:])
        return None if name is None else f"{parts[0]}/{name}"

    return named


def _rule_below_class(rule: str, given: str) -> OwnerRule:
    if rule == "parent":
        return lambda parts: "/".join(parts[:-1]) or None
    if not rule:
        raise ConfigError("dataset.owner", given, "needs 'parent' or a regular expression after the slash")
    try:
        pattern = re.compile(rule)
    except re.error as error:
        raise ConfigError("dataset.owner", given, f"is neither 'parent' nor a regular expression: {error}") from error

    def named(parts: Sequence[str]) -> str | None:
        found = pattern.search("/".join(parts))
        return None if found is None else found[1 if pattern.groups else 0]

    return named


def _names(section: Mapping[str, Any], layout: _Layout) -> list[list[str | None]] | None:
    """Return whose each image of D's, V's and the test set's folders is, in the records' order. Nothing keeps them."""
    rule = _owner_rule(section)
    if rule is None:
        return None

    def names(folder: Path | None) -> list[str | None]:
        if folder is None:
            return []
        return [rule(file.relative_to(folder).parts) for file in _labelled(folder, layout.classes)[0]]

    return [names(folder) for folder in (layout.train, *layout.own.values())]


class FolderSource(Source):
    """Images in folders."""

    name = "folder"
    keys = {**OWN_SPLIT_KEYS, **IMAGE_KEYS, "path": PATH, "classes": CLASSES, "owner": owner_key(_OWNER_RULES)}

    def check(self, section: Mapping[str, Any], *, private: bool) -> None:
        self.facts(section)
        _owner_rule(section)
        layout = _layout(section)
        check_split(with_own_files(section, **layout.own))

    def facts(self, section: Mapping[str, Any]) -> Facts:
        layout, size, constants = _layout(section), *_form(section)
        return Facts((len(constants.mean), size, size), layout.classes, images=True, constants=constants)

    def build(self, section: Mapping[str, Any], rng: np.random.Generator) -> Splits:
        layout, (size, constants) = _layout(section), _form(section)

        def records(folder: Path) -> RecordSet:
            files, labels = _labelled(folder, layout.classes)
            made = RecordSet(ImageFiles(files, torch.tensor(labels, dtype=torch.int64), size, constants))
            refuse_empty(made, f"the folder {folder.name!r} (dataset.path)")
            return made

        train = records(layout.train)
        validation, test = (None if folder is None else records(folder) for folder in layout.own.values())
        return split_store(train, validation, test, section, rng, len(layout.classes), _names(section, layout))

    def card(self, section: Mapping[str, Any]) -> dict[str, Any]:
        facts = self.facts(section)
        assert facts.constants is not None
        public = {"source": self.name, "shape": list(facts.shape), "classes": list(facts.classes)}
        return {**public, **facts.constants.to_plain()}

    def read(self, card: Mapping[str, Any], path: str) -> RecordSet:
        given = Path(path).expanduser()
        if not given.exists():
            raise DatasetUnavailableError(f"there is no {given.name}: name an image or a folder of images")
        files = image_files(given) if given.is_dir() else [given]
        if not files or (given.is_file() and given.suffix.lower() not in SUFFIXES):
            raise DatasetUnavailableError(f"{given.name} holds no image: {', '.join(sorted(SUFFIXES))}")
        labels = torch.full((len(files),), NO_CLASS)
        return RecordSet(ImageFiles(files, labels, int(card["shape"][1]), PixelConstants.of(card)))


def _form(section: Mapping[str, Any]) -> tuple[int, PixelConstants]:
    channels = section.get("channels") or _CHANNELS
    if channels not in (1, 3):
        raise ConfigError("dataset.channels", channels, "must be 1 (grey) or 3 (colours)")
    return section.get("size") or _SIZE, pixel_constants(section, channels)


class _Layout:
    """Where the sets are, and which classes there are. Folders are listed, no image is opened.

    own: the folders of V and of the test set; None for one that is split off.
    """

    def __init__(self, root: Path, section: Mapping[str, Any]):
        declared = section.get("classes")
        parts = (root / "train").is_dir() and (declared is None or "train" not in class_names("", declared))
        self.train = root / "train" if parts else root
        self.own = {
            part: next((root / name for name in names if (root / name).is_dir()), None) if parts else None
            for part, names in _PARTS.items()
        }
        for part in _PARTS:
            if section.get(f"{part}_path") is not None:
                self.own[part] = _folder(f"dataset.{part}_path", section[f"{part}_path"])
        found = tuple(sorted(entry.name for entry in self.train.iterdir() if entry.is_dir()))
        self.classes = class_names("dataset.classes", declared) if declared is not None else found
        if len(self.classes) < 2:
            fix = "has no folders for two or more classes; put the images of each class into a folder of its name"
            raise ConfigError("dataset.path", str(root), fix)


def _layout(section: Mapping[str, Any]) -> _Layout:
    return _Layout(_folder("dataset.path", section.get("path")), section)


def _folder(key: str, value: Any) -> Path:
    if value is None:
        raise ConfigError(key, None, "say in which folder the images are")
    folder = path(key, value)
    if not folder.is_dir():
        raise ConfigError(key, str(value), "there is no such folder")
    return folder


def _labelled(folder: Path, classes: Sequence[str]) -> tuple[list[Path], list[int]]:
    """List image files and labels, by folder and name. A folder that is no class holds records without a label."""
    place = {name: number for number, name in enumerate(classes)}
    files, labels = [], []
    for entry in sorted(part for part in folder.iterdir() if part.is_dir()):
        found = image_files(entry)
        files += found
        labels += [place.get(entry.name, NO_CLASS)] * len(found)
    return files, labels


# --- files → pixels ----------------------------------------------------------------------------------------------

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".ppm", ".pgm"})
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "PPM")


def decoded_images(files: Sequence[Path | bytes], size: int, constants: PixelConstants) -> Tensor:
    """Decode images into normalised records; one that cannot be decoded is all NaN."""
    channels = len(constants.mean)
    x = torch.full((len(files), channels, size, size), torch.nan)
    for place, file in enumerate(files):
        pixels = decode_image(file, size, channels)
        if pixels is not None:
            x[place] = normalised(torch.from_numpy(pixels.copy())[None], constants)[0]
    return x


def decode_image(file: Path | bytes, size: int, channels: int) -> np.ndarray | None:
    """Decode an image into C×size×size pixels of 0…255: turned as the camera says, cut to a middle square, resized."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = file if isinstance(file, bytes) else file.read_bytes()
            with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
                mode = "RGB" if channels == 3 else "L"
                image.draft(mode, (2 * size, 2 * size))  # a large JPEG is decoded at a fraction of its size
                upright = ImageOps.exif_transpose(image).convert(mode)
                square = ImageOps.fit(upright, (size, size), method=Image.Resampling.BILINEAR)
        return np.asarray(square, dtype=np.uint8).reshape(size, size, channels).transpose(2, 0, 1)
    except Exception:  # a decoder raises anything, and its words could tell what is in the file
        return None


def image_files(folder: Path) -> list[Path]:
    """List every image below a folder, by name."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
