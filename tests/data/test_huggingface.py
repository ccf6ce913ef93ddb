"""Datasets that Hugging Face's save_to_disk has written (an optional extra)."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from cords_dp.config import config_for
from cords_dp.data.sources.huggingface import HubSource
from cords_dp.data.sources.texts import decode_text
from cords_dp.errors import ConfigError, DatasetUnavailableError
from cords_dp.training.trainer import TrainClassifier

hub = pytest.importorskip("datasets", reason="needs the extra huggingface")
if not hasattr(hub, "load_from_disk"):  # the folder of this file, which is on the path, has the same name
    pytest.skip("needs the extra huggingface", allow_module_level=True)


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


@pytest.fixture
def images(tmp_path):
    x, y = load_digits(return_X_y=True)
    pictures = [png(image * 15) for image in x.reshape(-1, 8, 8)[:600]]
    pictures[3] = {"bytes": b"no image", "path": None}
    features = hub.Features({"picture": hub.Image(), "label": hub.ClassLabel(names=[f"d{i}" for i in range(10)])})
    table = hub.Dataset.from_dict({"picture": pictures, "label": y[:600]}, features=features)
    table.save_to_disk(str(tmp_path / "images"))
    return tmp_path


def test_images_by_their_own_classes(images):
    section = {"path": str(images / "images"), "image": "picture", "size": 8, "channels": 1}
    source = HubSource()
    source.check(section, private=True)
    assert source.facts(section).classes == tuple(f"d{i}" for i in range(10))
    store = source.build(section, np.random.default_rng(0)).train.store
    x, y = store.read(np.arange(6))
    assert x.shape == (6, 1, 8, 8)
    assert torch.isnan(x).flatten(1).all(dim=1).tolist() == [n == 3 for n in range(6)]
    assert y.tolist() == [0, 1, 2, 3, 4, 5]
    assert b"".join(store.content()) == b"".join(store.content())
    assert len(source.read(source.card(section), section["path"])) == 600


def test_a_run(images):
    config = config_for(
        "huggingface", "FullDP", model={"features": "scattering"}, privacy={"epsilon": 8.0, "accountant": "rdp"},
        dataset={"path": str(images / "images"), "image": "picture", "size": 8, "channels": 1,
                 "datadir": str(images / "data")},
        train_args={"num_epochs": 2, "print_every": 2, "device": "cpu", "results_dir": str(images)},
        ckpt={"is_save": False, "dir": str(images)},
    )  # fmt: skip
    trainer = TrainClassifier(config)
    trainer.show_progress = False
    trainer.train()
    assert trainer.spent().epsilon <= 8.0


def test_texts_and_numbers_with_splits(tmp_path):
    def part(n):
        return hub.Dataset.from_dict(
            {"words": [f"text {i}" for i in range(n)], "a": [float(i) for i in range(n)],
             "b": [None, *range(n - 1)], "y": ["no", "yes", None, "maybe", *["no"] * (n - 4)]}
        )  # fmt: skip

    hub.DatasetDict(train=part(20), test=part(5)).save_to_disk(str(tmp_path / "d"))
    section = {"path": str(tmp_path / "d"), "target": "y", "classes": ["no", "yes"]}
    text = HubSource().build({**section, "text": "words"}, np.random.default_rng(0))
    assert [len(p) for p in text[:3]] == [18, 2, 3]
    assert decode_text(text.test.batch([2])[0][0]) == "text 4"
    assert text.test.targets.tolist() == [0, 1, 0]  # of the test set, those that have a label
    assert sorted(text.train.store.all_labels.tolist())[:2] == [-1, -1]
    numbers = HubSource().build({**section, "columns": ["a", "b"]}, np.random.default_rng(0))
    x = numbers.train.store.read(np.arange(3))[0]
    assert torch.isnan(x[0, 1])
    assert x[1:].tolist() == [[1.0, 0.0], [2.0, 1.0]]
    with pytest.raises(ConfigError, match=r"dataset\.text.*no such column"):
        HubSource().check({**section, "text": "word"}, private=True)
    with pytest.raises(ConfigError, match="one of"):
        HubSource().check(section, private=True)
    with pytest.raises(ConfigError, match=r"dataset\.classes"):
        HubSource().check({"path": section["path"], "target": "y", "text": "words"}, private=True)
    with pytest.raises(DatasetUnavailableError, match="no dataset that save_to_disk"):
        HubSource().check({"path": str(tmp_path), "text": "a"}, private=True)
