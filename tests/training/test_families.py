"""Every family of CORDS' configs trains an epoch: images, text and regression, on tiny data that is made here."""

from __future__ import annotations

import math
import sys
import types

import numpy as np
import pytest
import torch
from cords_style import (
    VECTOR_LENGTH,
    WORDS,
    cords_config,
    made_private,
    regression_config,
    sentences,
    text_config,
    write_vectors,
)
from torch.utils.data import Dataset, TensorDataset

from cords_dp import TrainClassifier
from cords_dp.data.published import DATASETS, DatasetInfo
from cords_dp.errors import ConfigError, DataError, DatasetUnavailableError

PRIVATE = ("FullDP", "RandomDP", "GLISTERDP")


def trained(config, aloud=False, **data) -> TrainClassifier:
    trainer = TrainClassifier(config)
    trainer.show_progress = aloud
    trainer.train(**data)
    return trainer


# --- text ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_text(tmp_path):
    """A config on a text set with made-up vectors, and a folder for its files."""
    words = {"weight_path": write_vectors(tmp_path / "glove"), "wordvec_dim": VECTOR_LENGTH}
    folder = tmp_path / "text"
    folder.mkdir()

    def make(name: str, classes: int, strategy: str, **changes):
        config = text_config(
            name, classes, dataset={"datadir": f"{folder}/", "max_length": 10, **words},
            model={"hidden_size": 4, **words},
        )  # fmt: skip
        return made_private(config, strategy, tmp_path / "out", **changes)

    return make, folder


def write_treebank(folder):
    records = sentences(160)
    with (folder / "dictionary.txt").open("w") as phrases, (folder / "sentiment_labels.txt").open("w") as labels:
        labels.write("phrase ids|sentiment values\n")
        for number, (text, label) in enumerate(records):
            phrases.write(f"{text}|{number}\n")
            labels.write(f"{number}|{0.9 if label else 0.1}\n")
    for name, low, high in (("train", 0, 100), ("dev", 100, 130), ("test", 130, 160)):
        (folder / f"phrase_ids.{name}.txt").write_text("\n".join(map(str, range(low, high))) + "\n")


def write_trec(folder):
    for name, size in (("train", 100), ("valid", 30), ("test", 30)):
        lines = [f"{('DESC', 'NUM')[label]}:some {text} ?" for text, label in sentences(size, seed=size)]
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


def fake_hub(monkeypatch, **names):
    """Hugging Face's library with one made-up set."""
    asked = []

    def load_dataset(*address):
        asked.append(address)
        text, label = names.get("text", "text"), names.get("label", "label")
        sizes = {"train": 120, "validation": 30, "test": 30}
        return {part: [{text: s, label: y} for s, y in sentences(size)] for part, size in sizes.items()}

    library = types.ModuleType("datasets")
    library.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", library)
    return asked


@pytest.mark.parametrize("strategy", PRIVATE)
def test_sentences_train_privately(small_text, strategy, capsys):
    make, folder = small_text
    write_treebank(folder)
    trainer = trained(make("sst2", 2, strategy, privacy={"grad_sample_mode": "auto"}), aloud=True)
    assert trainer.plan.shape.n == 100
    assert 0 < trainer.spent().epsilon <= 8.0
    learning = {name for name, p in trainer.model.named_parameters() if p.requires_grad}
    assert learning == {"lstm.weight_ih_l0", "lstm.bias_ih_l0", "lstm.weight_hh_l0", "lstm.bias_hh_l0", "fc.weight",
                        "fc.bias"}  # fmt: skip
    said = capsys.readouterr().out
    assert "DPLSTM" in said
    assert "frozen" in said
    assert "10 words" in said


def test_vectors_stay_as_they_were_published(small_text, tmp_path):
    make, folder = small_text
    write_trec(folder)
    trainer = trained(make("trec6", 6, "FullDP", train_args={"num_epochs": 2}))
    published = [line.split()[1:] for line in (tmp_path / "glove" / "glove.6B.6d.txt").read_text().splitlines()]
    assert torch.equal(trainer.model.embedding.weight, torch.tensor(np.array(published, dtype=np.float32)))


@pytest.mark.parametrize(
    ("name", "classes", "keys"),
    [
        ("glue_sst2", 2, {"text": "sentence"}),
        ("hf_trec6", 6, {"label": "coarse_label"}),
        ("imdb", 2, {}),
        ("rotten_tomatoes", 2, {}),
        ("tweet_eval", 20, {}),
    ],
)
def test_sets_of_the_hub(small_text, monkeypatch, name, classes, keys):
    asked = fake_hub(monkeypatch, **keys)
    trainer = trained(small_text[0](name, classes, "RandomDP"))
    assert len(asked) == 1
    # RandomDP reads no V, so none is split off; GLUE's test set has no labels, and a tenth takes its place
    assert trainer.plan.shape.n == (108 if name == "glue_sst2" else 120)


