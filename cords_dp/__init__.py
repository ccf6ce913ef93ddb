"""cords_dp: differentially private training on data subsets, a plugin for CORDS.

The names below load on first use, because CORDS and torch take seconds to import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cords_dp.config import config_for, load_config
    from cords_dp.errors import CordsDPError
    from cords_dp.estimators.estimator import PrivateClassifier, PrivateRegressor
    from cords_dp.estimators.tuning import PrivateTuning
    from cords_dp.evaluation.threshold import choose_threshold
    from cords_dp.models.build import register_model
    from cords_dp.models.features import register_features
    from cords_dp.models.predict import load_model
    from cords_dp.planning import Mechanism, PrivacyPlan, Release, SelectionNoise, register_mechanism
    from cords_dp.runs.run import run_experiment
    from cords_dp.selection import Pool, register_score
    from cords_dp.training.loop import FullDPDataLoader, GLISTERDPDataLoader, RandomDPDataLoader
    from cords_dp.training.strategies import register_strategy
    from cords_dp.training.trainer import TrainClassifier
    from cords_dp.tuning.hpo import HyperParamTuning
    from cords_dp.tuning.tune import tune

__version__ = "0.2.0"
__all__ = [
    "CordsDPError",
    "FullDPDataLoader",
    "GLISTERDPDataLoader",
    "HyperParamTuning",
    "Mechanism",
    "Pool",
    "PrivacyPlan",
    "PrivateClassifier",
    "PrivateRegressor",
    "PrivateTuning",
    "RandomDPDataLoader",
    "Release",
    "SelectionNoise",
    "TrainClassifier",
    "choose_threshold",
    "config_for",
    "load_config",
    "load_model",
    "register_features",
    "register_mechanism",
    "register_model",
    "register_score",
    "register_strategy",
    "run_experiment",
    "tune",
]

_HOMES = {
    "CordsDPError": "cords_dp.errors",
    "FullDPDataLoader": "cords_dp.training.loop",
    "GLISTERDPDataLoader": "cords_dp.training.loop",
    "HyperParamTuning": "cords_dp.tuning.hpo",
    "Mechanism": "cords_dp.planning",
    "Pool": "cords_dp.selection",
    "PrivacyPlan": "cords_dp.planning",
    "PrivateClassifier": "cords_dp.estimators.estimator",
    "PrivateRegressor": "cords_dp.estimators.estimator",
    "PrivateTuning": "cords_dp.estimators.tuning",
    "RandomDPDataLoader": "cords_dp.training.loop",
    "Release": "cords_dp.planning",
    "SelectionNoise": "cords_dp.planning",
    "TrainClassifier": "cords_dp.training.trainer",
    "choose_threshold": "cords_dp.evaluation.threshold",
    "config_for": "cords_dp.config",
    "load_config": "cords_dp.config",
    "load_model": "cords_dp.models.predict",
    "register_features": "cords_dp.models.features",
    "register_mechanism": "cords_dp.planning",
    "register_model": "cords_dp.models.build",
    "register_score": "cords_dp.selection",
    "register_strategy": "cords_dp.training.strategies",
    "run_experiment": "cords_dp.runs.run",
    "tune": "cords_dp.tuning.tune",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'cords_dp' has no attribute {name!r}")
