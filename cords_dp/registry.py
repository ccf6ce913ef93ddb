"""Strategies by name. ``dss_args.type`` is looked up here and nowhere else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dotmap import DotMap
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from cords_dp.accounting import Ledger
from cords_dp.errors import ConfigError
from cords_dp.plan import PrivacyPlan
from cords_dp.seeding import Streams


@dataclass
class LoaderContext:
    """Everything a strategy may use to build its loader."""

    cfg: DotMap
    dss_args: DotMap  # a copy: live objects may go in, the config stays clean
    trainset: Dataset
    validset: Dataset
    train_loader: DataLoader
    val_loader: DataLoader
    model: nn.Module
    criterion: nn.Module  # reduction="none"
    optimizer: Optimizer
    logger: logging.Logger
    streams: Streams
    plan: PrivacyPlan | None = None
    ledger: Ledger | None = None


LoaderBuilder = Callable[[LoaderContext], Iterable[Any]]


@dataclass(frozen=True)
class Strategy:
    """A name in ``dss_args.type`` and what stands behind it.

    private: trains by DP-SGD on Poisson batches and needs a plan.
    whole: the pool is all of D; otherwise k = fraction·n records.
    selects: reads D to choose the pool, at a price that the plan calibrates.
    """

    name: str
    build: LoaderBuilder
    private: bool = False
    whole: bool = False
    selects: bool = False


_STRATEGIES: dict[str, Strategy] = {}


def register_strategy(
    name: str,
    build: LoaderBuilder,
    *,
    private: bool = False,
    whole: bool = False,
    selects: bool = False,
) -> Strategy:
    """Make ``dss_args.type = name`` use ``build(context)``, which returns a loader of (x, y, weight) batches.

    A private strategy's loader must follow ``context.plan``: Poisson batches in which no record comes with a higher
    probability than ``plan.shape.epochs[i].rate`` (never compute B/k yourself), the planned number of steps for each
    epoch, and a pool chosen without looking at the data (or by a mechanism that is charged to ``context.ledger``). With
    ``selects`` the plan pays for ``dss_args.mechanism``, ``match`` if none is named. Names are compared without case,
    ``-`` and ``_``.
    """
    strategy = Strategy(name, build, private=private, whole=whole, selects=selects)
    _STRATEGIES[_key(name)] = strategy
    return strategy


def get_strategy(name: str | None) -> Strategy:
    _load_builtin()
    strategy = _STRATEGIES.get(_key(str(name)))
    if strategy is None:
        raise ConfigError("dss_args.type", name, f"unknown strategy; known are {', '.join(strategy_names())}")
    return strategy


def strategy_names() -> list[str]:
    _load_builtin()
    return sorted(s.name for s in _STRATEGIES.values())


def _key(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def _load_builtin() -> None:
    """Importing it registers the built-in strategies; done late because it imports CORDS."""
    from cords_dp.dataloaders import builtin  # noqa: F401
