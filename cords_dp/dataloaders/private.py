"""The private dataloaders: CORDS' loaders with Poisson batches.

``iter(loader)`` is one epoch of the plan: a re-selection if one is due, then a fixed, public number of Poisson
batches of (x, y, weight). Nothing about which records are in the pool or are drawn, or how many fell into a batch, is
logged or visible from outside.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from dotmap import DotMap
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from cords_dp.accounting import Ledger
from cords_dp.dataloaders.poisson import Batch, poisson_batches
from cords_dp.distributed import current_world
from cords_dp.errors import MechanismError
from cords_dp.plan import EpochPlan, PrivacyPlan
from cords_dp.seeding import Streams
from cords_dp.selection import STRATEGIES
from cords_dp.toolkit import GLISTERDataLoader, RandomDataLoader


class SilentLogger(logging.Logger):
    """Stands in for the run's logger inside CORDS' loaders, which log indices and sizes at debug level."""

    def __init__(self) -> None:
        super().__init__("cords_dp.silent", level=logging.CRITICAL + 1)
        self.disabled = True


class PoissonEpochs:
    """What all private loaders share: epochs by the plan, batches from one secret generator."""

    plan: PrivacyPlan
    dataset: Dataset
    cur_epoch: int
    subset_indices: np.ndarray
    subset_weights: Tensor | None
    chances: np.ndarray | None = None  # of a record that a batch has drawn to stay in it
    selection_seconds: float = 0.0

    def _start(self, plan: PrivacyPlan, streams: Streams) -> None:
        self.plan = plan
        self.selection_seconds = 0.0
        self._batch_rng = streams.numpy("batches")

    @property
    def epoch_plan(self) -> EpochPlan:
        return self.plan.shape.epochs[min(self.cur_epoch, len(self.plan.shape.epochs)) - 1]

    def __iter__(self) -> Iterator[Batch]:
        epoch = self.epoch_plan
        if epoch.selects:
            start = time.perf_counter()
            self.resample()
            self.selection_seconds += time.perf_counter() - start
        self.cur_epoch += 1
        members, weights, chances = np.asarray(self.subset_indices), self.subset_weights, self.chances
        if epoch.pool == "all":
            members, weights, chances = np.arange(self.plan.shape.n), None, None
        return poisson_batches(
            self.dataset,
            members,
            rate=epoch.rate,
            steps=epoch.steps,
            rng=self._batch_rng,
            weights=weights,
            chances=chances,
            world=current_world(),
        )

    def __len__(self) -> int:
        """Steps of the coming epoch: a public constant of the plan."""
        return self.epoch_plan.steps

    def resample(self) -> None:
        raise MechanismError(f"{type(self).__name__} does not select, but the plan has a selection")


class FullDPDataLoader(PoissonEpochs):
    """FullDP: Poisson batches from all of D at rate B/n."""

    def __init__(self, train_loader: DataLoader, *, plan: PrivacyPlan, streams: Streams):
        self._start(plan, streams)
        self.dataset = train_loader.dataset
        self.cur_epoch = 1
        self.subset_indices, self.subset_weights = np.arange(plan.shape.n), None


class _CordsLoader(PoissonEpochs):
    """Holds CORDS' loaders back from sampling with numpy's global generator and from building torch loaders."""

    def _init_subset_loader(self) -> None:
        """CORDS starts every strategy with a uniform subset: no data touched, no cost."""
        size, total = self.budget, self.len_full  # type: ignore[attr-defined]
        rng: np.random.Generator = self._selection_rng  # type: ignore[attr-defined]
        if self.plan.selection.secret_subset:  # one secret coin a record, as `plan.amplified` asks
            self.subset_indices = np.flatnonzero(rng.random(total) < self.plan.inclusion)
        else:
            self.subset_indices = rng.choice(total, size=size, replace=False)
        self.subset_weights = torch.ones(len(self.subset_indices))

    def _refresh_subset_loader(self) -> None:
        """Nothing to rebuild: batches are drawn from ``subset_indices`` directly."""

    def __getattr__(self, item: str) -> Any:
        raise AttributeError(f"{type(self).__name__} has no attribute {item!r}")


class RandomDPDataLoader(_CordsLoader, RandomDataLoader):
    """RandomDP: one uniform subset for the whole run, as CORDS' Random: of k records, or secret and of about k."""

    def __init__(
        self,
        train_loader: DataLoader,
        dss_args: Mapping[str, Any],
        logger: logging.Logger,
        *,
        plan: PrivacyPlan,
        streams: Streams,
    ):
        self._start(plan, streams)
        self._selection_rng = streams.numpy("selection")
        RandomDataLoader.__init__(
            self, train_loader, DotMap(dss_args), SilentLogger(), batch_size=plan.shape.batch_size
        )


class GLISTERDPDataLoader(_CordsLoader, GLISTERDataLoader):
    """GLISTERDP: a uniform subset until the first selection, then what the strategy of its mechanism picks."""

    strategy: Any

    def __init__(
        self,
        train_loader: DataLoader,
        val_loader: DataLoader,
        dss_args: Mapping[str, Any],
        logger: logging.Logger,
        *,
        plan: PrivacyPlan,
        streams: Streams,
        ledger: Ledger,
    ):
        self._start(plan, streams)
        self._selection_rng = streams.numpy("selection")
        GLISTERDataLoader.__init__(
            self, train_loader, val_loader, DotMap(dss_args), SilentLogger(), batch_size=plan.shape.batch_size
        )
        cords = self.strategy  # what CORDS built, whose model copy and arguments are taken over
        self.strategy = STRATEGIES[plan.selection.mechanism](
            train_loader,
            val_loader,
            cords.model,
            cords.loss,
            cords.eta,
            cords.device,
            cords.num_classes,
            cords.linear_layer,
            cords.selection_type,
            cords.greedy,
            SilentLogger(),
            r=plan.selection.r,
            plan=plan,
            ledger=ledger,
            rng=self._selection_rng,
            validation_rng=streams.numpy("validation"),
        )
        self._run_logger = logger

    def resample(self) -> None:
        self._run_logger.info("Epoch: %d, requires subset selection. ", self.cur_epoch)
        with torch.no_grad():
            weights = {name: value.detach().clone() for name, value in self.train_model.state_dict().items()}
        self._set_pool(*self.strategy.select(self.budget, weights))

    def restore(self, state: dict[str, Any]) -> None:
        """The pool of a checkpoint, recomputed from released values."""
        self._set_pool(*self.strategy.members_from(state))

    def _set_pool(self, indices: Sequence[int], weights: Tensor) -> None:
        indices, weights, self.chances = current_world().share((indices, weights, self.strategy.chances))
        self.subset_indices, self.subset_weights = np.asarray(indices, dtype=np.int64), weights