def test_a_run_is_bound_to_its_split_of_the_sentences(small_text, monkeypatch):
    """Mutant: sentences without the rows that they are; on resuming, records of V could move into D."""
    from cords_dp.data.build import data_binding
    from cords_dp.data.padding import padded_splits
    from cords_dp.data.text_sets import build_text

    fake_hub(monkeypatch)
    config = small_text[0]("imdb", 2, "RandomDP")
    splits = [build_text(config["dataset"], np.random.default_rng(seed)) for seed in (0, 0, 1)]
    bindings = [data_binding(config, None, padded_splits(data, config)) for data in splits]
    assert bindings[0] == bindings[1] != bindings[2]


def test_sst5_has_five_classes_and_runs_without_privacy_too(small_text):
    make, folder = small_text
    write_treebank(folder)
    assert trained(make("sst5", 5, "RandomDP")).data.num_classes == 5
    config = make("sst5", 5, "GLISTER")
    del config["privacy"]
    assert trained(config).plan is None


def test_what_is_missing_is_named_before_anything_is_trained(small_text, monkeypatch):
    make, _ = small_text
    with pytest.raises(DatasetUnavailableError, match=r"sentiment_labels\.txt"):
        trained(make("sst2", 2, "RandomDP"))
    with pytest.raises(ConfigError, match=r"glove\.6B\.50d\.txt") as refusal:
        trained(make("sst2", 2, "RandomDP", dataset={"wordvec_dim": 50}))
    assert refusal.value.key == "dataset.weight_path"
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DatasetUnavailableError, match="pip install datasets"):
        trained(make("imdb", 2, "RandomDP"))


class OwnSentences(Dataset):
    """Sentences of different lengths; one of them has numbers that are no words."""

    def __init__(self, count, wrong=False):
        rng = np.random.default_rng(count)
        self.rows = [torch.from_numpy(rng.integers(0, len(WORDS), rng.integers(1, 15))) for _ in range(count)]
        self.labels = [int(row[0] > 5) for row in self.rows]
        if wrong:
            self.rows[3], self.labels[3] = torch.tensor([10**6, -7]), 99

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], self.labels[index]


@pytest.mark.parametrize("strategy", PRIVATE)
def test_sentences_of_the_user_s_own_and_bad_ones_among_them(small_text, strategy):
    make, _ = small_text
    config = make("my reviews", 2, strategy)
    parts = {"trainset": OwnSentences(100, wrong=True), "validset": OwnSentences(30, wrong=True)}
    assert trained(config, **parts, testset=OwnSentences(20), num_cls=2).spent().epsilon <= 8.0


# --- regression ------------------------------------------------------------------------------------------------------


def regression_parts(columns: int | None = None, spoilt: bool = False) -> dict:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(200, 5, generator=rng)
    y = x @ torch.tensor([1.0, -2.0, 0.0, 0.5, 0.0])
    if columns:
        y = y[:, None].repeat(1, columns)
    if spoilt:
        y[3], y[4], x[5] = math.nan, math.inf, math.nan
    sets = [TensorDataset(x[a:b], y[a:b]) for a, b in ((0, 140), (140, 170), (170, 200))]
    return {"trainset": sets[0], "validset": sets[1], "testset": sets[2], "num_cls": 1}


@pytest.mark.parametrize("strategy", ["FullDP", "RandomDP"])
@pytest.mark.parametrize("columns", [None, 1, 3])
def test_a_regression_trains_privately(tmp_path, strategy, columns):
    config = regression_config("my table", model={"numclasses": columns or 1})
    private = made_private(config, strategy, tmp_path, privacy={"grad_sample_mode": "auto"})
    trainer = trained(private, **regression_parts(columns))
    assert trainer.spent().epsilon <= 8.0
    assert trainer.history.last("tst_acc") is None  # CORDS shows 0
    assert trainer.history.last("tst_rmse") == pytest.approx(trainer.history.last("tst_loss") ** 0.5, rel=1e-4)
    assert 0 < trainer.history.last("tst_loss") < 20


def test_a_regression_learns(tmp_path):
    model = {"architecture": "RegressionNet", "input_dim": None, "numclasses": 10}  # as in CORDS' configs
    config = regression_config("my table", model=model, optimizer={"lr": 0.1})
    changes = {"train_args": {"num_epochs": 12}, "privacy": {"epsilon": 50.0}}
    trainer = trained(made_private(config, "FullDP", tmp_path, **changes), **regression_parts())
    losses = trainer.history.column("tst_loss")
    assert losses[-1] < 0.3 * losses[0]


def test_targets_that_are_not_finite_contribute_nothing(tmp_path):
    config = made_private(regression_config("my table"), "FullDP", tmp_path, train_args={"num_epochs": 3})
    trainer = trained(config, **regression_parts(spoilt=True))
    assert all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters())


