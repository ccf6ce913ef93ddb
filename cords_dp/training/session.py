"""Holds what any run is, private or not: records, model, loss, optimizer, strategy, and what may be told of it.

    session.open(data, model, built=…)           takes the records and the model
    session.equip(loss, optimizer, scheduler)    builds the strategy and what takes steps
    session.train_epoch(epoch)                   all steps of an epoch, and of its scheduler
    session.close()

`CordsSession` is a run by a strategy of CORDS' own, `private_session.PrivateSession` a private one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from dotmap import DotMap
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from cords_dp.accounting import Ledger
from cords_dp.config import thawed_copy
from cords_dp.data.feature_cache import featured, threads_for
from cords_dp.data.handed_over import as_records
from cords_dp.data.record_set import Splits
from cords_dp.data.sources.base import Source, find_source
from cords_dp.errors import MechanismError
from cords_dp.evaluation.released import ReleasedTest
from cords_dp.noise.generators import Streams, seed_global_generators
from cords_dp.planning import PrivacyPlan
from cords_dp.processes import World
from cords_dp.selection.session import Selections
from cords_dp.training.optim import WeightAverage, advances_by_step
from cords_dp.training.run import Run
from cords_dp.training.strategies import StrategyContext


def _nothing() -> None:
    return None


class Session:
    """The state of any run, and the part of it that a checkpoint keeps.

    built: the records are the config's, and were not handed over. source: what the strategy has built; a loader of
    CORDS', or an object with ``pool(epoch)``. average: of the weights over the steps, where one is kept. data_files:
    what a private run's statement says of them (rank 0). rows_of_train: where D's records are in the file or the
    published set. fit: what was released of D before training. tested: of a private test set, when it ended.
    calibrated: the model to release, with what V alone decided when the run ended.
    """

    plan: PrivacyPlan | None = None
    selection_seconds = 0.0
    train_seconds = 0.0
    model: nn.Module
    loss: nn.Module
    optimizer: Optimizer
    scheduler: Any
    data: Splits
    built: bool
    source: Any
    average: WeightAverage | None = None
    data_files: Mapping[str, Any]
    fit: dict[str, Any] | None = None
    tested: ReleasedTest | None = None
    calibrated: nn.Module | None = None
    rows_of_train: np.ndarray | None

    def __init__(self, run: Run, *, world: World, logger: logging.Logger):
        self.run, self.world, self.logger = run, world, logger
        self.ledger = Ledger()  # in memory, and empty: nothing was charged

    # -- the course of a run ------------------------------------------------------------------------------

    def open(
        self, data: Splits, model: nn.Module, *, built: bool, features: bool = True, progress: bool = False
    ) -> None:
        """Take the records and the model.

        ``built``: the records are the config's, and were not handed over. ``features``: pass them through the model's
        fixed transform once, if it has one.
        """
        self.built, self.model = built, model
        self.rows_of_train = as_records(data.train).file_rows() if built else None
        data = self._made_ready(data)
        if features:
            shown = progress and self.world.main
            data = featured(data, model, self.run.config, device=self.run.device, progress=shown)
        self.data = data

    def _made_ready(self, data: Splits) -> Splits:
        """Bind the run to its records, seed the generators, and return the records as they are trained on."""
        if self.run.seed is not None:
            seed_global_generators(Streams(self.run.seed, reproducible=True), self.world.rank)
        return data

    def equip(self, loss: nn.Module, optimizer: Optimizer, scheduler: Any = None) -> None:
        """Take what trains: losses of single records, optimizer and scheduler; build the strategy."""
        self.loss, self.optimizer, self.scheduler = loss, optimizer, scheduler

    def train_epoch(self, epoch: int, after_step: Callable[[], None] = _nothing) -> dict[str, float]:
        """Take all steps of an epoch; return what was measured on the way, if anything may be."""
        start, selecting = time.perf_counter(), self.selection_seconds
        measured = self._take_steps(epoch, after_step)
        self._advance(by_step=False)
        self.train_seconds += time.perf_counter() - start - (self.selection_seconds - selecting)
        return measured

    def steps_in(self, epochs: int) -> int:
        """Return the number of steps in the first epochs."""
        raise NotImplementedError

    def threads(self) -> AbstractContextManager[None]:
        """Give the threads of this process to whoever makes the best use of them while steps are taken."""
        return threads_for(self.data.train)

    def calibrate(self) -> None:
        """Fit the temperature of the model that the run ends with, if it has one; once, after the last step."""

    def release_test(self) -> ReleasedTest | None:
        """Release the noisy counts of a private test set, once; None where there is none."""
        return None

    def _take_steps(self, epoch: int, after_step: Callable[[], None]) -> dict[str, float]:
        raise NotImplementedError

    def _advance(self, *, by_step: bool) -> None:
        """Advance the scheduler, if there is one and this is when it advances."""
        if self.scheduler is not None and advances_by_step(self.run.config) == by_step:
            self.scheduler.step()

    def close(self) -> None:
        self.ledger.close()

    @property
    def released(self) -> nn.Module:
        """The model that is evaluated and released: the average of the steps where one is kept, calibrated at last."""
        if self.calibrated is not None:
            return self.calibrated
        return self.model if self.average is None else self.average.model

    # -- checkpoints ------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds, under CORDS' keys: released and public values only."""
        state: dict[str, Any] = {
            "state_dict": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else None,
        }
        if self.average is not None:
            state["average"] = {"state_dict": self.average.model.state_dict(), "steps": self.average.steps}
        if self.calibrated is not None:  # for whoever loads the model; steps go on from the weights above
            state["calibrated"] = {"state_dict": self.calibrated.state_dict()}
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over a checkpoint."""
        self.model.load_state_dict(state["state_dict"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None and state.get("scheduler"):
            self.scheduler.load_state_dict(state["scheduler"])
        if self.average is not None and "average" in state:
            self.average.model.load_state_dict(state["average"]["state_dict"])
            self.average.steps = int(state["average"]["steps"])

    # -- the strategy -------------------------------------------------------------------------------------

    def _built_strategy(self, coins: np.random.Generator, selections: Selections | None) -> Any:
        run, data = self.run, self.data
        dss_args = DotMap(thawed_copy(run.config["dss_args"]))
        dss_args.update(
            model=self.model,
            loss=self.loss,
            eta=run.learning_rate,
            num_classes=data.num_classes,
            num_epochs=run.epochs,
            device=run.device,
        )
        if self.plan is None and run.config["dataset"].get("type"):
            dss_args.data_type = run.config["dataset"]["type"]
        context = StrategyContext(
            config=run.config,
            dss_args=dss_args,
            trainset=data.train,
            validset=data.validation,
            train_loader=self._in_order(data.train),
            val_loader=self._in_order(data.validation),
            model=self.model,
            criterion=self.loss,
            optimizer=self.optimizer,
            logger=self.logger,
            coins=coins,
            released_weights=self._released_weights,
            plan=self.plan,
            selections=selections,
        )
        return run.strategy.build(context)

    def _in_order(self, dataset: Dataset) -> DataLoader:
        collate = self.run.config["dataloader"].get("collate_fn") or None
        return DataLoader(dataset, batch_size=self.run.batch_size, shuffle=False, collate_fn=collate)

    def _released_weights(self) -> dict[str, Tensor]:
        """Copy the weights as they are now, or their average where the mechanism asks for it."""
        averaged = self.plan is not None and self.plan.mechanism is not None and self.plan.mechanism.uses_average
        model = self.released if averaged else self.model
        return {name: value.detach().clone() for name, value in model.state_dict().items()}

    # -- what may be told ---------------------------------------------------------------------------------

    @property
    def secret_pool(self) -> bool:
        return self.plan is not None and self.plan.secret_pool

    def shown_seconds(self, seconds: float | None = None) -> float:
        """Return seconds as they may be shown: whole ones where the pool is secret, since time follows its size."""
        seconds = self.train_seconds + self.selection_seconds if seconds is None else seconds
        return float(round(seconds)) if self.secret_pool else seconds

    def published_subset(self) -> list[int]:
        """Return the numbers in D of the last subset, if it was paid for or drawn without looking at data."""
        if self.plan is None or self.plan.secret_pool:
            raise MechanismError("the pool is secret state of the training mechanism and cannot be published")
        return [int(i) for i in self.source.current.indices]

    def _own_source(self) -> Source | None:
        """Return the source that has read the user's own records, if one has."""
        return find_source(self.run.config["dataset"].get("name")) if self.built else None

    def source_card(self) -> dict[str, Any] | None:
        """Return what a prediction needs to know about the user's own records; None for other data. Public values."""
        source = self._own_source()
        if source is None:
            return None
        card = source.card(self.run.config["dataset"])
        return card if self.fit is None else {**card, "fitted": self.fit}

    def in_unit(self, values: np.ndarray) -> np.ndarray:
        """Return a regression's targets or predictions in the target's own unit."""
        source, section = self._own_source(), self.run.config["dataset"]
        if source is None:  # what is handed over is in its unit already
            return np.asarray(values)
        return source.in_target_unit(source.card(section), values)


