"""Tiny ImageNet from its publishers' files: 200 classes, 64×64 pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cords_dp.datasets.arrays import RawData
from cords_dp.errors import DatasetUnavailableError

_FOLDER = "tiny-imagenet-200"


def read_tiny_imagenet(datadir: Path) -> RawData:
    """The training images and, for testing, the publishers' validation images, whose test images have no labels."""
    folder = datadir / _FOLDER
    if not (folder / "train").is_dir() or not (folder / "val").is_dir():
        raise DatasetUnavailableError(
            f"the data directory (dataset.datadir) has no folder {_FOLDER}; unpack its publishers' {_FOLDER}.zip there"
        )
    classes = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    train = [(image, name) for name in classes for image in _images(folder / "train" / name)]
    test = _test_images(folder / "val", classes)
    (x_train, y_train), (x_test, y_test) = _arrays(train, classes), _arrays(test, classes)
    return RawData(x_train, y_train, x_test, y_test)


def _images(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.JPEG"))


def _test_images(folder: Path, classes: list[str]) -> list[tuple[Path, str]]:
    """As published, in one folder with a list of classes; or in a folder for each class, as CORDS rearranges them."""
    listed = folder / "val_annotations.txt"
    if not listed.is_file():
        return [(image, name) for name in classes for image in _images(folder / name)]
    pairs = (line.split("\t")[:2] for line in listed.read_text().splitlines())
    return [(folder / "images" / image, name) for image, name in pairs]


def _arrays(images: list[tuple[Path, str]], classes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    from PIL import Image

    number = {name: i for i, name in enumerate(classes)}
    pixels = np.empty((len(images), 3, 64, 64), dtype=np.uint8)
    for row, (path, _) in enumerate(images):
        pixels[row] = np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1)
    return pixels, np.array([number[name] for _, name in images], dtype=np.int64)
