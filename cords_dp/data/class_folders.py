"""Published images as files: PNGs in a folder for each class, and Tiny ImageNet as its publishers lay it out.

``DATADIR/cifar100/train/CLASS/*.png`` and ``test/CLASS/*.png`` is how copies of CIFAR and MNIST are passed on. Classes
in alphabetical order are the published numbers of the labels: 0 to 9 for MNIST, the fine labels of CIFAR-100.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cords_dp.data.store import RawData
from cords_dp.errors import DatasetUnavailableError

if TYPE_CHECKING:
    from cords_dp.data.published import DatasetInfo

_TINY = "tiny-imagenet-200"
BY_CLASS = "by_class"  # in an .npz whose rows are in the order of their classes
Labelled = Sequence[tuple[Path, int]]  # (file, label)


def class_folder(name: str, datadir: Path) -> Path | None:
    """Find the class folders of a set; None where it is not in this form."""
    folder = datadir / name
    return folder if (folder / "train").is_dir() else None


def sorted_by_class(name: str, datadir: Path) -> bool:
    """Return whether the rows of a set are in the order of its classes, so that a row tells a label."""
    with contextlib.suppress(Exception), np.load(datadir / f"{name}.npz", allow_pickle=False) as stored:
        return BY_CLASS in stored.files
    return class_folder(name, datadir) is not None  # not stored yet; a damaged file is refused when it is read


def read_class_folders(folder: Path, info: DatasetInfo) -> RawData:
    """Read all images of a published set, class by class; refuse classes, sizes or numbers that were not published."""
    classes = _classes(folder / "train", info.num_classes)
    if (testing := _classes(folder / "test", info.num_classes)) != classes:
        missing = ", ".join(sorted({*classes} ^ {*testing}))
        raise DatasetUnavailableError(f"{folder.name} has other classes in train than in test: {missing}")
    parts: list[np.ndarray] = []
    for part, size in (("train", info.num_train), ("test", info.num_test)):
        images = [(file, i) for i, name in enumerate(classes) for file in sorted((folder / part / name).glob("*.png"))]
        if len(images) != size:
            raise DatasetUnavailableError(f"{folder.name}/{part} has {len(images)} PNG images instead of {size}")
        parts += _arrays(images, info.shape, f"{folder.name}/{part}")
    return RawData(*parts)


def read_tiny_imagenet(datadir: Path, info: DatasetInfo) -> RawData:
    """Read the training images and, for testing, the publishers' validation images: their test set has no labels."""
    folder = datadir / _TINY
    if not (folder / "train").is_dir() or not (folder / "val").is_dir():
        raise DatasetUnavailableError(
            f"the data directory (dataset.datadir) has no folder {_TINY}; unpack its publishers' {_TINY}.zip there"
        )
    classes = sorted(path.name for path in (folder / "train").iterdir() if path.is_dir())
    train = [(image, i) for i, name in enumerate(classes) for image in _jpegs(folder / "train" / name)]
    test = _tiny_test_images(folder / "val", classes)
    return RawData(*_arrays(train, info.shape, f"{_TINY}/train"), *_arrays(test, info.shape, f"{_TINY}/val"))


def _classes(folder: Path, known: int) -> list[str]:
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if len(classes) != known:
        where = f"{folder.parent.name}/{folder.name}"
        raise DatasetUnavailableError(f"{where} in the data directory has {len(classes)} class folders, not {known}")
    return classes


def _jpegs(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.JPEG"))


def _tiny_test_images(folder: Path, classes: list[str]) -> Labelled:
    """List test images: of one folder with a list of classes, as published, or by class, as CORDS rearranges them."""
    listed = folder / "val_annotations.txt"
    if not listed.is_file():
        return [(image, i) for i, name in enumerate(classes) for image in _jpegs(folder / name)]
    pairs = (line.split("\t")[:2] for line in listed.read_text().splitlines())
    return [(folder / "images" / image, classes.index(name)) for image, name in pairs]


def _arrays(images: Labelled, shape: tuple[int, ...], where: str) -> tuple[np.ndarray, np.ndarray]:
    from PIL import Image

    pixels = np.empty((len(images), *shape), dtype=np.uint8)
    for row, (file, _) in enumerate(images):
        try:
            with Image.open(file) as image:
                pixels[row] = np.moveaxis(np.atleast_3d(np.asarray(image.convert(_MODES[shape[0]]))), 2, 0)
        except (OSError, ValueError) as error:  # not an image; or ValueError: of another size
            size = "×".join(map(str, shape[1:]))
            raise DatasetUnavailableError(f"{where} has a file that is no image of {size} pixels") from error
    return pixels, np.array([label for _, label in images], dtype=np.int64)


_MODES = {1: "L", 3: "RGB"}
