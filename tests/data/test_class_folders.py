"""Published sets as class folders of PNG files: read as published, refused when they are not, rows not told."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from PIL import Image

from cords_dp.data import fetch
from cords_dp.data.published import DATASETS, refuse_telling_rows
from cords_dp.errors import ConfigError, DatasetUnavailableError

CLASSES = ("bee", "apple", "cat")  # not in alphabetical order
PER_CLASS = {"train": 4, "test": 2}


@pytest.fixture(params=["cifar100", "mnist"])
def images(request, tmp_path, monkeypatch):
    """A tiny made-up set under the name of a published one: the name, its folder, the pixels of each class."""
    name = request.param
    info = dataclasses.replace(DATASETS[name], num_train=12, num_test=6, num_classes=3)
    monkeypatch.setitem(DATASETS, name, info)
    monkeypatch.setattr(fetch, "_from_torchvision", lambda *_: pytest.fail("nothing need be fetched"))
    rng, pixels = np.random.default_rng(0), {}
    for part, size in PER_CLASS.items():
        for label in CLASSES:
            folder = tmp_path / name / part / label
            folder.mkdir(parents=True)
            pixels[part, label] = rng.integers(0, 256, (size, *info.shape), dtype=np.uint8)
            for i, image in enumerate(pixels[part, label]):
                Image.fromarray(np.squeeze(np.moveaxis(image, 0, 2))).save(folder / f"{label}_{i}.png")
    return name, tmp_path, pixels


def test_classes_in_alphabetical_order_are_the_labels(images):
    name, folder, pixels = images
    for raw in (fetch.image_arrays(name, folder), fetch.image_arrays(name, folder)):  # read, then from the cache
        for x, y, part in ((raw.x_train, raw.y_train, "train"), (raw.x_test, raw.y_test, "test")):
            assert y.tolist() == np.repeat([0, 1, 2], PER_CLASS[part]).tolist()
            assert np.array_equal(x, np.concatenate([pixels[part, label] for label in sorted(CLASSES)]))


def test_a_folder_that_is_not_the_published_set_is_refused(images):
    name, folder, _ = images

    def refused(why):
        with pytest.raises(DatasetUnavailableError, match=why):
            fetch.image_arrays(name, folder)
        assert not (folder / f"{name}.npz").exists()

    Image.new("L", (5, 5)).save(folder / name / "train" / "apple" / "apple_0.png")
    refused("no image of .* pixels")
    (folder / name / "train" / "apple" / "apple_0.png").write_bytes(b"not an image")
    refused("no image of .* pixels")
    (folder / name / "train" / "apple" / "apple_0.png").unlink()
    refused("11 PNG images instead of 12")
    (folder / name / "test" / "bee").rename(folder / name / "test" / "wasp")
    refused("other classes .* bee, wasp")
    (folder / name / "test" / "wasp").rename(folder / "wasp")
    refused("2 class folders, not 3")


def test_rows_in_the_order_of_the_classes_are_not_published(images):
    """A row of such a set tells its label: of the folder, and of what was stored from it."""
    name, folder, _ = images
    section = {"name": name, "datadir": str(folder)}
    with pytest.raises(ConfigError, match="tell labels"):
        refuse_telling_rows(section)
    raw = fetch.image_arrays(name, folder)
    (folder / name).rename(folder / "gone")
    with pytest.raises(ConfigError, match="tell labels"):
        refuse_telling_rows(section)
    np.savez(folder / f"{name}.npz", **raw._asdict())  # as fetched from its publishers, in their order
    refuse_telling_rows(section)
