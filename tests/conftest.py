"""Shared fixtures: small, real configs."""

from __future__ import annotations

import copy
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from dotmap import DotMap
from hypothesis import HealthCheck, settings

settings.register_profile(
    "cords_dp", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("cords_dp")

os.environ["CORDS_DP_CACHE"] = "off"  # no test may pass, or be quick, because of what another run left behind
os.environ["CORDS_DP_KEY"] = "off"  # nor write into the home of who runs it

REPOSITORY = Path(__file__).resolve().parent.parent

BROWSER = os.environ.get("CORDS_DP_BROWSER") or shutil.which("chromium") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no browser: install chromium, or name one in CORDS_DP_BROWSER"
)


@pytest.fixture
def make_config(tmp_path: Path):
    """A small config on scikit-learn's digits; sections are changed by keyword, e.g. ``privacy={"epsilon": 8}``."""
    from cords_dp.config.presets import config_for, merge_into

    def make(strategy: str = "RandomDP", data_name: str = "digits", **changes: dict[str, Any]) -> DotMap:
        config = config_for(
            data_name,
            strategy,
            dss_args={"fraction": 0.3, "select_every": 2},
            train_args={
                "num_epochs": 4,
                "print_every": 2,
                "device": "cpu",
                "seed": 0,
                "results_dir": str(tmp_path),
            },
            ckpt={"is_save": False, "dir": str(tmp_path)},
            # rdp answers at once; the accountants themselves have tests of their own
            privacy={
                "epsilon": 3.0,
                "accountant": "rdp",
                "grad_sample_mode": "hooks",
                "reproducible_noise": True,  # so that a test that passes once passes always
            },
        )
        if strategy == "FullDP":
            config["dss_args"].pop("fraction")
        merge_into(config, copy.deepcopy(changes))
        if config["train_args"]["seed"] is None:
            config["privacy"]["reproducible_noise"] = False
        return DotMap(config)

    return make


@pytest.fixture
def train(make_config):
    """Train a small config and return the trainer."""
    from cords_dp.training.trainer import TrainClassifier

    def run(strategy: str = "RandomDP", **changes: Any):
        data = changes.pop("data", {})
        trainer = TrainClassifier(make_config(strategy, **changes))
        trainer.show_progress = False
        trainer.train(**data)
        return trainer

    return run
