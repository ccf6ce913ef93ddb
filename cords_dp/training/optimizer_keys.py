"""The optimizers and schedulers that CORDS' configs name, and which of their keys go together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cords_dp.config.settings import AUTO
from cords_dp.config.values import one_of
from cords_dp.errors import ConfigError

LAYER_RATES = ("lr1", "lr2", "lr3")
OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop")
SCHEDULERS = (
    None,
    "cosine_annealing",
    "cosine_annealing_WS",
    "cosine_annealing_step",
    "linear_decay",
    "StepLR",
    "multistep",
)


def check_optimizer(cfg: Mapping[str, Any]) -> None:
    """What the values of ``optimizer`` and ``scheduler`` mean together; each by itself is checked before."""
    section, schedule = cfg["optimizer"], cfg.get("scheduler") or {}
    one_of("optimizer.type", section.get("type"), OPTIMIZERS)
    if section.get("nesterov") and section["type"] == "sgd" and not section.get("momentum"):
        raise ConfigError("optimizer.nesterov", True, "is a kind of momentum: set optimizer.momentum, e.g. to 0.9")
    if section.get("lr_scale") is not None and section.get("lr") != AUTO:
        raise ConfigError(
            "optimizer.lr_scale", section["lr_scale"], "multiplies the planned rate: set optimizer.lr='auto'"
        )
    given = [lr for lr in LAYER_RATES if section.get(lr) is not None]
    if given and len(given) < len(LAYER_RATES):
        raise ConfigError(f"optimizer.{given[0]}", section[given[0]], "give lr1, lr2 and lr3, or none of them")
    kind = schedule_kind(schedule)
    if kind not in SCHEDULERS:
        known = ", ".join(str(s) for s in SCHEDULERS)
        raise ConfigError("scheduler.type", kind, f"must be one of {known} (a plateau rule would read private metrics)")
    if kind == "multistep" and not schedule.get("milestones"):
        raise ConfigError("scheduler.milestones", None, "multistep needs the epochs at which to lower the rate")
    sizes = [schedule[key] for key in ("stepsize", "step_size") if schedule.get(key) is not None]
    if len(set(sizes)) > 1:
        raise ConfigError("scheduler.step_size", schedule["step_size"], "contradicts scheduler.stepsize; give one")


def schedule_kind(schedule: Mapping[str, Any]) -> Any:
    kind = schedule.get("type")
    return None if kind in ("none", "None") else kind  # CORDS' regression configs write it so
