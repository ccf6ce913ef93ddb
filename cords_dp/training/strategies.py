"""Strategies by name. ``dss_args.type`` is looked up here and nowhere else.

FullDP, RandomDP and GLISTERDP stand here; extensions (the rivals among them) and CORDS' own strategies are registered
once a name is asked for that is not known yet. A private strategy is known by name without CORDS, which its loader
needs: a plan asks for no more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from cords_dp.errors import ConfigError, MechanismError
from cords_dp.extensions import load_extensions

if TYPE_CHECKING:
    import numpy as np
    from dotmap import DotMap
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader, Dataset

    from cords_dp.planning import PrivacyPlan
    from cords_dp.selection.pool import Pool
    from cords_dp.selection.session import Selections


@dataclass(frozen=True)
class StrategyContext:
    """Everything a strategy may use.

    plan: None for a strategy that is not private. selections: of a private strategy that selects.
    coins: randomness for choices that do not look at the records.
    released_weights: a copy of the weights as they are now, or of their average where the mechanism asks for it.
    dss_args: a copy with CORDS' live objects (model, loss, …) in it; the config stays clean.
    """

    config: Mapping[str, Any]
    dss_args: DotMap
    trainset: Dataset
    validset: Dataset
    train_loader: DataLoader
    val_loader: DataLoader
    model: nn.Module
    criterion: nn.Module  # reduction="none"
    optimizer: Optimizer
    logger: logging.Logger
    coins: np.random.Generator
    released_weights: Callable[[], Mapping[str, Tensor]]
    plan: PrivacyPlan | None = None
    selections: Selections | None = None


class PoolSource(Protocol):
    """The object that a private strategy builds: it hands over a pool for each of its epochs, and never batches.

    ``state`` (public or released values only) and ``restore`` may be left out; a resumed run then builds anew.
    """

    def pool(self, epoch: int) -> Pool: ...


Builder = Callable[[StrategyContext], Any]


@dataclass(frozen=True)
class Strategy:
    """A name in ``dss_args.type`` and what stands behind it.

    private: trains by DP-SGD on Poisson batches and needs a plan.
    uses_all: the pool is all of D; otherwise k = fraction·n records.
    selects: reads D to choose the pool, by a mechanism that the plan pays for.
    mechanism: the one that it uses where the config names none.
    reads_validation: may read the V that its builder is handed. False: at most its mechanism does, which says so
        itself. Where neither reads V, its records are trained on.
    """

    name: str
    build: Builder
    private: bool = False
    uses_all: bool = False
    selects: bool = False
    mechanism: str | None = None
    reads_validation: bool = True


def register_strategy(
    name: str,
    build: Builder | None = None,
    *,
    private: bool = False,
    uses_all: bool = False,
    selects: bool = False,
    mechanism: str | None = None,
    reads_validation: bool = True,
    force: bool = False,
) -> Strategy:
    """Make ``dss_args.type = name`` use ``build(context)``, or without it GLISTERDP with the mechanism of that name.

    A private strategy's ``build`` returns a `Pool`, or an object whose ``pool(epoch)`` returns one: which records may
    be drawn, chosen without looking at the data, or by ``context.selections.select(weights)`` (``selects=True``), which
    charges for it. The package draws the batches: as many as were charged, at the charged rate. Any other strategy's
    ``build`` returns a loader of (x, y, weight) batches, as CORDS' loaders are.

    ``reads_validation=False`` promises that ``build`` does not read ``context.validset``. Unless a mechanism reads V,
    none is then split off: all records are trained on.

    Names are compared without case, ``-`` and ``_``. A name that is taken is refused unless ``force`` is given, and a
    name that promises privacy (it ends in "DP", or was private before) is never given to a strategy that is not.
    """
    if build is None:
        if mechanism is None:
            raise MechanismError(f"strategy {name!r} needs a function that builds it, or the name of a mechanism")
        build, private, selects, reads_validation = _glister_dp, True, True, False
    known = _find(name)
    if known is not None and not force:
        raise MechanismError(f"there is a strategy {known.name!r} already; pass force=True to replace it")
    if not private and (_promises_privacy(name) or (known is not None and known.private)):
        raise MechanismError(
            f"strategy {name!r} promises privacy by its name; register it with private=True, or under another name"
        )
    if selects and uses_all:
        raise MechanismError(f"strategy {name!r} cannot both select and use all records")
    strategy = Strategy(
        name,
        build,
        private=private,
        uses_all=uses_all,
        selects=selects,
        mechanism=mechanism,
        reads_validation=reads_validation,
    )
    _STRATEGIES[_key(name)] = strategy
    return strategy


def unregister_strategy(name: str) -> None:
    """Forget a strategy, for instance after a test."""
    _STRATEGIES.pop(_key(name), None)


def get_strategy(name: str | None) -> Strategy:
    strategy = _find(str(name))
    if strategy is None:
        raise ConfigError("dss_args.type", name, f"unknown strategy; known are {', '.join(strategy_names())}")
    return strategy


def strategy_names() -> list[str]:
    load_extensions()
    _register_those_of_cords()
    return sorted(s.name for s in _STRATEGIES.values())


def _find(name: str) -> Strategy | None:
    """Look for a name among ours, in extensions, and last in CORDS, which takes seconds to import."""
    if _key(name) not in _STRATEGIES:
        load_extensions()
    if _key(name) not in _STRATEGIES and not _promises_privacy(name):
        _register_those_of_cords()
    return _STRATEGIES.get(_key(name))


def _promises_privacy(name: str) -> bool:
    """Tell whether a name claims privacy; none of CORDS' own does."""
    return _key(name).endswith("dp")


def _key(name: str) -> str:
    return name.replace("-", "").replace("_", "").lower()


def _full_dp(c: StrategyContext) -> Pool:
    from cords_dp.selection.pool import Pool

    return Pool.everything(len(c.trainset)).as_own()  # type: ignore[arg-type]


def _random_dp(c: StrategyContext) -> Any:
    from cords_dp.training.private_strategies import RandomDPPools

    return RandomDPPools(c)


def _glister_dp(c: StrategyContext) -> Any:
    from cords_dp.training.private_strategies import GLISTERDPPools

    return GLISTERDPPools(c)


_STRATEGIES: dict[str, Strategy] = {
    _key(strategy.name): strategy
    for strategy in (
        Strategy("FullDP", _full_dp, private=True, uses_all=True, reads_validation=False),
        Strategy("RandomDP", _random_dp, private=True, reads_validation=False),
        Strategy("GLISTERDP", _glister_dp, private=True, selects=True, reads_validation=False),
    )
}
_with_those_of_cords = False


def _register_those_of_cords() -> None:
    global _with_those_of_cords
    if _with_those_of_cords:
        return
    _with_those_of_cords = True  # before: each name that is registered is looked up, which leads here again
    try:
        from cords_dp.training.cords_strategies import register_all

        register_all()
    except BaseException:
        _with_those_of_cords = False
        raise
