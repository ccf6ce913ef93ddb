"""Reads search spaces: which keys of a config a tuning draws, and from which laws; makes the config of a trial of them.

Public, and drawn without any data.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from dotmap import DotMap

from cords_dp.config import thawed_copy
from cords_dp.config.keys import KEYS
from cords_dp.config.settings import PRIVATE, UNREAD
from cords_dp.config.values import suggest
from cords_dp.data.sources.base import VALIDATION_FRACTION
from cords_dp.errors import ConfigError
from cords_dp.training.resolve import resolve

_ADVICE = "write KEY=LAW with uniform(low, high), loguniform(low, high), randint(low, high) or choice(a, b, ...)"
# What else the config says is the same for all trials: the data and its split, the budget, where files go.
_SECTIONS = ("optimizer", "scheduler", "model", "dss_args")
_KEYS = frozenset(
    {
        "dataloader.batch_size", "train_args.num_epochs", "privacy.max_grad_norm", "privacy.clipping",
        "privacy.ema_decay", "privacy.split", "privacy.augmentations", "privacy.selection_clip",
        "privacy.validation_clip",
    }
)  # fmt: skip
_FIXED = ("dss_args.type", "dss_args.mechanism", "dss_args.secret_subset", "dss_args.publish_subset")


class Law(Protocol):
    """The law of one key's value. ``ends``: values at which it is tried out before anything starts."""

    def draw(self, rng: np.random.Generator) -> Any: ...
    def ends(self) -> Sequence[Any]: ...


@dataclass(frozen=True)
class OneOf:
    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        return self.values[int(rng.integers(len(self.values)))]

    def ends(self) -> Sequence[Any]:
        return self.values


@dataclass(frozen=True)
class Between:
    """Uniform in [low, high), or uniform in the logarithm."""

    low: float
    high: float
    log: bool = False

    def draw(self, rng: np.random.Generator) -> float:
        if self.log:
            return float(math.exp(rng.uniform(math.log(self.low), math.log(self.high))))
        return float(rng.uniform(self.low, self.high))

    def ends(self) -> Sequence[float]:
        return self.low, self.high


@dataclass(frozen=True)
class Whole:
    """A whole number of low … high − 1, as Ray and Python count."""

    low: int
    high: int

    def draw(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.low, self.high))

    def ends(self) -> Sequence[int]:
        return self.low, self.high - 1


@dataclass(frozen=True)
class Space:
    """Laws by key, such as ``{"optimizer.lr": Between(0.01, 1, log=True)}``."""

    laws: tuple[tuple[str, Law], ...]

    def draw(self, rng: np.random.Generator) -> dict[str, Any]:
        return {key: law.draw(rng) for key, law in self.laws}

    def ends(self) -> list[dict[str, Any]]:
        """Yield settings at the ends of each law, one key at a time."""
        return [{key: value} for key, law in self.laws for value in law.ends()]


def read_space(search: Mapping[str, Any] | Sequence[str]) -> Space:
    """Read ``["optimizer.lr=loguniform(0.01, 1)"]``, or a dict of keys to such texts, lists or Ray's domains."""
    pairs = list(search.items()) if isinstance(search, Mapping) else [_split(text) for text in search]
    if not pairs:
        raise ConfigError("--search", None, f"names no key to tune; {_ADVICE}")
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise ConfigError("--search", ", ".join(keys), "names a key twice")
    return Space(tuple((_checked_key(key), _law(key, law)) for key, law in pairs))


def _split(text: str) -> tuple[str, str]:
    key, sign, law = text.partition("=")
    if not sign:
        raise ConfigError("--search", text, _ADVICE)
    return key.strip(), law.strip()


def _checked_key(key: str) -> str:
    section, _, name = key.partition(".")
    if key in _FIXED or not (section in _SECTIONS or key in _KEYS):
        known = ", ".join([*(f"{s}.*" for s in _SECTIONS), *sorted(_KEYS)])
        raise ConfigError("--search", key, f"is the same for all trials; what may be tuned is {known}")
    if section != "dss_args" and name not in KEYS[section]:
        raise ConfigError("--search", key, suggest(name, KEYS[section]))
    return key


