"""Broken configs by the hundred: each works, or ends in an error of ours that names the key, before data is read."""

from __future__ import annotations

import math

import pytest
from dotmap import DotMap
from faults.mutations import ALL_KEYS, ODD_VALUES, mutated, mutations
from hypothesis import given, settings
from hypothesis import strategies as st

from cords_dp.config import load_config
from cords_dp.config.presets import config_for
from cords_dp.errors import ConfigError, ConfigFileError, CordsDPError
from cords_dp.runs.jobs import grid_jobs
from cords_dp.training.resolve import resolve
from cords_dp.training.trainer import TrainClassifier

MECHANISMS = ("align", "match", "threshold", "top_k", "exponential")


def small_config(strategy: str = "GLISTERDP", mechanism: str | None = None, epochs: int = 1) -> dict:
    subset = {} if strategy in ("FullDP", "Full") else {"fraction": 0.3}
    changes = {
        "dss_args": {"select_every": 1, **subset, **({"mechanism": mechanism} if mechanism else {})},
        "train_args": {"num_epochs": epochs, "device": "cpu", "seed": 0, "print_every": 1},
        "dataloader": {"batch_size": 128},
        "ckpt": {"is_save": False},
    }
    if strategy.endswith("DP"):
        changes["privacy"] = {"epsilon": 3.0, "accountant": "rdp", "grad_sample_mode": "hooks"}
    return config_for("digits", strategy, **changes)


BASES = {
    **{mechanism: small_config("GLISTERDP", mechanism) for mechanism in MECHANISMS},
    **{strategy: small_config(strategy) for strategy in ("FullDP", "RandomDP", "Random", "Full")},
}


def refusal(cfg, **options) -> ConfigError | None:
    """The error that a config ends in; anything but one of ours is a failure."""
    try:
        resolve(cfg, **options)
    except ConfigError as error:
        return error
    return None


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("cords_dp.data.build.image_arrays", lambda *_: pytest.fail("data was read"))
    monkeypatch.setattr("cords_dp.data.build._digits", lambda *_: pytest.fail("data was read"))
    return tmp_path


@pytest.mark.parametrize("base", BASES)
@settings(max_examples=60)
@given(data=st.data())
def test_a_broken_config_works_or_names_its_key(no_data, base, data):
    what, cfg = data.draw(mutations(BASES[base]))
    for form in (cfg, DotMap(cfg)):
        error = refusal(form, plan=False)
        if error is not None:
            # a value may make another key of its section, or one that depends on it, the wrong one
            assert error.key.split(".")[0] in (what.split(".")[0], "dss_args", "privacy", "model", "config")
            assert error.key in str(error)
    assert list(no_data.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES)
def test_every_key_with_every_odd_value(no_data, base):
    """About 4,400 configs for each base, with the plan."""
    for section, key in ALL_KEYS:
        for value in ODD_VALUES:
            error = refusal(mutated(BASES[base], section, key, value))
            assert error is None or error.key in str(error)


@pytest.mark.slow
@pytest.mark.parametrize("base", ["match", "RandomDP", "FullDP"])
@settings(max_examples=60)
@given(data=st.data())
def test_a_broken_config_trains_or_is_refused(tmp_path_factory, base, data):
    folder = str(tmp_path_factory.mktemp("train"))
    _, cfg = data.draw(mutations(BASES[base]))
    try:
        resolve(cfg, plan=False)
        if cfg["train_args"]["num_epochs"] > 3 or cfg["dataset"].get("name") not in ("digits", "sklearn-digits"):
            return  # fine, and long; or real data
        cfg = {**cfg, "train_args": {**cfg["train_args"], "results_dir": folder}}
        trainer = TrainClassifier(DotMap({**cfg, "ckpt": {**cfg.get("ckpt", {}), "dir": folder}}))
        trainer.show_progress = False
        trainer.train()
    except CordsDPError:
        return
    assert trainer.model is not None