def test_models_and_targets_that_do_not_fit_are_refused(tmp_path):
    config = made_private(regression_config("my table", model={"numclasses": 2}), "FullDP", tmp_path)
    with pytest.raises(ConfigError, match="1 numbers to predict"):
        trained(config, **regression_parts())
    parts = {**regression_parts(), "testset": regression_parts(3)["testset"]}
    with pytest.raises(DataError, match="same shape"):
        trained(made_private(regression_config("my table"), "FullDP", tmp_path), **parts)
    with pytest.raises(ConfigError, match="classes: CrossEntropyLoss"):
        trained(
            made_private(regression_config("digits", model={"numclasses": 10, "input_dim": 64}), "FullDP", tmp_path)
        )


def test_a_regression_goes_on_from_its_checkpoint(tmp_path):
    for load in (False, True):
        ckpt = {"is_save": True, "save_every": 1, "is_load": load}
        epochs = {"num_epochs": 2}
        config = made_private(regression_config("my table"), "FullDP", tmp_path, ckpt=ckpt, train_args=epochs)
        assert len(trained(config, **regression_parts()).history.rows) == 2


# --- images ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def tiny_images(tmp_path, monkeypatch):
    """Two of Tiny ImageNet's classes with a few made-up pictures, as its publishers lay them out."""
    from PIL import Image

    rng = np.random.default_rng(0)
    root = tmp_path / "tiny-imagenet-200"

    def draw(path, shade):
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(shade, shade + 100, (64, 64, 3) if shade else (64, 64)).astype(np.uint8)
        Image.fromarray(pixels).save(path, format="JPEG")  # some of its pictures are grey

    listed = []
    for name, shade in (("n01", 0), ("n02", 120)):
        for i in range(20):
            draw(root / "train" / name / "images" / f"{name}_{i}.JPEG", shade)
        for i in range(5):
            draw(root / "val" / "images" / f"val_{name}_{i}.JPEG", shade)
            listed.append(f"val_{name}_{i}.JPEG\t{name}\t0\t0\t62\t62")
    (root / "val" / "val_annotations.txt").write_text("\n".join(listed) + "\n")
    known = DATASETS["tinyimagenet"]
    monkeypatch.setitem(DATASETS, "tinyimagenet", DatasetInfo(40, 10, known.shape, 200, known.mean, known.std))
    return tmp_path


@pytest.mark.parametrize("strategy", ["RandomDP", "GLISTERDP"])
def test_tiny_imagenet_trains_privately(tiny_images, strategy):
    model = {"architecture": "TanhCNN", "numclasses": 200, "args": {"width": 8}}
    config = cords_config("tinyimagenet", dataset={"datadir": str(tiny_images)}, model=model)
    config = made_private(config, strategy, tiny_images / "out", dataloader={"batch_size": 8})
    trainer = trained(config)
    assert trainer.plan.shape.n == (36 if strategy == "GLISTERDP" else 40)  # only GLISTERDP reads a V
    assert trainer.spent().epsilon <= 8.0


def test_tiny_imagenet_as_cords_rearranges_it(tiny_images):
    from cords_dp.data.class_folders import read_tiny_imagenet

    info = DATASETS["tinyimagenet"]
    published = read_tiny_imagenet(tiny_images, info)
    folder = tiny_images / "tiny-imagenet-200" / "val"
    for path in list((folder / "images").iterdir()):
        (folder / path.name.split("_")[1]).mkdir(exist_ok=True)
        path.rename(folder / path.name.split("_")[1] / path.name)
    (folder / "val_annotations.txt").unlink()
    rearranged = read_tiny_imagenet(tiny_images, info)
    assert np.array_equal(published.x_test, rearranged.x_test)
    assert np.array_equal(published.y_test, rearranged.y_test)
    with pytest.raises(DatasetUnavailableError, match="tiny-imagenet-200"):
        read_tiny_imagenet(tiny_images / "nowhere", info)


def test_a_set_that_is_not_whole_is_refused(tiny_images, monkeypatch):
    """The plan goes by the published sizes."""
    known = DATASETS["tinyimagenet"]
    monkeypatch.setitem(DATASETS, "tinyimagenet", DatasetInfo(50, 10, known.shape, 200, known.mean, known.std))
    config = cords_config("tinyimagenet", dataset={"datadir": str(tiny_images)}, model={"numclasses": 200})
    with pytest.raises(DatasetUnavailableError, match="40 and 10 records"):
        trained(made_private(config, "RandomDP", tiny_images / "out", dataloader={"batch_size": 8}))


def test_cords_resnet_reads_images_of_64_pixels():
    from cords_dp.models.build import build_model, check_input
    from cords_dp.models.private import make_private_ready

    cfg = cords_config("tinyimagenet", model={"numclasses": 200})
    model, _ = make_private_ready(build_model(cfg, seed=0))
    check_input(model, torch.zeros(3, 64, 64))
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 200)
