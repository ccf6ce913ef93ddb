"""The private strategies in CORDS' terms: its dataloaders, which hand over pools instead of batches.

The trainer asks for the pool of each epoch that it has charged, and draws the batches itself. Nothing about which
records are in the pool is logged or visible from outside.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from dotmap import DotMap

from cords_dp.errors import MechanismError
from cords_dp.registry import StrategyContext
from cords_dp.selection.glister import GLISTERDPStrategy
from cords_dp.selection.pool import Pool
from cords_dp.toolkit import GLISTERDataLoader, RandomDataLoader


class SilentLogger(logging.Logger):
    """Stands in for the run's logger inside CORDS' loaders, which log indices and sizes at debug level."""

    def __init__(self) -> None:
        super().__init__("cords_dp.silent", level=logging.CRITICAL + 1)
        self.disabled = True


class _HandsOverPools:
    """Holds CORDS' loaders back from sampling with numpy's global generator, from batches and from exact selections."""

    context: StrategyContext
    current: Pool

    def pool(self, epoch: int) -> Pool:
        return self.current

    def _init_subset_loader(self) -> None:
        """CORDS starts every strategy with a uniform subset: no data touched, no cost."""
        plan, coins = self.context.plan, self.context.coins
        assert plan is not None
        if plan.subset.secret_subset:  # one secret coin per record, as `plan.amplified` asks
            self.current = Pool(np.flatnonzero(coins.random(plan.shape.n) < plan.inclusion))
        else:
            self.current = Pool(coins.choice(plan.shape.n, size=plan.shape.k, replace=False))

    def _refuse(self, *_: Any) -> Any:
        raise MechanismError(
            f"{type(self).__name__} hands over pools; cords_dp.TrainClassifier draws the batches that were charged"
        )

    __iter__ = __len__ = resample = _refuse

    def __getattr__(self, item: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no attribute {item!r}")


class RandomDPDataLoader(_HandsOverPools, RandomDataLoader):
    """RandomDP: one uniform subset for the whole run, as CORDS' Random: of k records, or secret and of about k."""

    def __init__(self, context: StrategyContext):
        self.context = context
        RandomDataLoader.__init__(self, context.train_loader, DotMap(context.dss_args), SilentLogger())

    def state(self) -> dict[str, Any] | None:
        """The subset, which was drawn without looking at the data; no file may hold a secret one."""
        assert self.context.plan is not None
        if self.context.plan.subset.secret_subset:
            return None
        return {"subset": torch.from_numpy(self.current.indices.copy())}

    def restore(self, state: dict[str, Any]) -> None:
        self.current = Pool(state["subset"].numpy())


class GLISTERDPDataLoader(_HandsOverPools, GLISTERDataLoader):
    """GLISTERDP: a uniform subset until the first selection, then what the mechanism chooses."""

    strategy: Any

    def __init__(self, context: StrategyContext):
        assert context.selections is not None
        self.context, self.selections = context, context.selections
        GLISTERDataLoader.__init__(
            self, context.train_loader, context.val_loader, _glister_args(context), SilentLogger()
        )
        cords: Any = self.strategy  # what CORDS built, whose arguments are taken over
        self.strategy = GLISTERDPStrategy(
            context.train_loader,
            context.val_loader,
            cords.model,
            cords.loss,
            cords.eta,
            cords.device,
            cords.num_classes,
            cords.linear_layer,
            cords.selection_type,
            cords.greedy,
            SilentLogger(),
            selections=self.selections,
        )

    def pool(self, epoch: int) -> Pool:
        plan = self.context.plan
        assert plan is not None
        if plan.shape.epochs[epoch - 1].selects:
            self.context.logger.info("Epoch: %d, requires subset selection. ", epoch)
            self.current = self.selections.select(self.context.released_weights(), str(epoch))
        return self.current

    def state(self) -> dict[str, Any]:
        """Released values, or the uniform subset that a run starts with."""
        released = self.selections.state()
        return {"subset": torch.from_numpy(self.current.indices.copy())} if released is None else released

    def restore(self, state: dict[str, Any]) -> None:
        uniform = self.selections.plan.secret_pool and set(state) == {"subset"}
        self.current = Pool(state["subset"].numpy()) if uniform else self.selections.restore(state)


def _glister_args(context: StrategyContext) -> DotMap:
    """What CORDS' constructor asserts to be there; the mechanism has its own copies of these keys."""
    args = DotMap(context.dss_args)
    for key, value in {"greedy": "RGreedy", "r": 15, "linear_layer": False, "selection_type": "Supervised"}.items():
        args.setdefault(key, value)
    return args
