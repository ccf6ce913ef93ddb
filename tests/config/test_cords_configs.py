"""CORDS' configs with one word changed: accepted, or refused with the one true reason.

With a checkout of CORDS (imported, or named by CORDS_CHECKOUT) the list is what its configs/SL holds; a small table of
ours stands for it elsewhere.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from cords_style import CHECKOUT, cords_config, needs_checkout, regression_config, text_config
from dotmap import DotMap

from cords_dp.cli import main
from cords_dp.config import load_config
from cords_dp.errors import ConfigError, ConfigFileError
from cords_dp.runs.validate import STRATEGIES, config_files, conversion_text, convert
from cords_dp.training.resolve import resolve

FILES = config_files([CHECKOUT / "configs" / "SL"]) if CHECKOUT else []
REGRESSIONS = ("boston", "cadata", "lawschool")

TABLE = {
    "mnist": cords_config("mnist", model={"architecture": "MnistNet"}),
    "cifar10": cords_config("cifar10"),
    "cifar100": cords_config("cifar100", model={"numclasses": 100}),
    "tinyimagenet": cords_config("tinyimagenet", model={"numclasses": 200}),
    "per batch": cords_config("cifar10", dss_args={"type": "GradMatchPB", "selection_type": "PerBatch", "lam": 0}),
    "per gradient": cords_config("cifar10", dss_args={"selection_type": "PerClassPerGradient", "valid": False}),
    "per class": cords_config("cifar10", dss_args={"type": "CRAIG", "selection_type": "PerClass"}),
    "milo": cords_config("cifar10", dss_args={"type": "MILO", "kw": 0.1, "gc_ratio": 1 / 6, "temperature": 1,
                                              "global_order_file": "order.pkl", "submod_function": "fl"}),
    "sst2": text_config("sst2", 2),
    "sst2_facloc": text_config("sst2_facloc", 2, dataset={"ss_path": "f.pkl", "use_ss_if_exists": False}),
    "sst5": text_config("sst5", 5),
    "trec6": text_config("trec6", 6),
    "hf_trec6": text_config("hf_trec6", 6),
    "glue_sst2": text_config("glue_sst2", 2),
    "imdb": text_config("imdb", 2),
    "rotten_tomatoes": text_config("rotten_tomatoes", 2),
    "tweet_eval": text_config("tweet_eval", 20),
}  # fmt: skip


def swapped(config: dict, strategy: str) -> DotMap:
    cfg = DotMap(config)
    cfg.dss_args.type = strategy
    cfg.privacy = DotMap(epsilon=3.0)
    return cfg


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", TABLE)
def test_images_and_text_need_one_word(name, strategy):
    assert resolve(swapped(TABLE[name], strategy), plan=False).strategy.name == strategy


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", ["boston", "cadata", "LawSchool_selcon"])
def test_regression_sets_are_refused_for_their_own_reason_and_taken_from_the_user(name, strategy):
    """CORDS' tabular sets are scaled by statistics of private records; the user's own need not be."""
    config = regression_config(name, scheduler={"type": "None"})
    with pytest.raises(ConfigError) as refusal:
        resolve(swapped(config, strategy), plan=False)
    assert "tabular" not in str(refusal.value)
    if strategy == "GLISTERDP":
        assert "RandomDP or FullDP" in str(refusal.value)
    else:
        assert "train(trainset=" in str(refusal.value)
        assert resolve(swapped(config, strategy), own_data=True, plan=False).regression


@needs_checkout
@pytest.mark.parametrize("path", FILES or [None], ids=lambda path: path.stem if path else "none")
def test_every_config_of_a_checkout_is_accepted_or_refused_for_a_reason(path):
    regression = any(name in path.stem.lower() for name in REGRESSIONS)
    for verdict in convert([path]):
        assert bool(verdict.refusal) == regression, verdict
    for verdict in convert([path], STRATEGIES[:1], own_data=True):
        assert not verdict.refusal, verdict


@needs_checkout
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_nearly_all_of_a_checkout_can_be_made_private(strategy):
    verdicts = convert(FILES, [strategy])
    assert len(verdicts) >= 118
    assert sum(not v.refusal for v in verdicts) >= len(verdicts) - 6


def test_the_plan_of_every_image_set_can_be_made(tmp_path):
    for name, size in (("mnist", 54_000), ("tinyimagenet", 90_000)):
        cfg = swapped({**TABLE[name], "dataset": {**TABLE[name]["dataset"], "datadir": str(tmp_path)}}, "RandomDP")
        cfg.privacy.accountant, cfg.train_args.num_epochs = "rdp", 2
        cfg.train_args.results_dir = cfg.ckpt.dir = str(tmp_path)
        assert resolve(cfg).plan(size, size // 9).shape.n == size


def test_grouping_of_other_strategies_is_told_and_not_used():
    run = resolve(swapped(TABLE["per batch"], "GLISTERDP"), plan=False)
    assert run.mechanism.name == "align"
    assert run.mechanism.selection_type == "Supervised"
    assert "dss_args.selection_type" in run.unused
    cfg = swapped(TABLE["per batch"], "GLISTERDP")
    cfg.dss_args.mechanism = "threshold"  # named, a mechanism has to do what it is told
    with pytest.raises(ConfigError, match="PerBatch"):
        resolve(cfg, plan=False)


@pytest.mark.parametrize("kind", ["none", "None", None])
def test_a_scheduler_called_none_is_none(kind, make_config):
    from cords_dp.training.optim import build_scheduler

    assert build_scheduler({"scheduler": {"type": kind}}, None, epochs=1, steps=1) is None
    resolve(make_config("RandomDP", scheduler={"type": kind}), plan=False)


@pytest.mark.parametrize(
    ("setting", "words"), [("SSL", "semi-supervised"), ("hyperparamtuning", "subset_config"), ("RL", "must be one of")]
)
def test_other_settings_are_refused_before_their_sections_are_judged(setting, words):
    config = {**cords_config("cifar10"), "setting": setting, "ssl_args": {"alg": "vat"}}
    with pytest.raises(ConfigError, match=words) as refusal:
        resolve(DotMap(config))
    assert refusal.value.key == "setting"


def test_cords_old_name_of_the_setting_is_known():
    resolve(DotMap({**cords_config("cifar10"), "setting": "supervisedlearning"}), plan=False)


PARSES_ARGUMENTS = """
import argparse
from cords.utils.data.data_utils import generate_image_global_order

