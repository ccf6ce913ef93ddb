"""Builds the optimizers and schedulers that CORDS' configs name, and checks which of their keys go together.

Also averages the weights of noisy steps: post-processing, so it costs no privacy.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim import lr_scheduler as schedulers

from cords_dp.config.settings import AUTO
from cords_dp.errors import ConfigError
from cords_dp.planning import PrivacyPlan

if TYPE_CHECKING:
    from cords_dp.training.run import Run

_TARGET_NOISE = 0.1  # of a regression's output, where targets lie in [−1, 1]
_PROBABILITY_NOISE = 1.0  # of a classifier's logits, where clipping leaves its gradients much as they are
_RANK_NOISE = 2.5  # of its logits, where nearly every gradient is clipped
_HARDLY_KEPT = 0.25  # of the longest gradient


def planned_learning_rate(cfg: Mapping[str, Any], plan: PrivacyPlan, model: nn.Module) -> float:
    """Return the learning rate at which the noise of all steps adds up to a fixed amount in the model's outputs.

    T steps of noise σC/B move the weights by about η·σ·C·√T/(B·(1−μ)), and the outputs by that times the length of the
    last layer's input. Few or nearly noiseless steps thus get a large rate and many noisy ones a small one, but none at
    which steps swing up. Where a classifier gives probabilities (`_gives_probabilities`), the amount is 1 and the rate
    at most three quarters of the largest stable one, as a cross-entropy is curved by (length² + 1)/2 or less; both were
    chosen by `benchmarks/classifier_rates.py`. Where its outputs only rank the classes, the amount is 2.5, found on
    MNIST and CIFAR-10 (docs/results-earlier.md). That in the output of a regression, 0.1 where targets lie in [−1, 1],
    was chosen on made-up tables by `benchmarks/regression_rates.py`: over 216 settings and three seeds R² is 0.041
    below that of each setting's best rate on average, 0.010 in the median, and other amounts miss more on average; its
    rate is at most half of the largest stable one. Without noise only stability counts. ``optimizer.lr_scale``
    multiplies the rate.
    """
    section, length = cfg["optimizer"], getattr(model, "input_norm", None)
    if length is None:
        known = "LinearHead, MLPHead, ScatterLinear, or a model with an attribute input_norm"
        raise ConfigError("optimizer.lr", AUTO, f"works where the length of the model's inputs is known: {known}")
    if section["type"] != "sgd":
        raise ConfigError("optimizer.lr", AUTO, "is a rule for private sgd; give a number")
    length, momentum = float(length), section.get("momentum") or 0.0
    if plan.noiseless:
        return _noiseless_rate(cfg, length) * (section.get("lr_scale") or 1.0)
    amount, bound = _rule(cfg, section, plan, length)
    per_unit = plan.sigma * plan.privacy.max_grad_norm * math.sqrt(plan.shape.steps) * length
    planned = amount * plan.shape.batch_size * (1 - momentum) / per_unit
    return min(planned, bound) * (section.get("lr_scale") or 1.0)


def _rule(cfg: Mapping[str, Any], section: Mapping[str, Any], plan: PrivacyPlan, length: float) -> tuple[float, float]:
    """Return the noise in the outputs that steps may add up to, and the largest rate."""
    if cfg.get("is_reg"):
        return _TARGET_NOISE, 0.5 * _swinging_rate(section, _squared_error_curvature(plan, length))
    if _gives_probabilities(plan, length):
        return _PROBABILITY_NOISE, 0.75 * _swinging_rate(section, (length**2 + 1) / 2)
    return _RANK_NOISE, math.inf


def head_start_rate(run: Run, plan: PrivacyPlan, model: nn.Module, size: int) -> float:
    """Return the learning rate of first steps on so many of V: by the same rule, or the run's own number."""
    assert run.learning_rate is not None
    if not run.planned_learning_rate:
        return run.learning_rate
    section, length = {**run.config["optimizer"], "momentum": 0.0}, float(model.input_norm)  # type: ignore[arg-type]
    assert plan.sigma_head_start is not None
    amount, bound = _rule(run.config, section, plan, length)
    amount = min(amount, _PROBABILITY_NOISE)  # it stays in the weights, beside the noise of D's steps
    per_unit = plan.sigma_head_start * plan.privacy.max_grad_norm * math.sqrt(plan.head_start) * length
    return min(amount * size / per_unit, bound) * (section.get("lr_scale") or 1.0)


