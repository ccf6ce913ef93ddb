"""Image folders: layouts, classes, splits, images that cannot be decoded, training from a short config."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from cords_dp.config import config_for
from cords_dp.data.build import build_dataset
from cords_dp.data.feature_cache import with_features
from cords_dp.data.published import public_facts
from cords_dp.data.record_set import RecordSet
from cords_dp.data.sources.folder import FolderSource, decode_image
from cords_dp.errors import ConfigError, DataError, DatasetUnavailableError
from cords_dp.models.scattering import Scattering
from cords_dp.training.resolve import resolve
from cords_dp.training.trainer import TrainClassifier


def write_image(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(path)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """scikit-learn's digits as PNG files, a folder for each."""
    root = tmp_path_factory.mktemp("digits")
    x, y = load_digits(return_X_y=True)
    for number, (image, label) in enumerate(zip(x.reshape(-1, 8, 8), y, strict=True)):
        write_image(root / f"digit{label}" / f"{number:04}.png", np.kron(image * 15, np.ones((2, 2))))
    return root


def config(path, strategy="FullDP", out=None, **changes):
    dataset = {"path": str(path), "size": 16, "channels": 1, **changes.pop("dataset", {})}
    training = {"num_epochs": 8, "print_every": 8, "device": "cpu", "seed": 0, **changes.pop("train_args", {})}
    privacy = {"epsilon": 8.0, "accountant": "rdp", "reproducible_noise": True, **changes.pop("privacy", {})}
    if out is not None:
        dataset["datadir"], training["results_dir"] = str(out / "data"), str(out)
        changes["ckpt"] = {"is_save": False, "dir": str(out)}
    return config_for("folder", strategy, dataset=dataset, train_args=training, privacy=privacy, **changes)


def small(root, names=("a", "b", "c"), count=4, side=20):
    rng = np.random.default_rng(0)
    for name in names:
        for number in range(count):
            write_image(root / name / f"{number}.png", rng.integers(0, 256, (side + number, side, 3)))
    return root


def test_facts_are_known_before_an_image_is_opened(tmp_path, monkeypatch):
    monkeypatch.setattr("cords_dp.data.sources.folder.decode_image", lambda *_: pytest.fail("an image was opened"))
    cfg = config(small(tmp_path), "GLISTERDP", dataset={"channels": 3}, dss_args={"fraction": 0.5})
    facts = public_facts(cfg)
    assert facts.classes == ("a", "b", "c")
    assert facts.shape == (3, 16, 16)
    assert facts.images
    resolve(cfg, plan=False)


def test_splits_depend_on_the_number_of_images_alone(digits, tmp_path):
    data = build_dataset(config(digits), np.random.default_rng(0))
    assert [len(part) for part in data[:3]] == [1259, 179, 359]
    assert data.num_classes == 10
    together = np.concatenate([part.rows for part in data[:3]])
    assert sorted(together.tolist()) == list(range(1797))
    x, y = data.train.batch([5, 0])
    assert x.shape == (2, 1, 16, 16)
    assert data.train.store.files[int(data.train.rows[5])].parent.name == f"digit{int(y[0])}"
    again = build_dataset(config(digits), np.random.default_rng(0))
    assert np.array_equal(again.train.rows, data.train.rows)


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_folders_of_their_own(tmp_path, name):
    small(tmp_path / "train", count=6)
    small(tmp_path / name, names=("a", "b", "strange"), count=2)
    data = build_dataset(config(tmp_path), np.random.default_rng(0))
    assert [len(part) for part in data[:3]] == [15, 6, 3]  # there is no test/, so a fifth is split off
    assert data.validation.targets.tolist() == [0, 0, 1, 1, -1, -1]
    with pytest.raises(ConfigError, match="a file of its own"):
        resolve(config(tmp_path, dataset={"validation_fraction": 0.1}), plan=False)


def test_declared_classes_give_the_order_and_other_folders_have_no_label(tmp_path):
    small(tmp_path, names=("a", "b", "train"))
    data = build_dataset(config(tmp_path, dataset={"classes": ["b", "train"]}), np.random.default_rng(0))
    labels = {data.train.store.files[int(row)].parent.name: int(label) for row, label in
              zip(data.train.rows, data.train.targets, strict=True)}  # fmt: skip
    assert labels == {"a": -1, "b": 0, "train": 1}