WILD = [
    ({"model": {"numclasses": 3}}, "model.numclasses"),
    ({"model": {"numclasses": 11}}, "model.numclasses"),
    ({"model": {"num_classes": 3}}, "model.num_classes"),
    ({"model": {"input_dim": 3}}, "model.input_dim"),
    ({"model": {"architecture": ["MnistNet"]}}, "model.architecture"),
    ({"model": {"architecture": {"name": "MnistNet"}}}, "model.architecture"),
    ({"model": {"args": 3}}, "model.args"),
    ({"optimizer": {"momentum": 5}}, "optimizer.momentum"),
    ({"optimizer": {"momentum": 1.0}}, "optimizer.momentum"),
    ({"optimizer": {"weight_decay": -1e-4}}, "optimizer.weight_decay"),
    ({"optimizer": {"nesterov": True, "momentum": 0}}, "optimizer.nesterov"),
    ({"optimizer": {"nesterov": "yes"}}, "optimizer.nesterov"),
    ({"optimizer": {"lr": 10**400}}, "optimizer.lr"),
    ({"optimizer": {"lr": "0.1"}}, "optimizer.lr"),
    ({"optimizer": {"lr1": "0.1", "lr2": 0.1, "lr3": 0.1}}, "optimizer.lr1"),
    ({"optimizer": {"lr1": 0.1}}, "optimizer.lr1"),
    ({"scheduler": {"type": "StepLR", "gamma": -1}}, "scheduler.gamma"),
    ({"scheduler": {"type": "StepLR", "gamma": math.nan}}, "scheduler.gamma"),
    ({"scheduler": {"type": "StepLR", "stepsize": 0}}, "scheduler.stepsize"),
    ({"scheduler": {"type": "multistep"}}, "scheduler.milestones"),
    ({"scheduler": {"type": "multistep", "milestones": 3}}, "scheduler.milestones"),
    ({"scheduler": {"type": "multistep", "milestones": [3, 1]}}, "scheduler.milestones"),
    ({"scheduler": {"type": "multistep", "milestones": ["a"]}}, "scheduler.milestones"),
    ({"scheduler": {"type": "cosine_annealing", "T_max": 0}}, "scheduler.T_max"),
    ({"train_args": {"print_args": ["foo"]}}, "train_args.print_args"),
    ({"train_args": {"print_args": "tst_acc"}}, "train_args.print_args"),
    ({"train_args": {"print_every": 0}}, "train_args.print_every"),
    ({"train_args": {"num_epochs": 10**12}}, "train_args.num_epochs"),
    ({"train_args": {"run": -1}}, "train_args.run"),
    ({"train_args": {"run": [1]}}, "train_args.run"),
    ({"train_args": {"results_dir": 3}}, "train_args.results_dir"),
    ({"train_args": {"results_dir": "/dev/null/results"}}, "train_args.results_dir"),
    ({"train_args": {"results_dir": "x" * 5000}}, "train_args.results_dir"),
    ({"train_args": {"device": 3}}, "train_args.device"),
    ({"train_args": {"device": ["cpu"]}}, "train_args.device"),
    ({"train_args": {"device": "meta"}}, "train_args.device"),
    ({"train_args": {"device": ""}}, "train_args.device"),
    ({"train_args": {"seed": 2**64}}, "train_args.seed"),
    ({"train_args": {"seed": "1"}}, "train_args.seed"),
    ({"ckpt": {"save_every": 0}}, "ckpt.save_every"),
    ({"ckpt": {"is_load": "no"}}, "ckpt.is_load"),
    ({"ckpt": {"dir": "/dev/null/x"}}, "ckpt.dir"),
    ({"dataset": {"validation_fraction": 0}}, "dataset.validation_fraction"),
    ({"dataset": {"validation_fraction": 1.5}}, "dataset.validation_fraction"),
    ({"dataset": {"validation_fraction": 1e-6}}, "dataset.validation_fraction"),
    ({"dataset": {"name": "../../etc"}}, "dataset.name"),
    ({"dataset": {"name": ["digits"]}}, "dataset.name"),
    ({"dataset": {"name": "mnist", "datadir": "/dev/null"}}, "dataset.datadir"),
    ({"dataset": {"name": "mnist", "datadir": None}}, "dataset.datadir"),
    ({"dataset": {"datadir": 3}}, "dataset.datadir"),
    ({"dataset": {"feature": "classimb", "classimb_ratio": 1.5}}, "dataset.classimb_ratio"),
    ({"dataset": {"feature": "classimb", "classimb_ratio": 0.01}}, "dataset.classimb_ratio"),
    ({"dataset": {"feature": "classimb", "classimb_ratio": "0.3"}}, "dataset.classimb_ratio"),
    ({"dataset": {"feature": "mildimb", "keep_range": (1.0, 0.5)}}, "dataset.keep_range"),
    ({"dataset": {"feature": "mildimb", "keep_range": 0.5}}, "dataset.keep_range"),
    ({"dataset": {"num_samples": 1}}, "dataset.num_samples"),
    ({"dataset": {"name": "digits", "num_samples": 1438}}, "dataset.num_samples"),
    ({"dataset": {"name": "imdb", "num_samples": 1438}}, "dataset.num_samples"),
    ({"dataset": {"class_separation": 0}}, "dataset.class_separation"),
    ({"dataloader": {"shuffle": "no"}}, "dataloader.shuffle"),
    ({"dataloader": {"batch_size": object()}}, "dataloader.batch_size"),
    ({"dataloader": {"collate_fn": "mine"}}, "dataloader.collate_fn"),
    ({"privacy": {"epsilon": 1e6}}, "privacy.epsilon"),
    ({"privacy": {"epsilon": 1e-300}}, "privacy.epsilon"),
    ({"privacy": {"epsilon": 10**400}}, "privacy.epsilon"),
    ({"privacy": {"max_grad_norm": 1e300}}, "privacy.max_grad_norm"),
    ({"privacy": {"augmentations": 2}}, "privacy.augmentations"),
    ({"dss_args": {"fraction": "0.3"}}, "dss_args.fraction"),
    ({"dss_args": {"select_every": 10**400}}, "dss_args.select_every"),
    ({"setting": "../x"}, "setting"),
    ({"is_reg": "no"}, "is_reg"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "key"), WILD, ids=[f"{i}-{key}" for i, (_, key) in enumerate(WILD)])
