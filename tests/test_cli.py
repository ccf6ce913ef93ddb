"""The command line, run as a user runs it, and the files that a run leaves."""

from __future__ import annotations

import json

import pandas as pd
import pytest
import torch
import yaml
from conftest import REPOSITORY

from cords_dp.cli import main, run_main
from cords_dp.config import to_plain

CONFIGS = REPOSITORY / "configs"
FAST = [
    "--set",
    "privacy.accountant=rdp",
    "--set",
    "train_args.num_epochs=4",
    "--set",
    "train_args.print_every=2",
]


@pytest.mark.parametrize("config", ["random_dp_digits", "full_dp_digits", "glister_dp_digits", "glister_dp_synthetic"])
def test_run_experiment_leaves_everything(config, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = [
        "--config",
        str(CONFIGS / f"{config}.py"),
        "--seed",
        "1",
        "--out",
        str(out),
        "--device",
        "cpu",
        *FAST,
    ]
    if config.startswith("glister"):
        arguments += ["--set", "dss_args.select_every=2"]
    assert run_main(arguments) == 0
    printed = capsys.readouterr()
    for words in ("test accuracy", "epsilon ", " of 3", "delta", "seconds", "training,", "selecting"):
        assert words in printed.out
    assert "step" not in printed.err  # a pipe gets no progress bar
    metrics = pd.read_csv(out / "metrics.csv")
    assert list(metrics.columns[:5]) == ["epoch", "accuracy", "loss", "seconds", "epsilon"]
    assert metrics["epoch"].tolist() == [2, 4]
    assert metrics["epsilon"].is_monotonic_increasing
    assert metrics["epsilon"].iloc[-1] <= 3.0
    assert yaml.safe_load((out / "config.yaml").read_text())["train_args"]["seed"] == 1
    report = json.loads((out / "privacy.json").read_text())
    assert report["epsilon"] <= 3.0
    assert "zero-out" in report["neighbouring_relation"]
    assert report["charged_so_far"]["epsilon"] == pytest.approx(report["epsilon"])
    text = (out / "privacy.md").read_text()
    assert "differentially private for zero-out of one record" in text
    assert report["private"]
    assert "NOT PRIVATE" not in text
    weights = torch.load(out / "model.pt", weights_only=True)
    assert set(weights) == {"linear.weight", "linear.bias"}
    assert list(out.rglob("*.log"))


def test_a_resolved_config_can_be_run_again(make_config, tmp_path):
    path = tmp_path / "again.yaml"
    path.write_text(yaml.safe_dump(to_plain(make_config("RandomDP"))))
    assert run_main(["--config", str(path), "--out", str(tmp_path / "out"), "--quiet", "--no-feature-cache"]) == 0
    assert yaml.safe_load((tmp_path / "out/config.yaml").read_text())["model"]["feature_cache"] is False


def test_resume_from_the_command_line(tmp_path, capsys):
    base = ["--config", str(CONFIGS / "random_dp_digits.py"), "--out", str(tmp_path), *FAST]
    base += ["--set", "ckpt.save_every=4", "--seed", "0"]
    assert run_main(base) == 0
    assert run_main([*base, "--resume"]) == 0
    assert "Loading saved checkpoint model at epoch: 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--set", "privacy.epsilon=0"], "privacy.epsilon"),
        (["--set", "privacy.epsilonn=1"], "did you mean"),
        (["--set", "dss_args.type=Magic"], "unknown strategy"),
        (["--set", "nonsense"], "section.key=value"),
    ],
)
def test_errors_are_one_line_and_exit_two(extra, words, capsys, tmp_path):
    assert run_main(["--config", str(CONFIGS / "random_dp_digits.py"), "--out", str(tmp_path), *extra]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert words in error
    assert len(error.strip().splitlines()) == 1


def test_a_missing_config_file(capsys):
    assert run_main(["--config", "no/such/file.py"]) == 2
    assert "no config file" in capsys.readouterr().err


def test_budget_explains_the_paper_s_negative_result(capsys):
    arguments = [
        "budget",
        "--config",
        str(CONFIGS / "paper" / "glister_dp_cifar10.py"),
        "--set",
        "privacy.accountant=rdp",
    ]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    for words in ("sigma = ", "sampling rate", "steps", "epsilon0 = 0.00", "training alone", "selection alone",
                  "total on D", "RandomDP (no selection)", "joint, frozen scores", "paper: basic"):  # fmt: skip
        assert words in text


@pytest.mark.parametrize("strategy", ["Full", "FullDP"])
def test_budget_of_other_strategies(make_config, tmp_path, strategy, capsys):
    path = tmp_path / "c.yaml"
    cfg = make_config(strategy)
    if strategy == "Full":
        del cfg["privacy"]
    path.write_text(yaml.safe_dump(to_plain(cfg)))
    assert main(["budget", "--config", str(path)]) == 0
    assert ("not private" if strategy == "Full" else "sigma = ") in capsys.readouterr().out


def test_gains_figure(tmp_path, capsys):
    arguments = [
        "gains",
        "--config",
        str(CONFIGS / "glister_dp_digits.py"),
        "--out",
        str(tmp_path),
        "--epochs",
        "1",
    ]
    assert main([*arguments, "--set", "privacy.accountant=rdp"]) == 0
    frame = pd.read_csv(tmp_path / "gains.csv")
    assert len(frame) == 1294
    probabilities = frame.drop(columns=["gain", "top_k"])
    assert probabilities.sum().tolist() == pytest.approx([1.0, 1.0])
    # the paper's pick is almost uniform; frozen scores tell records apart far better
    spread = probabilities.max() / probabilities.min() - 1
    assert spread.iloc[0] < 0.01
    assert spread.iloc[1] > 5 * spread.iloc[0]
    assert (tmp_path / "gains.png").stat().st_size > 10_000


def test_gains_of_private_records_need_the_flag(make_config, tmp_path, capsys):
    path = tmp_path / "c.yaml"
    cfg = make_config("GLISTERDP")
    cfg.dataset.name = "svhn"
    path.write_text(yaml.safe_dump(to_plain(cfg)))
    assert main(["gains", "--config", str(path), "--out", str(tmp_path)]) == 2
    assert "--not-private" in capsys.readouterr().err


@pytest.mark.slow
def test_demo(tmp_path, capsys):
    """Quiet: a line for each strategy, a table in which selection matters, a promise, and what to try next."""
    assert main(["demo", "--out", str(tmp_path), "--seed", "7"]) == 0
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    printed = capsys.readouterr()
    assert printed.err == ""
    assert len(printed.out.splitlines()) < 30
    assert printed.out.count(" s\n") == 4
    assert "differentially private for zero-out of one record" in " ".join(printed.out.split())
    assert "cords-dp budget" in printed.out
    accuracy = pd.read_csv(tmp_path / "demo.csv")["test accuracy"].str.rstrip(" %").astype(float)
    assert accuracy[2:].min() > accuracy[:2].max() + 20