def test_an_image_depends_on_its_file_alone_and_any_size_will_do(tmp_path):
    pixels = np.zeros((40, 80, 3), dtype=np.uint8)
    pixels[:, 20:60] = 200  # the square around the middle
    write_image(tmp_path / "wide.png", pixels)
    assert (decode_image(tmp_path / "wide.png", 8, 3)[:, :, 1:-1] == 200).all()
    assert decode_image(tmp_path / "wide.png", 8, 1).shape == (1, 8, 8)
    turned = io.BytesIO()
    exif = Image.Exif()
    exif[274] = 3  # upside down
    half = np.concatenate([np.full((8, 16), 255), np.zeros((8, 16))]).astype(np.uint8)
    Image.fromarray(half).save(turned, "PNG", exif=exif)
    assert decode_image(turned.getvalue(), 16, 1)[0, 0, 0] == 0


BAD = {
    "empty": b"",
    "text": b"secret words",
    "cut": None,
    "bomb": b"P6 100000 100000 255\n" + b"0" * 100,
    "header": b"\x89PNG\r\n\x1a\n" + b"\0" * 40,
}


@pytest.mark.parametrize("form", BAD)
def test_an_image_that_cannot_be_decoded_is_void_and_nothing_is_said(tmp_path, form, capfd, recwarn):
    small(tmp_path)
    victim = tmp_path / "b" / "1.png"
    victim.write_bytes(BAD[form] if BAD[form] is not None else victim.read_bytes()[:150])
    data = FolderSource().build({"path": str(tmp_path)}, np.random.default_rng(0))
    store = RecordSet(data.train.store)
    x, y = store.batch(np.arange(12))
    assert torch.isnan(x).flatten(1).all(dim=1).tolist() == [n == 5 for n in range(12)]
    assert y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert not recwarn.list
    assert capfd.readouterr() == ("", "")


def test_features_of_a_folder_are_named_after_its_files(tmp_path):
    root, cache = small(tmp_path / "images"), tmp_path / "cache"
    transform = Scattering((3, 16, 16))

    def features(rng=0):
        data = FolderSource().build({"path": str(root), "size": 16}, np.random.default_rng(rng))
        return with_features(data.train, transform, cache, progress=False)

    one, other = features(), features(1)
    assert len(list(cache.glob("*.npy"))) == 1  # every split finds its own
    assert not np.array_equal(one.rows, other.rows)
    data = FolderSource().build({"path": str(root), "size": 16}, np.random.default_rng(0))
    expected = transform(data.train.batch([2])[0])
    torch.testing.assert_close(one.batch([2])[0], expected, atol=5e-3, rtol=5e-3)
    (root / "a" / "0.png").write_bytes(b"changed")
    features()
    assert len(list(cache.glob("*.npy"))) == 2


def test_a_short_config_trains(digits, tmp_path):
    """The defaults: a linear head on scattering, batch and rate by the plan, δ by the number of records."""
    trainer = TrainClassifier(config(digits, out=tmp_path))
    trainer.show_progress = False
    trainer.train()
    assert trainer.history.last("tst_acc") > 0.8
    assert trainer.plan.privacy.delta is None or trainer.plan.privacy.delta <= 1e-4
    assert trainer.run.planned_learning_rate
    assert trainer.spent().epsilon <= 8.0


def test_one_broken_image_changes_nothing_that_shows(digits, tmp_path):
    import shutil

    copied = shutil.copytree(digits, tmp_path / "copy")
    (copied / "digit3" / sorted(p.name for p in (copied / "digit3").iterdir())[7]).write_bytes(b"broken")
    trainer = TrainClassifier(config(copied, "GLISTERDP", tmp_path, dss_args={"fraction": 0.3}))
    trainer.show_progress = False
    trainer.train()
    assert all(torch.isfinite(value).all() for value in trainer.model.state_dict().values())


def test_mistakes_are_named(tmp_path):
    def refused(match, error=ConfigError, **dataset):
        with pytest.raises(error, match=match):
            resolve(config(tmp_path, dataset=dataset), plan=False)

    refused(r"dataset\.path.*no folders for two or more classes")
    small(tmp_path)
    refused(r"dataset\.path.*there is no such folder", path=str(tmp_path / "none"))
    refused(r"dataset\.channels", channels=2)
    refused(r"dataset\.mean.*1 numbers", mean=[0.5, 0.5])
    refused(r"dataset\.classes", classes=["a", "a"])
    refused(r"dataset\.sise.*did you mean 'size'", sise=3)
    (tmp_path / "empty" / "x").mkdir(parents=True)
    (tmp_path / "empty" / "y").mkdir()
    with pytest.raises(DataError, match="no record"):
        FolderSource().build({"path": str(tmp_path / "empty")}, np.random.default_rng(0))
    with pytest.raises(DatasetUnavailableError, match="there is no"):
        FolderSource().read(FolderSource().card({"path": str(tmp_path)}), str(tmp_path / "nowhere"))