def _law(key: str, given: Any) -> Law:
    if isinstance(given, str):
        return _read(key, given)
    if isinstance(given, (list, tuple)):
        return _choice(key, given)
    if hasattr(given, "categories"):  # Ray's tune.choice
        return _choice(key, given.categories)
    if hasattr(given, "lower") and hasattr(given, "upper"):  # tune.uniform, loguniform, randint
        whole, log = type(given).__name__ == "Integer", "Log" in type(given.get_sampler()).__name__
        if (whole and log) or "Quantized" in type(given.get_sampler()).__name__:
            raise ConfigError(f"--search {key}", given, _ADVICE)
        return _numbers(key, "randint" if whole else "loguniform" if log else "uniform", (given.lower, given.upper))
    raise ConfigError(f"--search {key}", given, _ADVICE)


def _read(key: str, text: str) -> Law:
    """Read ``loguniform(1e-3, 1)``: a name and literals, and nothing that could be run."""
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.keywords:
            raise ValueError
        arguments = [ast.literal_eval(argument) for argument in call.args]
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ConfigError(f"--search {key}", text, _ADVICE) from None
    return _choice(key, arguments) if call.func.id == "choice" else _numbers(key, call.func.id, arguments)


def _choice(key: str, values: Sequence[Any]) -> OneOf:
    if not values:
        raise ConfigError(f"--search {key}", values, "a choice needs values")
    return OneOf(tuple(values))


def _numbers(key: str, name: str, ends: Sequence[Any]) -> Law:
    numbers = all(isinstance(end, (int, float)) and math.isfinite(end) for end in ends)
    if name not in ("uniform", "loguniform", "randint") or len(ends) != 2 or not numbers or not ends[0] < ends[1]:
        raise ConfigError(f"--search {key}", f"{name}{tuple(ends)}", _ADVICE)
    low, high = ends
    if name == "randint":
        if not (isinstance(low, int) and isinstance(high, int)):
            raise ConfigError(f"--search {key}", f"{name}{tuple(ends)}", "randint takes whole numbers")
        return Whole(low, high)
    if name == "loguniform" and low <= 0:
        raise ConfigError(f"--search {key}", f"{name}{tuple(ends)}", "loguniform takes numbers above 0")
    return Between(float(low), float(high), log=name == "loguniform")


def with_settings(config: Mapping[str, Any], settings: Mapping[str, Any]) -> DotMap:
    """Copy the config with these settings."""
    copy = thawed_copy(config)
    for name, value in settings.items():
        section, key = name.split(".", 1)
        copy[section] = {**(copy.get(section) or {}), key: value}
    return DotMap(copy)


# --- the config of a trial --------------------------------------------------------------------------------------------

# What would tell of a trial to others than the tuning, or charge it by itself.
_SILENCE = {
    "train_args.wandb": False,
    "train_args.tensorboard": False,
    "ckpt.is_save": False,
    "ckpt.is_load": False,
    "privacy.account": None,
}


# What decides a model's frozen features. Where trials draw it, cached features would tell who drew what.
_DECIDE_FEATURES = frozenset({"model.architecture", "model.features", "model.weights", "model.args"})


def keeping_validation(config: Mapping[str, Any]) -> DotMap:
    """Copy the config so that V is split off whatever the strategy reads: trials are scored on V, so none trains on it.

    A private test set is kept apart: each trial would release of it, and the choice depends on V alone.
    """
    run = resolve(with_settings(config, {}), plan=False)
    apart: dict[str, Any] = {"dataset.test": UNREAD} if run.test == PRIVATE else {}
    apart |= {"dataset.validation_fraction": VALIDATION_FRACTION} if run.whole else {}
    steps = {"privacy.train_on_validation": False, "privacy.head_start": 0}
    unseen = steps if run.mechanism is not None and run.mechanism.reads_validation else {}
    return with_settings(config, {**apart, **unseen})


def config_of_trial(config: Mapping[str, Any], settings: Mapping[str, Any]) -> DotMap:
    copy = keeping_validation(with_settings(config, {**settings, **_SILENCE}))
    if _DECIDE_FEATURES & settings.keys():
        copy.model.feature_cache = False
    copy.pop("report_tune", None)
    return copy