parser = argparse.ArgumentParser()
parser.add_argument("--dataset", default="mnist")
args = parser.parse_args()
config = dict(dataset=dict(name=args.dataset))
"""


def test_a_config_that_parses_the_command_line_sees_an_empty_one(tmp_path, monkeypatch):
    """As CORDS' configs for MILO do: what stands on our command line is not meant for them."""
    import sys

    from cords_dp import cords as toolkit

    path = tmp_path / "config_milo.py"
    path.write_text(PARSES_ARGUMENTS)
    arguments = ["run_experiment.py", "--config", str(path)]
    monkeypatch.setattr(sys, "argv", arguments)
    known = set(vars(toolkit.data_utils))
    assert load_config(path).dataset.name == "mnist"
    assert sys.argv is arguments
    assert set(vars(toolkit.data_utils)) == known


def test_the_command_counts_and_names_reasons(tmp_path, capsys):
    for name, config in (("a", TABLE["mnist"]), ("b", regression_config("boston"))):
        (tmp_path / f"{name}.py").write_text(f"config = {config!r}\n")
    (tmp_path / "__init__.py").write_text("")
    assert main(["check", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert text.count("1 of 2 accepted") == 3
    assert "withdrawn" in text
    assert main(["check", str(tmp_path / "nothing")]) != 0
    with pytest.raises(ConfigFileError):
        load_config(tmp_path / "nothing.py")
    assert conversion_text(convert([Path(tmp_path / "a.py")], ["FullDP"])) == "FullDP: 1 of 1 accepted"