def test_seen_in_the_wild(no_data, make_config, changes, key):
    if key == "dataset.num_samples":
        changes["dataset"].setdefault("name", "synthetic")
    cfg = make_config("GLISTERDP", **{k: v for k, v in changes.items() if isinstance(v, dict)})
    cfg.update({k: v for k, v in changes.items() if not isinstance(v, dict)})
    if "numclasses" in cfg.model and "num_classes" in cfg.model:
        del cfg.model["numclasses"]
    with pytest.raises(ConfigError) as caught:
        resolve(cfg)
    assert caught.value.key == key
    assert list(no_data.iterdir()) == []


def test_what_a_dotmap_makes_up_is_not_a_value(make_config):
    """Reading a key that is not there puts an empty DotMap there."""
    cfg = make_config("GLISTERDP")
    assert not cfg.optimizer.lr1
    assert not cfg.dss_args.mechanism
    assert resolve(cfg, plan=False).mechanism == resolve(make_config("GLISTERDP"), plan=False).mechanism


def test_numpy_numbers_are_numbers(make_config):
    import numpy as np
    import yaml

    from cords_dp.config import to_plain

    cfg = make_config(privacy={"epsilon": np.float64(2.0)}, train_args={"num_epochs": np.int64(2)})
    run = resolve(cfg, plan=False)
    assert (run.privacy.epsilon, run.epochs) == (2.0, 2)
    assert yaml.safe_load(yaml.safe_dump(to_plain(cfg)))["privacy"]["epsilon"] == 2.0


@pytest.mark.parametrize("cfg", [None, 3, [], "config", [("a", 1)]])
def test_what_is_no_config_at_all(cfg):
    with pytest.raises(ConfigError, match="dict of sections"):
        resolve(cfg)


def test_an_error_message_stays_short_and_survives_a_broken_repr(make_config):
    class Bad:
        def __repr__(self):
            raise RuntimeError("no repr")

    with pytest.raises(ConfigError, match="<Bad>"):
        resolve(make_config(dataloader={"batch_size": Bad()}))
    with pytest.raises(ConfigError) as caught:
        resolve(make_config(dataloader={"batch_size": "x" * 10**6}))
    assert len(str(caught.value)) < 300


# --- files ---------------------------------------------------------------------------------------

BILLION_LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", "- 1\n- 2\n"),
        ("c.yml", "- 1\n"),
        ("c.yaml", "just text"),
        ("c.yaml", ""),
        ("c.yaml", "a: &a [*a]\n"),
        ("c.yaml", BILLION_LAUGHS),
        ("c.yaml", "a: !!python/tuple [1]\n"),
        ("c.py", "raise RuntimeError('boom')"),
        ("c.py", "import sys; sys.exit(3)"),
        ("c.py", "config = 3"),
        ("c.py", "config = [1]"),
        ("c.py", "import no_such_module_at_all"),
        ("c.py", "\0"),
    ],
)
def test_bad_config_files(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigFileError):
        load_config(path)


def test_a_config_that_prints_is_a_config(tmp_path, capsys):
    path = tmp_path / "c.py"
    path.write_text("print('hello')\nconfig = dict(setting='SL')")
    assert load_config(path).setting == "SL"
    assert capsys.readouterr().out == "hello\n"


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigFileError):
        load_config(path)


@pytest.mark.parametrize("section", [3, None, [1], "x"])
def test_a_grid_over_a_broken_config(section, make_config):
    cfg = make_config()
    cfg.train_args = section
    with pytest.raises(ConfigError, match="train_args"):
        grid_jobs(cfg, ["privacy.epsilon=1,2"], 1)


def test_a_grid_with_a_broken_seed(make_config):
    with pytest.raises(ConfigError, match=r"train_args\.seed"):
        grid_jobs(make_config(train_args={"seed": "x"}), [], 2)
