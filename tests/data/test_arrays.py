"""Arrays, embeddings and texts of one's own: forms of files, labels by name, bad input, training."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from cords_dp.config import config_for
from cords_dp.data.published import public_facts
from cords_dp.data.record_set import RecordSet
from cords_dp.data.sources.arrays import ArraySource, EmbeddingSource, open_arrays
from cords_dp.data.sources.texts import TextSource, decode_text
from cords_dp.errors import ConfigError, CordsDPError, DatasetUnavailableError
from cords_dp.training.resolve import resolve
from cords_dp.training.trainer import TrainClassifier

SECRET = 98765.4321


def rng():
    return np.random.default_rng(0)


def config(name, out, strategy="FullDP", model=None, **dataset):
    training = {"num_epochs": 10, "print_every": 10, "device": "cpu", "seed": 0, "results_dir": str(out)}
    privacy = {"epsilon": 8.0, "accountant": "rdp", "reproducible_noise": True}
    return config_for(
        name, strategy, dataset={"datadir": str(out / "data"), **dataset}, train_args=training, privacy=privacy,
        model=model or {}, ckpt={"is_save": False, "dir": str(out)},
    )  # fmt: skip


def written(folder, form, x, y):
    """The same records in each form that can be read; returns the keys that name them."""
    if form == "npz":
        np.savez(folder / "a.npz", x=x, y=y)
    elif form == "compressed":
        np.savez_compressed(folder / "a.npz", x=x, y=y)
    elif form == "folder":
        (folder / "a").mkdir()
        np.save(folder / "a/x.npy", x)
        np.save(folder / "a/y.npy", y)
        return {"path": str(folder / "a")}
    else:
        np.save(folder / "x.npy", x)
        np.save(folder / "y.npy", y)
        return {"path": str(folder / "x.npy"), "labels": str(folder / "y.npy")}
    return {"path": str(folder / "a.npz")}


@pytest.mark.parametrize("form", ["npz", "compressed", "folder", "pair"])
def test_forms_of_files(tmp_path, form):
    x, y = rng().normal(size=(40, 3)), np.arange(40) % 2
    section = {**written(tmp_path, form, x, y), "classes": 2}
    data = ArraySource().build(section, rng())
    assert [len(part) for part in data[:3]] == [28, 4, 8]
    got, labels = data.train.batch(np.arange(28))
    np.testing.assert_allclose(got, x[data.train.rows].astype(np.float32))
    assert labels.tolist() == y[data.train.rows].tolist()
    assert isinstance(data.train.store.x, np.memmap) == (form != "compressed")
    assert public_facts({"dataset": {"name": "arrays", **section}}).classes == ("0", "1")


def test_sets_of_their_own(tmp_path):
    x, y = rng().normal(size=(40, 3)), np.arange(40) % 2
    np.savez(tmp_path / "a.npz", x_train=x[:30], y_train=y[:30], x_val=x[30:35], y_val=y[30:35])
    np.savez(tmp_path / "t.npz", x=x[35:], y=y[35:])
    data = ArraySource().build({"path": str(tmp_path / "a.npz"), "test_path": str(tmp_path / "t.npz"), "classes": 2},
                               rng())  # fmt: skip
    assert [len(part) for part in data[:3]] == [30, 5, 5]


@pytest.mark.parametrize("shape", [(5, 8, 9), (5, 8, 9, 3), (5, 3, 8, 9), (5, 8, 9, 1)])
def test_pixels_are_scaled_by_public_constants(tmp_path, shape):
    x = rng().integers(0, 256, shape, dtype=np.uint8)
    section = {**written(tmp_path, "npz", x, np.arange(5) % 2), "classes": ["no", "yes"]}
    channels = 3 if 3 in shape[1:] else 1
    facts = ArraySource().facts(section)
    assert (facts.shape, facts.images) == ((channels, 8, 9), True)
    store = RecordSet(ArraySource().build({**section, "validation_fraction": 0.2}, rng()).train.store)
    got = store.batch([2, 4])[0]
    expected = x[[2, 4]].reshape(2, 1, 8, 9) if channels == 1 else x[[2, 4]]
    expected = expected if shape != (5, 8, 9, 3) else expected.transpose(0, 3, 1, 2)
    mean, std = (np.array(part, dtype=np.float32).reshape(1, -1, 1, 1) for part in facts.constants)
    np.testing.assert_allclose(got, (expected / 255 - mean) / std, atol=1e-5)
    own = ArraySource().facts({**section, "mean": [0.0] * channels, "std": [1.0] * channels})
    assert own.constants.std == (1.0,) * channels


def test_labels_by_name_and_by_number_each_by_itself(tmp_path):
    x = np.zeros((6, 2), dtype=np.float32)
    names = written(tmp_path, "npz", x, np.array(["cat", "dog", "cow", "0", "", "dog"]))
    source, section = ArraySource(), {"classes": ["cat", "dog"], "validation_fraction": 0.2}
    assert source.build({**names, **section}, rng()).train.store.all_labels.tolist() == [0, 1, -1, 0, -1, 1]
    numbers = written(tmp_path, "npz", x, np.array([0, 1, 2, -1, 2**40, 1]))
    assert source.build({**numbers, **section}, rng()).train.store.all_labels.tolist() == [0, 1, -1, -1, -1, 1]


BAD_ARRAYS = {
    "objects": {"x": np.array([[SECRET], [None]], dtype=object), "y": np.arange(2)},
    "texts": {"x": np.array([[str(SECRET)]] * 2), "y": np.arange(2)},
    "lengths": {"x": np.full((3, 2), SECRET), "y": np.arange(2)},
    "real labels": {"x": np.full((2, 2), SECRET), "y": np.full(2, SECRET)},
    "no y": {"x": np.full((2, 2), SECRET)},
    "a vector": {"x": np.full(2, SECRET), "y": np.arange(2)},
}


@pytest.mark.parametrize("form", BAD_ARRAYS)
def test_bad_arrays_are_named_and_never_shown(tmp_path, form):
    np.savez(tmp_path / "a.npz", allow_pickle=True, **BAD_ARRAYS[form])
    with pytest.raises(CordsDPError, match=r"a\.npz") as caught:
        resolve(config("arrays", tmp_path, path=str(tmp_path / "a.npz"), classes=2), plan=False)
    told = f"{caught.value} {caught.value.__cause__} {caught.value.__context__}"
    assert str(SECRET) not in told


def test_mistakes_are_named(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((9, 4, 4, 2), dtype=np.uint8), y=np.arange(9) % 2)
    (tmp_path / "b.npz").write_bytes(b"junk")

    def refused(match, name="arrays", error=ConfigError, **dataset):
        with pytest.raises(error, match=match):
            resolve(config(name, tmp_path, **{"classes": 2, **dataset}), plan=False)

    refused(r"dataset\.path = None")
    refused(r"dataset\.classes = None", path=str(tmp_path / "a.npz"), classes=None)
    refused("1 or 3 channels, not 2", path=str(tmp_path / "a.npz"))
    refused(r"b\.npz is damaged", error=DatasetUnavailableError, path=str(tmp_path / "b.npz"))
    refused(r"none\.npz", error=DatasetUnavailableError, path=str(tmp_path / "none.npz"))
    np.savez(tmp_path / "c.npz", x=np.zeros((9, 4, 4)), y=np.arange(9) % 2)
    refused("one row of numbers", name="embeddings", path=str(tmp_path / "c.npz"))
    with pytest.raises(DatasetUnavailableError, match="damaged"):
        open_arrays(tmp_path / "b.npz")


def test_embeddings_train_with_a_short_config_whatever_single_records_hold(tmp_path):
    x, y = load_digits(return_X_y=True)
    x, y = (x / 16 - 0.3), y.copy()
    x[3], x[4], x[5] = np.nan, np.inf, 1e300
    y[6], y[7], y[1600] = 99, -5, 77
    np.savez(tmp_path / "e.npz", x_train=x[:1500], y_train=y[:1500], x_test=x[1500:], y_test=y[1500:])
    trainer = TrainClassifier(config("embeddings", tmp_path, path=str(tmp_path / "e.npz"), classes=10))
    trainer.show_progress = False
    trainer.train()
    assert trainer.history.last("tst_acc") > 0.75
    assert EmbeddingSource.name == trainer.run.config["dataset"]["name"]
    assert trainer.run.config["model"]["architecture"] == "LinearHead"
    assert not (tmp_path / "data").exists()  # ready rows need no features


# --- texts -----------------------------------------------------------------------------------------------------------

LINES = [("good, really", "pos"), ('a "bad" film', "neg"), ("", "pos"), ("odd", "neither"), ("übel", "0")]


def write_texts(path, lines=LINES):
    if path.suffix == ".jsonl":
        text = "\n".join(json.dumps({"words": words, "mood": label}) for words, label in lines)
        path.write_text(text + '\nno json {\n[1, 2]\n{"words": 3, "mood": null}\n')
    else:
        import csv

        with open(path, "w", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerows([("id", "words", "mood"), *((i, *line) for i, line in enumerate(lines)), ("only an id",)])
            file.write('8,"a quote that never ends,pos\n\0\n' if path.suffix == ".csv" else "")
    return path


@pytest.mark.parametrize(("name", "extra"), [("t.csv", 3), ("t.tsv", 1), ("t.jsonl", 3)])
def test_texts_of_files(tmp_path, name, extra):
    """Lines that cannot be parsed are empty texts without a label: nothing about them is told."""
    section = {"path": str(write_texts(tmp_path / name)), "text": "words", "target": "mood", "max_length": 30,
               "classes": ["neg", "pos"], "validation_fraction": 0.2}  # fmt: skip
    source = TextSource()
    source.check(section, private=True)
    store = source.build(section, rng()).train
    store = RecordSet(store.store)
    x, y = store.batch(np.arange(len(store)))
    assert x.shape == (5 + extra, 30)
    assert x.dtype == source.facts(section).dtype == torch.uint8
    assert [decode_text(row) for row in x[:5]] == [words for words, _ in LINES]
    assert y.tolist()[:5] == [1, 0, 1, -1, 0]
    assert set(y.tolist()[5:]) == {-1}
    again = source.read(source.card(section), section["path"])
    assert torch.equal(again.batch(np.arange(5))[0], x[:5])


def test_mistakes_about_texts_are_named(tmp_path):
    write_texts(tmp_path / "t.csv")

    def refused(match, error=ConfigError, **dataset):
        section = {"path": str(tmp_path / "t.csv"), "text": "words", "target": "mood", "classes": 2, **dataset}
        with pytest.raises(error, match=match):
            TextSource().check(section, private=True)

    refused(r"t\.csv has no column 'word'", DatasetUnavailableError, text="word")
    refused(r"none\.csv", DatasetUnavailableError, path=str(tmp_path / "none.csv"))
    refused(r"dataset\.path.*must be a \.csv", path=str(tmp_path / "t.xls"))
    refused(r"dataset\.classes", classes=None)
