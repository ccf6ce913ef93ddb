"""Prediction by the released model of a run: without CORDS, without pickle, from public facts alone."""

from __future__ import annotations

import csv
import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import REPOSITORY
from dotmap import DotMap
from PIL import Image
from sklearn.datasets import load_digits

from cords_dp import load_model
from cords_dp.cli import main
from cords_dp.config import config_for
from cords_dp.errors import CordsDPError, DataError, ModelUnavailableError
from cords_dp.models.build import build_model
from cords_dp.models.card import ModelCard
from cords_dp.models.private import make_private_ready
from cords_dp.runs.run import run_experiment

NAMES = [f"digit {i}" for i in range(10)]


def digits():
    x, y = load_digits(return_X_y=True)
    return (x.reshape(-1, 8, 8) * 15).astype(np.uint8), y.astype(np.int64)


def config(name, out, dataset, **changes):
    training = {"num_epochs": 6, "print_every": 6, "device": "cpu", "seed": 0}
    privacy = {"epsilon": 8.0, "accountant": "rdp", "reproducible_noise": True}
    dataset = {"datadir": str(out / "data"), **dataset}
    return DotMap(config_for(name, "FullDP", dataset=dataset, train_args=training, privacy=privacy, **changes))


@pytest.fixture(scope="module")
def arrays_run(tmp_path_factory):
    """Digits as an .npz file of pixels; a linear head on them as they are."""
    root = tmp_path_factory.mktemp("arrays")
    x, y = digits()
    np.savez(root / "digits.npz", x_train=x[:1400], y_train=y[:1400], x_test=x[1400:], y_test=y[1400:])
    run_experiment(config("arrays", root, {"path": str(root / "digits.npz"), "classes": NAMES, "test": "public"}),
                   root / "run", progress=False)  # fmt: skip
    return root


@pytest.fixture(scope="module")
def folder_run(tmp_path_factory):
    root = tmp_path_factory.mktemp("folder")
    for number, (image, label) in enumerate(zip(*digits(), strict=True)):
        path = root / "images" / f"d{label}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    dataset = {"path": str(root / "images"), "size": 8, "channels": 1}
    run_experiment(config("folder", root, dataset), root / "run", progress=False)
    return root


def test_predictions_are_the_model_s(arrays_run):
    model = load_model(arrays_run / "run")
    x, y = digits()
    assert model.classes == tuple(NAMES)
    predicted, probabilities = model.predict(x[1400:]), model.predict_proba(x[1400:])
    accuracy = float(np.mean(predicted == np.array(NAMES, dtype=object)[y[1400:]]))
    reported = json.loads((arrays_run / "run" / "result.json").read_text())["accuracy"]
    assert accuracy == pytest.approx(reported)
    assert accuracy > 0.7
    assert probabilities.shape == (397, 10)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    # one image, grey ones without a channel, channels last, numbers that are normalised already
    normal = (x[1400:1403, None] / 255 - 0.5) / 0.25
    for form in (x[1400], x[1400:1403, None], x[1400:1403, :, :, None], normal.astype(np.float32)):
        np.testing.assert_allclose(model.predict_proba(form)[0], probabilities[0], atol=1e-5)
    assert len(model.predict(x[:0])) == 0


def test_a_record_that_is_not_finite_has_no_prediction(arrays_run):
    model = load_model(arrays_run / "run")
    x = np.zeros((2, 1, 8, 8), dtype=np.float32)
    x[1] = np.nan
    assert model.predict(x)[1] == ""
    assert model.predict(x)[0] in NAMES
    for wrong in (np.zeros((2, 9)), np.zeros((2, 1, 9, 8), dtype=np.uint8), ["a text"], object(), None, "text"):
        with pytest.raises(DataError, match="shape"):
            model.predict(wrong)


def test_files_of_arrays_and_images(arrays_run, tmp_path):
    model = load_model(arrays_run / "run")
    x, _ = digits()
    np.save(tmp_path / "some.npy", x[1400:1420])
    np.savez_compressed(tmp_path / "some.npz", x=x[1400:1420])
    Image.fromarray(x[1400]).save(tmp_path / "one.png")
    expected = model.predict(x[1400:1420])
    for name in ("some.npy", "some.npz"):
        frame = model.predict_file(tmp_path / name)
        assert list(frame["prediction"]) == list(expected)
        assert list(frame["record"]) == list(range(20))
    assert list(model.predict_file(tmp_path / "one.png")["prediction"]) == [expected[0]]
    np.save(tmp_path / "wide.npy", np.zeros((3, 9, 8), dtype=np.uint8))
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (tmp_path / "notes.txt").write_text("words")
    for name in ("wide.npy", "objects.npy", "notes.txt", "missing.npz"):
        with pytest.raises(CordsDPError, match=name.replace(".", r"\.")):
            model.predict_file(tmp_path / name)


