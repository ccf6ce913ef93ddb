"""Configs: CORDS' format, overrides, and an error for every bad input before data is read."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import yaml
from conftest import REPOSITORY

from cords_dp.config import apply_override, load_config, to_plain
from cords_dp.data.sources.table.schema import load_schema
from cords_dp.errors import ConfigError, ConfigFileError, UnsupportedModelError
from cords_dp.studies.adult import COLUMNS, SCHEMA
from cords_dp.studies.randhie import SCHEMA as RANDHIE
from cords_dp.training.resolve import resolve
from cords_dp.training.trainer import TrainClassifier

CONFIGS = sorted((REPOSITORY / "configs").rglob("*.py"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: str(p.relative_to(REPOSITORY / "configs")))
def test_every_shipped_config_is_valid_and_short(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # without any data; nothing is fetched to look at a config
    (tmp_path / "data").mkdir()
    for name in ("adult.csv", "adult-test.csv"):  # the example of a table of one's own has to be there
        (tmp_path / "data" / name).write_text(",".join(COLUMNS) + "\n")
    shutil.copy(SCHEMA, tmp_path / "data")
    known = load_schema(str(RANDHIE))
    names = [column.name for column in (*known.columns, known.target)]
    (tmp_path / "data" / "randhie.csv").write_text(",".join([*names, *known.ignore]) + "\n")
    shutil.copy(RANDHIE, tmp_path / "data")
    monkeypatch.setattr("cords_dp.studies.adult._wheel", pytest.fail)
    resolve(load_config(path, ["privacy.accountant=rdp"]))
    assert len(path.read_text().splitlines()) <= 40


def test_the_named_configs_are_there():
    names = {p.stem for p in CONFIGS}
    for strategy in ("glister_dp", "random_dp", "full_dp"):
        for dataset in ("cifar10", "mnist", "cifar100", "synthetic", "digits"):
            assert f"{strategy}_{dataset}" in names


@pytest.mark.parametrize("suffix", [".yaml", ".yml"])
def test_yaml_is_accepted(make_config, tmp_path, suffix):
    path = tmp_path / f"config{suffix}"
    path.write_text(yaml.safe_dump(to_plain(make_config("GLISTERDP"))))
    assert resolve(load_config(path)).strategy.name == "GLISTERDP"


CORDS_GLISTER_MNIST = """
config = dict(setting="SL", is_reg = False,
              dataset=dict(name="mnist", datadir="../data", feature="dss", type="image"),
              dataloader=dict(shuffle=True, batch_size=128, pin_memory=True),
              model=dict(architecture='MnistNet', type='pre-defined', numclasses=10),
              ckpt=dict(is_load=False, is_save=True, dir='results/', save_every=20),
              loss=dict(type='CrossEntropyLoss', use_sigmoid=False),
              optimizer=dict(type="sgd", momentum=0.9, lr=0.05, weight_decay=5e-4, nesterov=True),
              scheduler=dict(type="cosine_annealing", T_max=200),
              dss_args=dict(type="GLISTER", fraction=0.1, select_every=20, kappa=0, linear_layer=False,
                            selection_type='Supervised', collate_fn = None, greedy='Stochastic'),
              train_args=dict(num_epochs=200, device="cuda", print_every=10, run=1, results_dir='results/',
                              wandb=False, print_args=["trn_loss", "trn_acc", "val_loss", "tst_acc", "time"],
                              return_args=[]))
