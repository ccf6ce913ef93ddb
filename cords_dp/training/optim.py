"""The optimizers and schedulers that CORDS' configs name, for every model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim import lr_scheduler as schedulers

from cords_dp.config.settings import AUTO
from cords_dp.errors import ConfigError
from cords_dp.planning import PrivacyPlan
from cords_dp.training.optimizer_keys import LAYER_RATES, schedule_kind

_LOGIT_NOISE = 2.5


def planned_learning_rate(cfg: Mapping[str, Any], plan: PrivacyPlan, model: nn.Module) -> float:
    """The learning rate at which the noise of all steps adds up to a fixed amount in the logits.

    T steps of noise σC/B move the weights by about η·σ·C·√T/(B·(1−μ)), and the logits by that times the length of the
    last layer's input. Few or nearly noiseless steps thus get a large rate and many noisy ones a small one. The amount,
    2.5, was found on MNIST and CIFAR-10 and serves every strategy alike (docs/results.md); ``optimizer.lr_scale``
    multiplies it.
    """
    section, length = cfg["optimizer"], getattr(model, "input_norm", None)
    if length is None:
        known = "LinearHead, MLPHead, ScatterLinear, or a model with an attribute input_norm"
        raise ConfigError("optimizer.lr", AUTO, f"works where the length of the model's inputs is known: {known}")
    if section["type"] != "sgd" or plan.noiseless or cfg.get("is_reg"):
        raise ConfigError("optimizer.lr", AUTO, "is a rule for classifiers and private sgd; give a number")
    per_unit = plan.sigma * plan.privacy.max_grad_norm * math.sqrt(plan.shape.steps) * float(length)
    planned = _LOGIT_NOISE * plan.shape.batch_size * (1 - (section.get("momentum") or 0.0)) / per_unit
    return planned * (section.get("lr_scale") or 1.0)


def branch_rate_factor(plan: PrivacyPlan, chosen: int) -> float:
    """What a planned learning rate is multiplied with in a branch: the rule above, and c^(1/3).

    A batch that was drawn for what the validation set asks for has a clearer direction than a uniform one.
    """
    if not plan.branches:
        return 1.0
    branch = plan.branches[chosen]
    return plan.sigma / branch.sigma * branch.concentration ** (1 / 3)


def scale_learning_rate(optimizer: Optimizer, scheduler: Any, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= factor
        if "initial_lr" in group:
            group["initial_lr"] *= factor
    if scheduler is not None:
        scheduler.base_lrs = [rate * factor for rate in scheduler.base_lrs]


def build_optimizer(cfg: Mapping[str, Any], model: nn.Module) -> Optimizer:
    section = cfg["optimizer"]
    lr, decay = section["lr"], section.get("weight_decay") or 0.0
    groups = _parameter_groups(section, model)
    if section["type"] == "sgd":
        momentum = section.get("momentum") or 0.0
        nesterov = bool(section.get("nesterov"))
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, weight_decay=decay, nesterov=nesterov)
    classes = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop}
    return classes[section["type"]](groups, lr=lr, weight_decay=decay)


def _parameter_groups(section: Mapping[str, Any], model: nn.Module) -> list[dict[str, Any]]:
    """CORDS' three learning rates for a ResNet's head, blocks and stem; one group for every other model.

    CORDS leaves out the parameters that it does not name; here they learn with ``optimizer.lr``.
    """
    layers = {
        "linear": "lr1",
        "layer4": "lr2",
        "layer3": "lr2",
        "layer2": "lr2",
        "layer1": "lr2",
        "conv1": "lr3",
    }
    named = all(section.get(lr) for lr in LAYER_RATES) and all(hasattr(model, m) for m in layers)
    if not named:
        return [{"params": list(model.parameters())}]
    groups = [{"params": list(getattr(model, m).parameters()), "lr": section[lr]} for m, lr in layers.items()]
    taken = {id(p) for group in groups for p in group["params"]}
    rest = [p for p in model.parameters() if id(p) not in taken]
    return groups + ([{"params": rest}] if rest else [])


def build_scheduler(
    cfg: Mapping[str, Any], optimizer: Optimizer, *, epochs: int, steps: int
) -> tuple[schedulers.LRScheduler | None, bool]:
    """The scheduler and whether it advances at every step instead of every epoch."""
    section = cfg.get("scheduler") or {}
    kind = schedule_kind(section)
    if kind is None:
        return None, False
    if kind == "cosine_annealing":
        return schedulers.CosineAnnealingLR(optimizer, T_max=section.get("T_max") or epochs), False
    if kind == "cosine_annealing_WS":
        return (
            schedulers.CosineAnnealingWarmRestarts(
                optimizer, T_0=section.get("T_0") or epochs, T_mult=section.get("T_mult") or 1
            ),
            False,
        )
    if kind == "cosine_annealing_step":
        return schedulers.CosineAnnealingLR(optimizer, T_max=section.get("max_steps") or max(steps, 1)), True
    gamma = section.get("gamma") or 0.1
    if kind == "multistep":
        return schedulers.MultiStepLR(optimizer, milestones=list(section["milestones"]), gamma=gamma), False
    size = section.get("stepsize") or section.get("step_size") or epochs
    return schedulers.StepLR(optimizer, step_size=size, gamma=gamma), False