def test_the_command_writes_a_row_for_each_image(folder_run, tmp_path, capsys):
    shutil.copytree(folder_run / "images" / "d3", tmp_path / "new")
    (tmp_path / "new" / "a broken one.png").write_bytes(b"no image")
    out = tmp_path / "p.csv"
    command = ["predict", str(folder_run / "run"), "--input", str(tmp_path / "new"), "--out", str(out), "--quiet"]
    assert main(command) == 0
    assert f"{out}" in capsys.readouterr().out
    with open(out, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 184
    assert list(rows[0])[:3] == ["record", "prediction", "p_d0"]
    assert (rows[-1]["record"], rows[-1]["prediction"], rows[-1]["p_d0"]) == ("a broken one.png", "", "")
    assert np.mean([row["prediction"] == "d3" for row in rows]) > 0.6
    single = next((tmp_path / "new").glob("*.png"))
    assert main(["predict", str(folder_run / "run"), "--input", str(single), "--out", str(out), "--quiet"]) == 0
    assert main(["predict", str(tmp_path), "--input", str(single), "--out", str(tmp_path / "none.csv")]) == 2
    assert not (tmp_path / "none.csv").exists()


WITHOUT_CORDS = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cords", "ray", "apricot"):
            raise ImportError("blocked: " + name)

sys.meta_path.insert(0, Blocked())
import cords_dp
from cords_dp.cli import main

model = cords_dp.load_model(sys.argv[1])
assert main(["predict", sys.argv[1], "--input", sys.argv[2], "--out", sys.argv[3], "--quiet"]) == 0
assert not any(name.split(".")[0] in ("cords", "ray") for name in sys.modules), "CORDS was imported"
assert "cords_dp.cords" not in sys.modules
"""


def test_prediction_needs_no_cords(folder_run, tmp_path):
    arguments = [str(folder_run / "run"), str(folder_run / "images" / "d5"), str(tmp_path / "out.csv")]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_CORDS, *arguments], capture_output=True, text=True, env=environment, timeout=200
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out.csv").is_file()


def saved(folder, architecture, shape, outputs=10, **section):
    """A model with random weights as a run leaves it."""
    folder.mkdir(exist_ok=True)
    section = {"architecture": architecture, **section}
    cfg = {"model": section, "dataset": {"name": "custom"}}
    model, _ = make_private_ready(build_model(cfg, seed=1, num_classes=outputs, input_shape=shape))
    card = ModelCard(section, True, False, shape, "float32", outputs, tuple(map(str, range(outputs))))
    torch.save(model.state_dict(), folder / "model.pt")
    (folder / "model.json").write_text(card.to_json())
    return model.eval(), card


@pytest.mark.parametrize(
    ("architecture", "shape"), [("MnistNet", (1, 28, 28)), ("ResNet18", (3, 32, 32)), ("TwoLayerNet", (64,))]
)
def test_models_of_cords_load_too(tmp_path, architecture, shape):
    """ResNet18 with the GroupNorm that took BatchNorm's place."""
    model, _ = saved(tmp_path / "run", architecture, shape)
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = torch.softmax(model(x), dim=1).numpy()
    np.testing.assert_allclose(load_model(tmp_path / "run").predict_proba(x), expected, rtol=1e-5, atol=1e-6)


def test_a_card_comes_back_as_it_was(tmp_path):
    _, card = saved(tmp_path / "run", "MLPHead", (5,), args={"width": 7})
    assert ModelCard.from_json(card.to_json()) == card


def test_a_model_json_holds_public_facts_only(arrays_run, tmp_path):
    """It is the same whatever the records are, and names no value of them."""
    x, y = digits()
    other = np.where(np.arange(1400) < 200, 0, y[:1400])  # all records are in D, where no V is read: other counts
    np.savez(tmp_path / "digits.npz", x_train=255 - x[:1400], y_train=other, x_test=x[1400:], y_test=y[1400:])
    dataset = {"path": str(tmp_path / "digits.npz"), "classes": NAMES}
    run_experiment(config("arrays", tmp_path, dataset), tmp_path / "run", progress=False)
    mine, other = ((root / "run" / "model.json").read_text() for root in (arrays_run, tmp_path))
    assert mine == other
    known = {"format", "model", "private", "regression", "shape", "dtype", "outputs", "classes", "pixels",
             "input_norm", "features", "source"}  # fmt: skip
    assert set(json.loads(mine)) == known


DAMAGES = {
    "no card": lambda run: (run / "model.json").unlink(),
    "no weights": lambda run: (run / "model.pt").unlink(),
    "cut card": lambda run: (run / "model.json").write_text((run / "model.json").read_text()[:40]),
    "other json": lambda run: (run / "model.json").write_text('{"format": 1}'),
    "a list": lambda run: (run / "model.json").write_text("[1, 2]"),
    "not text": lambda run: (run / "model.json").write_bytes(b"\xff\xfe\0"),
    "cut weights": lambda run: (run / "model.pt").write_bytes((run / "model.pt").read_bytes()[:60]),
    "a pickle": lambda run: (run / "model.pt").write_bytes(pickle.dumps({"linear.weight": os.system})),
    "foreign weights": lambda run: torch.save({"linear.weight": torch.zeros(3, 4)}, run / "model.pt"),
    "no tensors": lambda run: torch.save([1, 2], run / "model.pt"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_folder_is_refused(tmp_path, damage):
    saved(tmp_path / "run", "LinearHead", (5,))
    load_model(tmp_path / "run")
    DAMAGES[damage](tmp_path / "run")
    with pytest.raises(ModelUnavailableError):
        load_model(tmp_path / "run")


@pytest.mark.parametrize(
    "change",
    [{"shape": (10**5, 10**5)}, {"outputs": 3}, {"dtype": "object"}, {"shape": ()}, {"model": {"architecture": 3}},
     {"features": ["small", 1]}],
)  # fmt: skip
def test_an_edited_card_is_refused(tmp_path, change):
    _, card = saved(tmp_path / "run", "LinearHead", (5,))
    (tmp_path / "run" / "model.json").write_text(replace(card, **change).to_json())
    with pytest.raises(ModelUnavailableError):
        load_model(tmp_path / "run")


def test_another_backbone_is_refused(tmp_path):
    from torchvision.models import (
        mobilenet_v3_small,
    )

    section = {"features": "torchvision:mobilenet_v3_small"}
    for name in ("one", "two"):
        torch.manual_seed(len(name) + (name == "two"))
        torch.save(mobilenet_v3_small().state_dict(), tmp_path / f"{name}.pth")
    from cords_dp.models.card import features_of

    model, card = saved(tmp_path / "run", "LinearHead", (3, 32, 32), weights=str(tmp_path / "one.pth"), **section)
    (tmp_path / "run" / "model.json").write_text(replace(card, features=features_of(model)).to_json())
    x = torch.randn(2, 3, 32, 32)
    expected = load_model(tmp_path / "run").predict_proba(x)
    (tmp_path / "one.pth").rename(tmp_path / "moved.pth")
    moved = load_model(tmp_path / "run", weights=tmp_path / "moved.pth")
    np.testing.assert_array_equal(moved.predict_proba(x), expected)
    with pytest.raises(ModelUnavailableError, match="backbone"):
        load_model(tmp_path / "run", weights=tmp_path / "two.pth")


def test_a_table_from_csv_to_predictions(tmp_path):
    """By the schema in the run's card; values that were released for scaling are in it."""
    rng = np.random.default_rng(0)
    age, sex = rng.integers(18, 90, 900), rng.choice(["Male", "Female"], 900)
    label = np.where((age > 50) ^ (sex == "Male"), "high", "low")
    lines = [f"{a},{s},{t}" for a, s, t in zip(age, sex, label, strict=True)]
    (tmp_path / "people.csv").write_text("\n".join(["age,sex,income", *lines]) + "\n")
    schema = {
        "target": {"name": "income", "classes": ["low", "high"]},
        "columns": {"age": {"range": [0, 100]}, "sex": {"categories": ["Male", "Female"]}},
    }
    for scaling in ("range", "private"):
        dataset = {"path": str(tmp_path / "people.csv"), "schema": schema, "scaling": scaling}
        run = tmp_path / scaling
        run_experiment(config("table", tmp_path, dataset), run, progress=False)
        (tmp_path / "new.csv").write_text("age,sex\n70,Female\n20,Male\n")
        frame = load_model(run).predict_file(tmp_path / "new.csv")
        assert set(frame["prediction"]) <= {"low", "high"}
        assert list(frame.columns) == ["record", "prediction", "p_low", "p_high"]
        assert ("fitted" in json.loads((run / "model.json").read_text())["source"]) == (scaling == "private")
        np.testing.assert_allclose(frame[["p_low", "p_high"]].sum(axis=1), 1, atol=1e-5)
