"""The epochs of a run: private ones by the plan, CORDS' own as CORDS takes them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from cords_dp.dataloaders import poisson_batches
from cords_dp.dataloaders.poisson import Batch
from cords_dp.datasets import places
from cords_dp.distributed import World
from cords_dp.errors import MechanismError
from cords_dp.planning import PrivacyPlan
from cords_dp.selection import Pool, checked_pool
from cords_dp.selection.pool import drawn_by_level
from cords_dp.training.checkpoint import Progress
from cords_dp.training.engine import PrivateEngine
from cords_dp.training.optim import branch_rate_factor, scale_learning_rate
from cords_dp.training.run import Run
from cords_dp.training.stepping import Engine
from cords_dp.training.steps import ChargedSteps


class PrivateEpochs:
    """DP-SGD by the plan.

    Formal guarantee: an epoch is charged before its first noise, its batches are drawn at the charged rate and there
    are exactly as many as were charged. A crash wastes budget and never regains it.
    """

    def __init__(
        self,
        run: Run,
        plan: PrivacyPlan,
        trainset: Dataset,
        progress: Progress,
        engine: Engine,
        steps: ChargedSteps,
        coins: np.random.Generator,
        world: World,
    ):
        self.run, self.plan, self.trainset, self.progress = run, plan, trainset, progress
        self.engine, self.steps, self.coins, self.world = engine, steps, coins, world
        self.selection_seconds = 0.0
        self._first_levels: Pool | None = None
        self._drawn: Pool | None = None  # of the whole set, as the strategy has handed it over last
        self._part: Pool | None = None  # what this process holds of rank 0's

    def train(self, epoch: int, after_step: Callable[[], None]) -> dict[str, float]:
        model, average = self.progress.model, self.progress.average
        model.train()
        for batch in self.batches(epoch):
            with self.steps.one() if not self.plan.noiseless else contextlib.nullcontext():
                self.engine.step(*(part.to(self.run.device) for part in batch))
            if average is not None:
                average.update(model)
            after_step()
        return {}

    def batches(self, epoch: int) -> Iterator[Batch]:
        """The batches of an epoch; it is charged when the first is asked for."""
        plan, planned = self.plan, self.plan.shape.epochs[epoch - 1]
        if not planned.steps:
            return
        pool = Pool.everything(len(self.trainset)).as_own() if planned.pool == "all" else self._pool(epoch)  # type: ignore[arg-type]
        rate = planned.rate
        if plan.branches and planned.branched:
            pool, rate = self._enter_branch(pool) if pool.levels is None else self._enter_levels(pool)
        if not plan.noiseless:
            self.steps.begin(plan, planned)
        yield from poisson_batches(self.trainset, pool, rate=rate, steps=planned.steps, rng=self.coins)

    def _pool(self, epoch: int) -> Pool:
        """What the strategy hands over for this epoch, checked: the pool of this process's records.

        All processes select together. A pool that no selection has made was drawn without looking at records: it is one
        of the whole set, and rank 0's counts.
        """
        start = time.perf_counter()
        pool = self.progress.source.pool(epoch)
        self.selection_seconds += time.perf_counter() - start
        if isinstance(pool, Pool) and pool.own:
            return checked_pool(pool, len(self.trainset), self.plan.branch_count)  # type: ignore[arg-type]
        return self._of_whole_set(checked_pool(pool, self.plan.shape.n, self.plan.branch_count))

    def _of_whole_set(self, pool: Pool) -> Pool:
        where = places(self.trainset)
        if where is None:
            return pool
        news = self.world.share(None if pool is self._drawn else pool)  # most strategies keep theirs for the whole run
        if news is not None:
            self._drawn, self._part = pool, news.among(where)
        assert self._part is not None
        return self._part

    def _enter_branch(self, pool: Pool) -> tuple[Pool, float]:
        """The rate of the branch that a release has chosen; noise and learning rate follow, once for the run."""
        plan, progress, chosen = self.plan, self.progress, pool.branch
        if progress.branch is None and self._first_levels is None:
            progress.branch = chosen
            if self.run.planned_learning_rate:
                scale_learning_rate(progress.optimizer, progress.scheduler, branch_rate_factor(plan, chosen))
        elif progress.branch != chosen:
            raise MechanismError("the steps that were charged together stay in the branch that was chosen first")
        assert isinstance(self.engine, PrivateEngine)
        self.engine.set_noise_multiplier(plan.branches[chosen].sigma)
        return pool, plan.branches[chosen].rate

    def _enter_levels(self, pool: Pool) -> tuple[Pool, float]:
        """Every record in a branch of its own, the same for all steps."""
        first = self._first_levels = pool if self._first_levels is None else self._first_levels
        assert first.levels is not None
        assert pool.levels is not None
        same = np.array_equal(first.indices, pool.indices) and np.array_equal(first.levels, pool.levels)
        if self.plan.shape.rounds > 1 or self.progress.branch is not None or not same:
            raise MechanismError("the steps that were charged together leave every record in its first branch")
        assert isinstance(self.engine, PrivateEngine)
        rates, sigmas = (np.array([getattr(b, name) for b in self.plan.branches]) for name in ("rate", "sigma"))
        self.engine.set_noise_multiplier(float(sigmas.min()))
        return drawn_by_level(pool, rates, sigmas), float(rates.max())


class CordsEpochs:
    """Epochs of a strategy that is not private, by CORDS' own step."""

    selection_seconds = 0.0  # CORDS' loaders select while they are asked for batches

    def __init__(self, run: Run, source: Any, engine: Engine):
        self.run, self.source, self.engine = run, source, engine

    def train(self, epoch: int, after_step: Callable[[], None]) -> dict[str, float]:
        self.engine.model.train()
        loss_sum, correct, seen = 0.0, 0, 0
        for batch in self.source:
            x, y, weights = (part.to(self.run.device) for part in batch)
            batch_loss, batch_correct = self._step(x, y, weights)
            loss_sum, correct, seen = loss_sum + batch_loss, correct + batch_correct, seen + len(y)
            after_step()
        return {"subtrn_loss": loss_sum, "subtrn_acc": correct / seen} if seen else {}

    def _step(self, x: Tensor, y: Tensor, weights: Tensor) -> tuple[float, int]:
        """A weighted mean over the batch, as CORDS' strategies expect. It couples records: never under DP-SGD."""
        engine, is_reg = self.engine, self.run.config["is_reg"]
        engine.optimizer.zero_grad()
        outputs = engine.model(x)
        losses = engine.criterion(outputs.view_as(y) if is_reg else outputs, y)
        loss = torch.dot(losses.reshape(-1), weights.to(losses) / weights.sum())
        loss.backward()
        engine.optimizer.step()
        correct = 0 if is_reg else int((outputs.argmax(dim=1) == y).sum())
        return float(loss.detach()), correct