def _noiseless_rate(cfg: Mapping[str, Any], length: float) -> float:
    """Return the rate of a run without noise: three quarters of the largest stable one, of a regression half of it."""
    section, squared = cfg["optimizer"], length**2 + 1
    return (
        0.5 * _swinging_rate(section, 2 * squared) if cfg.get("is_reg") else 0.75 * _swinging_rate(section, squared / 2)
    )


def _gives_probabilities(plan: PrivacyPlan, length: float) -> bool:
    """Return whether clipping leaves enough of a cross-entropy's gradients for outputs to be probabilities.

    None is longer than √2·√(length² + 1). Where the clip norm keeps more than a quarter of that (tables), training is
    a logistic regression. Where nearly every gradient is clipped to one length (features of length √dim and a clip norm
    of 0.1), steps do not fade as predictions become right, outputs rank the classes, and accuracy is what counts.
    """
    longest = math.sqrt(2 * (length**2 + 1))
    return plan.privacy.clipping != "automatic" and plan.privacy.max_grad_norm > _HARDLY_KEPT * longest


def _squared_error_curvature(plan: PrivacyPlan, length: float) -> float:
    """Return how much a squared error is curved in the weights and the bias of the last layer.

    At most 2·(length² + 1). Where gradients are clipped to C, the loss rises no faster than C for every unit that the
    weights move, so that at errors of 0.1 (what the noise makes up anyway) it is at most C·√(length² + 1)/0.1.
    """
    squared = length**2 + 1
    clipped = plan.privacy.max_grad_norm * math.sqrt(squared) / _TARGET_NOISE
    return clipped if plan.privacy.clipping == "automatic" else min(2 * squared, clipped)


def _swinging_rate(section: Mapping[str, Any], curvature: float) -> float:
    """Return the rate beyond which steps with momentum μ swing up: 2·(1+μ)/λ, Nesterov's over 1 + 2μ."""
    momentum = section.get("momentum") or 0.0
    return 2 * (1 + momentum) / curvature / (1 + 2 * momentum if section.get("nesterov") else 1.0)


def branch_rate_factor(plan: PrivacyPlan, chosen: int) -> float:
    """Return the factor of a planned learning rate in a branch: the rule above, and c^(1/3).

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
    """Return CORDS' three learning rates for a ResNet's head, blocks and stem; one group for every other model.

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
) -> schedulers.LRScheduler | None:
    section = cfg.get("scheduler") or {}
    kind = schedule_kind(section)
    if kind is None:
        return None
    if kind == "cosine_annealing":
        return schedulers.CosineAnnealingLR(optimizer, T_max=section.get("T_max") or epochs)
    if kind == "cosine_annealing_WS":
        return schedulers.CosineAnnealingWarmRestarts(
            optimizer, T_0=section.get("T_0") or epochs, T_mult=section.get("T_mult") or 1
        )
    if kind == _BY_STEP:
        return schedulers.CosineAnnealingLR(optimizer, T_max=section.get("max_steps") or max(steps, 1))
    gamma = section.get("gamma") or 0.1
    if kind == "multistep":
        return schedulers.MultiStepLR(optimizer, milestones=list(section["milestones"]), gamma=gamma)
    size = section.get("stepsize") or section.get("step_size") or epochs
    return schedulers.StepLR(optimizer, step_size=size, gamma=gamma)


def advances_by_step(cfg: Mapping[str, Any]) -> bool:
    """Return whether the scheduler advances at every step instead of every epoch."""
    return schedule_kind(cfg.get("scheduler") or {}) == _BY_STEP


LAYER_RATES = ("lr1", "lr2", "lr3")
_BY_STEP = "cosine_annealing_step"
SCHEDULERS = (
    None,
    "cosine_annealing",
    "cosine_annealing_WS",
    _BY_STEP,
    "linear_decay",
    "StepLR",
    "multistep",
)


def check_optimizer(cfg: Mapping[str, Any]) -> None:
    """Check what the values of ``optimizer`` and ``scheduler`` mean together; each by itself is checked before."""
    section, schedule = cfg["optimizer"], cfg.get("scheduler") or {}
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


class WeightAverage:
    """An exponential moving average of a model's weights.

    The first steps count more (decay (1+t)/(10+t) until the final one is reached), so that the starting
    weights are soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay, self.steps = decay, 0
        self.model = copy.deepcopy(model)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        for mean, value in zip(self.model.parameters(), model.parameters(), strict=True):
            mean.lerp_(value, 1 - decay)
