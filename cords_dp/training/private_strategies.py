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
from torch import Tensor

from cords_dp.cords import GLISTERDataLoader, GLISTERStrategy, RandomDataLoader
from cords_dp.errors import MechanismError
from cords_dp.selection.pool import Pool
from cords_dp.selection.session import Selections
from cords_dp.training.strategies import StrategyContext


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
        """Draw the uniform subset with which CORDS starts every strategy: no data touched, no cost."""
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


class RandomDPPools(_HandsOverPools, RandomDataLoader):
    """RandomDP: one uniform subset for the whole run, as CORDS' Random: of k records, or secret and of about k."""

    def __init__(self, context: StrategyContext):
        self.context = context
        RandomDataLoader.__init__(self, context.train_loader, DotMap(context.dss_args), SilentLogger())

    def state(self) -> dict[str, Any] | None:
        """Return the subset, which was drawn without looking at the data; no file may hold a secret one."""
        assert self.context.plan is not None
        if self.context.plan.subset.secret_subset:
            return None
        return {"subset": torch.from_numpy(self.current.indices.copy())}

    def restore(self, state: dict[str, Any]) -> None:
        self.current = Pool(state["subset"].numpy())


class GLISTERDPPools(_HandsOverPools, GLISTERDataLoader):
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
        """Return released values, or the uniform subset that a run starts with."""
        released = self.selections.state()
        return {"subset": torch.from_numpy(self.current.indices.copy())} if released is None else released

    def restore(self, state: dict[str, Any]) -> None:
        uniform = self.selections.plan.secret_pool and set(state) == {"subset"}
        self.current = Pool(state["subset"].numpy()) if uniform else self.selections.restore(state)


def _glister_args(context: StrategyContext) -> DotMap:
    """Fill in what CORDS' constructor asserts to be there; the mechanism has its own copies of these keys."""
    args = DotMap(context.dss_args)
    for key, value in {"greedy": "RGreedy", "r": 15, "linear_layer": False, "selection_type": "Supervised"}.items():
        args.setdefault(key, value)
    return args


class GLISTERDPStrategy(GLISTERStrategy):
    """CORDS' GLISTER strategy whose `select` returns the pool that the plan's mechanism chooses.

    CORDS' own steps (exact gradients, greedy picks) are closed: no selection can be reached that was not paid for.
    """

    def __init__(self, *args: Any, selections: Selections, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.selections = selections

    def select(self, budget: int, model_params: dict[str, Any]) -> tuple[list[int], Tensor]:
        """Select a pool; return its indices and weights. ``budget`` is CORDS' word for k."""
        if budget != self.selections.plan.shape.k:
            raise MechanismError(f"the plan pays for {self.selections.plan.shape.k} records, not {budget}")
        pool = self.selections.select(model_params)
        if pool.chances is not None:
            raise MechanismError("this mechanism draws records with chances of their own, which CORDS' loaders ignore")
        weights = torch.ones(len(pool)) if pool.weights is None else torch.from_numpy(pool.weights.copy()).float()
        return pool.indices.tolist(), weights

    def _closed(self, *_: Any, **__: Any) -> Any:
        raise MechanismError("CORDS' exact selection is not private; use select()")

    compute_gradients = eval_taylor_modular = greedy_algo = _update_grads_val = _closed