"""


@pytest.mark.parametrize("strategy", ["GLISTER", "RandomDP", "FullDP", "GLISTERDP"])
def test_a_cords_config_needs_one_word_and_a_privacy_section(tmp_path, strategy):
    path = tmp_path / "config_glister_mnist.py"
    path.write_text(CORDS_GLISTER_MNIST)
    overrides = [f"dss_args.type={strategy}", "train_args.num_epochs=2"]
    if strategy.endswith("DP"):
        overrides += ["privacy.epsilon=3.0", "privacy.accountant=rdp"]
    assert resolve(load_config(path, overrides)).strategy.name == strategy


def test_overrides_parse_python_values(make_config):
    cfg = make_config()
    for text in ("privacy.epsilon=inf", "dss_args.fraction=0.5", "optimizer.nesterov=true", "scheduler.type=none",
                 "train_args.print_args=['tst_acc']", "model.architecture=MnistNet"):  # fmt: skip
        apply_override(cfg, text)
    assert cfg.privacy.epsilon == math.inf
    assert (cfg.dss_args.fraction, cfg.optimizer.nesterov, cfg.scheduler.type) == (0.5, True, None)
    assert cfg.train_args.print_args == ["tst_acc"]
    assert cfg.model.architecture == "MnistNet"


BAD = [
    ({"privacy": {"epsilon": 0}}, "privacy.epsilon"),
    ({"privacy": {"epsilon": -1.0}}, "privacy.epsilon"),
    ({"privacy": {"epsilon": math.nan}}, "privacy.epsilon"),
    ({"privacy": {"epsilon": "three"}}, "privacy.epsilon"),
    ({"privacy": {"epsilon": True}}, "privacy.epsilon"),
    ({"privacy": {"delta": 0.0}}, "privacy.delta"),
    ({"privacy": {"delta": 1.0}}, "privacy.delta"),
    ({"privacy": {"delta": 0.01}}, "privacy.delta"),
    ({"privacy": {"split": 1.0}}, "privacy.split"),
    ({"privacy": {"max_grad_norm": math.inf}}, "privacy.max_grad_norm"),
    ({"privacy": {"selection_clip": 0}}, "privacy.selection_clip"),
    ({"privacy": {"poisson_sampling": False}}, "privacy.poisson_sampling"),
    ({"privacy": {"accountant": "gdp"}}, "privacy.accountant"),
    ({"privacy": {"composition": "advanced"}}, "privacy.composition"),
    ({"privacy": {"epsilom": 3.0}}, "privacy.epsilom"),
    ({"dss_args": {"fraction": 0}}, "dss_args.fraction"),
    ({"dss_args": {"fraction": 1.5}}, "dss_args.fraction"),
    ({"dss_args": {"fraction": math.nan}}, "dss_args.fraction"),
    ({"dss_args": {"type": "GLISTRDP"}}, "dss_args.type"),
    ({"dss_args": {"select_every": 0}}, "dss_args.select_every"),
    ({"dss_args": {"mechanism": "laplace"}}, "dss_args.mechanism"),
    ({"dss_args": {"greedy": "Lazy"}}, "dss_args.greedy"),
    ({"dss_args": {"compute_fraction": 0.5}}, "dss_args.compute_fraction"),
    ({"dss_args": {"mechanism": "exponential", "selection_type": "PerClass"}}, "dss_args.selection_type"),
    ({"dss_args": {"mechanism": "threshold", "selection_type": "PerBatch"}}, "dss_args.selection_type"),
    ({"dataloader": {"batch_size": 1300}}, "dataloader.batch_size"),
    ({"dataset": {"validation_fraction": 1.0}}, "dataset.validation_fraction"),
    ({"dataloader": {"batch_size": 0}}, "dataloader.batch_size"),
    ({"dataset": {"name": "imagenet"}}, "dataset.name"),
    ({"dataset": {"name": "adult"}}, "dataset.name"),
    ({"dataset": {"feature": "noise"}}, "dataset.feature"),
    ({"dataset": {"feature": "classimb"}}, "dataset.classimb_ratio"),
    ({"model": {"architecture": "NoSuchNet"}}, "model.architecture"),
    ({"optimizer": {"type": "lion"}}, "optimizer.type"),
    ({"optimizer": {"lr": -0.1}}, "optimizer.lr"),
    ({"scheduler": {"type": "plateau"}}, "scheduler.type"),
    ({"loss": {"type": "HingeLoss"}}, "loss.type"),
    ({"loss": {"type": "MeanSquaredLoss"}}, "loss.type"),
    ({"train_args": {"num_epochs": 0}}, "train_args.num_epochs"),
    ({"train_args": {"device": "quantum"}}, "train_args.device"),
    ({"train_args": {"seed": -1}}, "train_args.seed"),
    ({"train_arg": {"num_epochs": 3}}, "train_arg"),
]


@pytest.mark.parametrize(
    ("changes", "key"), BAD, ids=[f"{k}={next(iter(next(iter(c.values())).values()))}" for c, k in BAD]
)
def test_bad_input_names_the_key_and_reads_no_data(make_config, monkeypatch, changes, key):
    monkeypatch.setattr("cords_dp.data.build.image_arrays", lambda *_: pytest.fail("data was read"))
    monkeypatch.setattr("cords_dp.data.build._digits", lambda *_: pytest.fail("data was read"))
    with pytest.raises(ConfigError) as caught:
        resolve(make_config("GLISTERDP", **changes))
    assert caught.value.key == key
    assert key in str(caught.value)


def test_a_missing_budget_says_what_to_write(make_config):
    cfg = make_config()
    del cfg["privacy"]
    with pytest.raises(ConfigError, match=r"privacy=dict\(epsilon"):
        resolve(cfg)


def test_a_misspelt_key_is_guessed(make_config):
    with pytest.raises(ConfigError, match="did you mean 'epsilon'"):
        resolve(make_config(privacy={"epsilom": 3.0}))


def test_unsupported_modules_are_refused_with_the_reason(make_config):
    import torch
    from torch import nn

    from cords_dp.models.build import register_model

    class RunningMean(nn.Linear):
        """Keeps a statistic of the records it has seen."""

        def __init__(self, **_):
            super().__init__(64, 10)
            self.register_buffer("mean", torch.zeros(64))

    register_model("RunningMean", RunningMean)
    trainer = TrainClassifier(make_config(model={"architecture": "RunningMean"}))
    with pytest.raises(UnsupportedModelError, match="buffer 'mean'"):
        trainer.create_model(10)


@pytest.mark.parametrize(
    ("name", "text"),
    [("missing.py", None), ("c.json", "{}"), ("c.py", "x = 1"), ("c.py", "config = ("), ("c.yaml", "a: [")],
)
def test_bad_config_files(tmp_path: Path, name, text):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigFileError):
        load_config(path)


@pytest.mark.parametrize("text", ["privacy.epsilon", "=3", "no.such.section=3"])
def test_bad_overrides(make_config, text):
    with pytest.raises(ConfigError):
        apply_override(make_config(), text)


def test_a_budget_of_none_is_no_privacy_and_a_missing_one_is_refused():
    """None has to be written down: whoever forgets the key must not train without privacy."""
    config = load_config(REPOSITORY / "configs/full_dp_digits.py", ["privacy.epsilon=None"])
    run = resolve(config)
    assert run.plan(1000, 100).noiseless
    del config["privacy"]["epsilon"]
    with pytest.raises(ConfigError, match="a private strategy needs a budget"):
        resolve(config)
