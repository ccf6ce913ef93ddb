"""The strategies that come with cords_dp: the private ones, and those of CORDS once one of them is asked for.

A private strategy is known by name without torch and CORDS, which its loader needs: a plan asks for no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cords_dp.registry import StrategyContext, register_later, register_strategy

if TYPE_CHECKING:
    from cords_dp.selection.pool import Pool


def _full_dp(c: StrategyContext) -> Pool:
    from cords_dp.selection.pool import Pool

    return Pool.everything(len(c.trainset)).as_own()  # type: ignore[arg-type]


def _random_dp(c: StrategyContext) -> Any:
    from cords_dp.dataloaders.private import RandomDPDataLoader

    return RandomDPDataLoader(c)


def _glister_dp(c: StrategyContext) -> Any:
    from cords_dp.dataloaders.private import GLISTERDPDataLoader

    return GLISTERDPDataLoader(c)


def _register_those_of_cords() -> None:
    from cords_dp.dataloaders.cords_loaders import register_all

    register_all()


register_strategy("FullDP", _full_dp, private=True, uses_all=True)
register_strategy("RandomDP", _random_dp, private=True)
register_strategy("GLISTERDP", _glister_dp, private=True, selects=True)
register_strategy("ClassWeightsDP", _glister_dp, private=True, selects=True, mechanism="class_weights")
register_strategy("GroupRatesDP", _glister_dp, private=True, selects=True, mechanism="group_rates")
register_later(_register_those_of_cords)
