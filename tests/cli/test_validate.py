"""``validate``: all problems at once, each with its fix, and no data."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml
from conftest import REPOSITORY

from cords_dp.cli import main
from cords_dp.config import to_plain
from cords_dp.errors import ConfigError
from cords_dp.runs.validate import find_problems
from cords_dp.training.resolve import resolve

CONFIGS = REPOSITORY / "configs"


@pytest.fixture(autouse=True)
def no_data(monkeypatch):
    def refuse(*_, **__):
        pytest.fail("data was read")

    for name in ("_digits", "image_arrays", "shift_set"):
        monkeypatch.setattr(f"cords_dp.data.build.{name}", refuse)


def keys(findings):
    return [problem.key for problem in findings.problems]


@pytest.mark.parametrize("command", [["validate"], ["budget", "--config"], ["check"]])
def test_a_command_knows_the_mechanisms_in_a_process_of_its_own(command):
    """Here other tests have imported them; alone, a command ended with StopIteration."""
    arguments = [*command, str(CONFIGS / "glister_dp_digits.py")]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    run = subprocess.run(
        [sys.executable, "-m", "cords_dp", *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout


@pytest.mark.parametrize("path", sorted((CONFIGS).glob("*_digits.py")), ids=lambda path: path.stem)
def test_ready_made_configs_are_valid(path, capsys):
    assert main(["validate", str(path), "--set", "privacy.accountant=rdp"]) == 0
    printed = capsys.readouterr().out
    assert "no problem found" in printed
    assert "noise multiplier" in printed


def test_all_problems_are_listed_with_fixes(make_config, tmp_path, capsys):
    cfg = make_config(
        "GLISTERDPP",
        dss_args={"fraction": 1.7, "mechanizm": "align"},
        privacy={"epsilon": -2, "delta": 0.5, "clipp": 3},
        train_args={"num_epochs": 0},
        optimizer={"lr": "fast"},
        model={"architecture": "ResNet19"},
        dataset={"noise_kind": "x"},
        bananas={"a": 1},
    )
    expected = {
        "bananas", "dataset.noise_kind", "privacy.clipp", "optimizer.lr", "dss_args.fraction", "train_args.num_epochs",
        "dss_args.type", "dss_args.mechanizm", "model.architecture", "privacy.epsilon", "privacy.delta",
    }  # fmt: skip
    findings = find_problems(cfg)
    assert set(keys(findings)) == expected
    assert len(findings.problems) == len(expected)  # none twice
    assert all(problem.fix for problem in findings.problems)
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(to_plain(cfg)))
    assert main(["validate", str(path), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["valid"]
    assert {problem["key"] for problem in told["problems"]} == expected


@pytest.mark.parametrize(
    ("strategy", "changes", "key"),
    [
        ("RandomDP", {"dataloader": {"batch_size": 100_000}}, "dataloader.batch_size"),
        ("RandomDP", {"privacy": {"epsilon": 1e-4}}, "privacy.epsilon"),
        ("GLISTERDP", {"loss": {"type": "MeanSquaredLoss"}}, "loss.type"),
        ("GLISTERDP", {"dss_args": {"mechanism": "nothing"}}, "dss_args.mechanism"),
        ("RandomDP", {"model": {"args": {"width": 3}}}, "model.args.width"),
        ("RandomDP", {"dataset": {"name": "boston"}}, "dataset.name"),
        ("GLISTERDP", {"optimizer": {"type": "lbfgs"}}, "optimizer.type"),
    ],
)
def test_a_single_problem_is_told_alone(make_config, strategy, changes, key):
    assert keys(find_problems(make_config(strategy, **changes))) == [key]


def test_missing_sections_do_not_hide_others(make_config):
    cfg = make_config("RandomDP", privacy={"clip": 1})
    del cfg["optimizer"]
    assert set(keys(find_problems(cfg))) == {"optimizer", "privacy.clip"}


def test_a_model_that_cannot_be_private_is_found_from_shapes(make_config):
    from torch import nn

    from cords_dp.models.build import _BUILDERS, register_model

    class Counting(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Flatten(), nn.Linear(64, 10))
            self.register_buffer("seen", __import__("torch").zeros(1))

    register_model("Counting", lambda num_classes, input_shape: Counting())
    try:
        findings = find_problems(make_config("RandomDP", model={"architecture": "Counting"}, privacy={"clip": 1}))
    finally:
        _BUILDERS.pop("Counting")
    assert len(findings.problems) == 2
    assert any("buffer" in problem.fix for problem in findings.problems)


def test_sizes_that_a_config_does_not_tell(tmp_path, make_config, capsys):
    cfg = make_config("RandomDP", dataset={"classimb_ratio": 0.5, "feature": "classimb"})
    findings = find_problems(cfg)
    assert findings.valid
    assert any("--n" in note for note in findings.notes)
    assert find_problems(cfg, (1000, 100)).plan is not None
    assert keys(find_problems(cfg, (30, 5))) == ["dataloader.batch_size"]


def test_a_run_is_refused_once_for_all_problems(make_config):
    """`resolve`, which every way to run goes through, tells the same as ``validate``."""
    cfg = make_config("RandomDP", privacy={"epsilon": -2, "clipp": 3}, optimizer={"lr": "fast"})
    with pytest.raises(ConfigError, match=r"^3 problems:\n1\. ") as caught:
        resolve(cfg)
    assert {problem.key for problem in caught.value.problems} == set(keys(find_problems(cfg)))
    assert "did you mean 'clipping'" in str(caught.value)