class CordsSession(Session):
    """A run by one of CORDS' own strategies. Not private."""

    def equip(self, loss: nn.Module, optimizer: Optimizer, scheduler: Any = None) -> None:
        super().equip(loss, optimizer, scheduler)
        streams = Streams(self.run.seed, reproducible=self.run.seed is not None)
        self.source = self._built_strategy(streams.numpy("coins"), None)

    def steps_in(self, epochs: int) -> int:
        return epochs * len(self.source)

    def _take_steps(self, epoch: int, after_step: Callable[[], None]) -> dict[str, float]:
        self.model.train()
        loss_sum, correct, seen = 0.0, 0, 0
        for batch in self.source:
            x, y, weights = (part.to(self.run.device) for part in batch)
            batch_loss, batch_correct = self._step(x, y, weights)
            loss_sum, correct, seen = loss_sum + batch_loss, correct + batch_correct, seen + len(y)
            self._advance(by_step=True)
            after_step()
        return {"subtrn_loss": loss_sum, "subtrn_acc": correct / seen} if seen else {}

    def _step(self, x: Tensor, y: Tensor, weights: Tensor) -> tuple[float, int]:
        """Take a step on the weighted mean over the batch, as CORDS' strategies expect.

        It couples records: never under DP-SGD.
        """
        self.optimizer.zero_grad()
        outputs = self.model(x)
        losses = self.loss(outputs.view_as(y) if self.run.regression else outputs, y)
        loss = torch.dot(losses.reshape(-1), weights.to(losses) / weights.sum())
        loss.backward()
        self.optimizer.step()
        correct = 0 if self.run.regression else int((outputs.argmax(dim=1) == y).sum())
        return float(loss.detach()), correct

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        if hasattr(self.source, "cur_epoch"):  # CORDS' loaders count epochs themselves
            self.source.cur_epoch = state["epoch"] + 1
