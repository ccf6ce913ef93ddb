"""From an estimator's parameters to the config that they amount to; it goes through the same checks as any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cords_dp.config import config_for, merge_into, thawed_copy
from cords_dp.config.settings import RECORDS_PER_OWNER
from cords_dp.errors import ConfigError
from cords_dp.estimators import records as kinds
from cords_dp.training.strategies import get_strategy

if TYPE_CHECKING:
    from cords_dp.estimators.estimator import PrivateEstimator

# Which section of a config a parameter stands in; it has the name that it has there.
SECTIONS = {
    "delta": "privacy",
    "account": "privacy",
    "max_grad_norm": "privacy",
    "validation": "privacy",
    "validation_fraction": "dataset",
    "fraction": "dss_args",
    "mechanism": "dss_args",
    "architecture": "model",
    "features": "model",
    "weights": "model",
    "num_epochs": "train_args",
    "device": "train_args",
    "batch_size": "dataloader",
    "lr": "optimizer",
}
_PRESETS = {kinds.TABLE: "table", kinds.VECTORS: "embeddings", kinds.IMAGES: "folder", kinds.TEXTS: "text"}


def config_of(estimator: PrivateEstimator, kind: str, *, owned: bool = False) -> dict[str, Any]:
    """Return the config of a fit on records of a kind; ``owned``: with owners of their records."""
    given = estimator.get_params(deep=False)
    bounded = kind == kinds.VECTORS and estimator.bounded
    changes: dict[str, dict[str, Any]] = {"privacy": {"epsilon": estimator.epsilon}, "model": {}}
    if owned:
        changes["privacy"]["records_per_owner"] = RECORDS_PER_OWNER
    for name, section in SECTIONS.items():
        if given[name] is not None:
            changes.setdefault(section, {})[name] = str(given[name]) if name == "account" else given[name]
    if bounded:
        own = {"data_norm": given["data_norm"], "bounds": _plain_bounds(given["bounds"])}
        changes["model"]["args"] = {name: value for name, value in own.items() if value is not None}
    if given["random_state"] is not None:
        changes.setdefault("train_args", {})["seed"] = _seed(given["random_state"])
    if estimator.regression:
        changes["loss"] = {"type": "MeanSquaredLoss"}
    elif not get_strategy(given["strategy"]).uses_all:
        changes.setdefault("dss_args", {}).setdefault("fraction", 1.0)
    config = config_for("table" if bounded else _PRESETS[kind], given["strategy"], **changes)
    merge_into(config, {"dataset": {"name": "custom", "type": None}, "model": {"feature_cache": False}})
    merge_into(config, thawed_copy(given["config"] or {}))
    if kind == kinds.TEXTS and config["model"].get("features") is None:
        fix = 'texts need frozen features: features="sentence:FOLDER" (docs/models.md)'
        raise ConfigError("features", None, fix)
    return config


def _plain_bounds(bounds: Any) -> list[Any] | None:
    return None if bounds is None else [np.asarray(end, dtype=np.float64).tolist() for end in bounds]


def _seed(random_state: Any) -> int:
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    return random_state
