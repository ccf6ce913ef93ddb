"""Puts a private run together in one place: plan, ledger, streams, records, model, loss and optimizer.

`PrivateSession` is the only wiring of a private run. The trainer (CORDS' face), the loaders for loops, scikit-learn's
estimators and whatever else trains drive it through the same few calls:

    session = PrivateSession(run, plan, checkpoint=…)    reserves the plan in the account; no record is read
    session.open(data, model, built=…)                   opens the ledger on these records; features
    session.equip(loss, optimizer, scheduler)            builds the strategy and what takes steps
    session.train_epoch(epoch)                           charge, draw, clip, add noise, step; or for a loop
    session.batches(epoch), session.step(batch)          the same, one by one
    session.calibrate()                                  what V alone decides, after the last step
    session.close()                                      ledger closed, account settled
"""

from __future__ import annotations

import copy
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA
from cords_dp.data.build import data_binding
from cords_dp.data.digests import RecordDigests
from cords_dp.data.readable import limit_words
from cords_dp.data.record_set import RecordSet, Splits
from cords_dp.data.sources.base import find_source
from cords_dp.errors import MechanismError
from cords_dp.evaluation.released import ReleasedTest
from cords_dp.models.losses import LikelihoodLoss, labels_of, trusted
from cords_dp.noise.generators import noise_source, seed_global_generators
from cords_dp.planning import Cost, PrivacyPlan
from cords_dp.processes import World
from cords_dp.selection import Records, SelectionContext
from cords_dp.selection.pool import Pool, checked_pool, drawn_by_level
from cords_dp.selection.session import Selections
from cords_dp.training.engine import build_engine, made_up_batch
from cords_dp.training.gradients import refuse_mixing
from cords_dp.training.head_start import take_head_start
from cords_dp.training.opening import (
    bound_files,
    digests_of,
    drawn_streams,
    opened_ledger,
    own_part,
    refuse_foreign,
    refuse_unlike,
    refuse_what_needs_all_records,
    reserved,
    run_id,
)
from cords_dp.training.optim import WeightAverage, branch_rate_factor, scale_learning_rate
from cords_dp.training.poisson import Batch, joined, poisson_batches
from cords_dp.training.private_test import released_test
from cords_dp.training.released_once import released_fit
from cords_dp.training.run import Run
from cords_dp.training.session import Session
from cords_dp.training.step import ChargedSteps, PlainEngine, PrivateEngine
from cords_dp.training.temperature import divide_by_temperature


class PrivateSession(Session):
    """A private run.

    Formal guarantees
    -----------------
    Released, to everybody who gets the model: the weights after each step (a Poisson-subsampled Gaussian event each,
    sensitivity C, charged to D and, where V takes part, to V), and what the plan's releases list, charged to D or V.

    - The plan is reserved in the account before a record is read. The ledger is opened under that reservation and is
      bound to the plan and to the records.
    - An epoch is charged before its first noise, all its steps at once. Its batches are drawn at the charged rate, and
      there are exactly as many as were charged. Steps that are not taken stay charged.
    - The noise of a step is that of its charge: it is set anew in every epoch.
    - A crash wastes budget and never regains it.
    """

    plan: PrivacyPlan
    engine: PlainEngine | PrivateEngine

    def __init__(
        self,
        run: Run,
        plan: PrivacyPlan,
        *,
        checkpoint: Path | None = None,
        resumable: bool = True,
        world: World = World(),  # noqa: B008 - frozen
        logger: logging.Logger | None = None,
    ):
        """Reserve the plan; no record is read. ``checkpoint``: rank 0's, if any; the ledger lies beside it."""
        super().__init__(run, world=world, logger=logger or logging.getLogger("cords_dp"))
        self.plan, self.checkpoint, self.resumable = plan, checkpoint, resumable
        if world.size > 1:
            refuse_what_needs_all_records(run.mechanism)
        resume = run.resumes and checkpoint is not None
        self.name = run_id(checkpoint, plan, resume=resume) if checkpoint is not None else secrets.token_hex(8)
        self.reservation = reserved(plan, self.name) if world.main else None
        self.branch: int | None = None  # of the plan, once a release has chosen it
        self._digests: list[RecordDigests] = []
        self._twin: nn.Module | None = None
        self._first_levels: Pool | None = None
        self._given: object = None  # the pool of the whole set that the strategy has handed over last
        self._part: Pool | None = None  # what this process holds of rank 0's

    # -- beginning ----------------------------------------------------------------------------------------

    def _made_ready(self, data: Splits) -> Splits:
        if self.plan.pace:
            refuse_unlike(data)
        binding = data_binding(self.run.config, self.run.seed, data, built=self.built)
        part = own_part(self, data, binding)
        self.ledger = opened_ledger(self, binding)
        if self.world.main:
            self.data_files = bound_files(self)
        if not self.built:
            limit_words(part, self.model)
            self._digests = digests_of(self, part)
        self.streams = drawn_streams(self)
        seed_global_generators(self.streams, self.world.rank)
        self.world.copy_from_main(self.model.state_dict().values())
        return self._prepared(part)

    def keep_digests(self) -> None:
        """Write down which records were read so far, for their owner alone."""
        for digests in self._digests:
            digests.save()

    def _prepared(self, data: Splits) -> Splits:
        """Return the sets in the units of what is fitted on D, which is released once a run."""
        source = find_source(self.run.config["dataset"].get("name"))
        if self.plan.preparation is None or source is None:
            return data
        generator = self.streams.numpy("preparation")
        self.fit = released_fit(source, data, self.plan, self.ledger, generator, self.world)
        fit = self.fit
        return data.each(lambda records: records.with_handed_out(lambda dataset: source.prepared(dataset, fit)))

    # -- equipment ----------------------------------------------------------------------------------------

    def equip(
        self, loss: nn.Module, optimizer: Optimizer, scheduler: Any = None, *, stepped: nn.Module | None = None
    ) -> None:
        """Build the strategy and what takes steps. ``stepped``: a twin of the model, with its weights, to step on."""
        plan = self.plan
        super().equip(loss, optimizer, scheduler)
        self.training_loss = self._with_likelihood(loss)
        self._twin = copy.deepcopy(self.model) if plan.fits_temperature else None
        if plan.privacy.ema_decay:
            self.average = WeightAverage(self.model, plan.privacy.ema_decay)
        coins = self.streams.numpy("coins", rank=self.world.rank)  # each process tosses for its own records
        built = self._built_strategy(coins, self._selections(coins))
        self.source = built if hasattr(built, "pool") else _ConstantPool(built)
        self._coins = self.streams.numpy("batches", rank=self.world.rank)
        self._coins_of_v = self.streams.numpy("validation batches", rank=self.world.rank)
        noise = noise_source(self.streams.numpy("noise"), secure=plan.privacy.secure_noise)
        self.steps = ChargedSteps(self.ledger, noise)
        self.engine = build_engine(self, self.model if stepped is None else stepped)

    def _with_likelihood(self, loss: nn.Module) -> nn.Module:
        """Return the loss that steps minimise: the plain one can take over how D's labels came about."""
        plain = type(loss) is nn.CrossEntropyLoss and loss.weight is None and not loss.label_smoothing
        selects = self.plan.mechanism is not None
        return LikelihoodLoss(self.data.num_classes) if plain and selects else loss

    def _selections(self, coins: np.random.Generator) -> Selections | None:
        plan, data = self.plan, self.data
        if plan.mechanism is None:
            return None
        refuse_mixing(self.model, made_up_batch(self)[0])
        scoring = copy.deepcopy(self.model)  # weights are loaded into it; training continues with the model itself
        assert self.run.learning_rate is not None
        context = SelectionContext(
            plan=plan,
            training=self.records(data.train, scoring),
            validation=self.records(data.validation, scoring) if plan.validation_is_read else None,
            num_classes=data.num_classes,
            learning_rate=self.run.learning_rate,
            coins=coins,
        )
        streams = self.streams
        generators = {TRAINING_DATA: streams.numpy("selection"), VALIDATION_DATA: streams.numpy("validation")}
        folder = None if self.ledger.path is None else self.ledger.path.parent
        return Selections(context, ledger=self.ledger, generators=generators, folder=folder, world=self.world)

    def records(self, dataset: RecordSet, model: nn.Module) -> Records:
        """Return records as a selector sees them, through a model of its own."""
        return Records(dataset, model, self.loss, self.run.device)

    # -- epochs and steps -----------------------------------------------------------------------------------

    def steps_in(self, epochs: int) -> int:
        return sum(epoch.steps for epoch in self.plan.shape.epochs[:epochs])

    def calibrate(self) -> None:
        if self._twin is not None and self.calibrated is None:
            self._twin.load_state_dict(self.released.state_dict())
            divide_by_temperature(self, self._twin)
            self.calibrated = self._twin

    def release_test(self) -> ReleasedTest | None:
        if self.plan.sigma_test is not None:
            self.tested = released_test(self)
        return self.tested

    def _take_steps(self, epoch: int, after_step: Callable[[], None]) -> dict[str, float]:
        self.model.train()
        for batch in self.batches(epoch):
            self.step(batch)
            after_step()
        self.keep_digests()
        return {}

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Draw the batches of an epoch, from 1 on; it is charged when the first is asked for."""
        plan, planned, held = self.plan, self.plan.shape.epochs[epoch - 1], len(self.data.train)  # type: ignore[arg-type]
        if epoch == 1:
            self._begin_on_validation()
        if not planned.steps:
            return
        pool = Pool.everything(held).as_own() if planned.pool == "all" else self.pool(epoch)
        rate, sigma = planned.rate, plan.sigma
        if plan.branches and planned.branched:
            pool, rate, sigma = self._branch(pool) if pool.levels is None else self._levels(pool)
        if isinstance(self.engine, PrivateEngine):
            self.engine.set_noise_multiplier(sigma)  # a branch before it may have left other noise behind
            self.steps.begin(plan, planned)
        batches = self.drawn(self._take_likelihood(pool), rate=rate, steps=planned.steps)
        if VALIDATION_DATA in plan.paces:
            if plan.branches and planned.branched:  # of records in several branches the noise is that of the slowest
                rate = min(b.rate for b in plan.branches if b.sigma == sigma)
            of_v = self._drawn_of_v(plan.paces[VALIDATION_DATA] * rate, planned.steps)
            batches = map(self._with_validation, batches, of_v)
        yield from batches

    def _drawn_of_v(self, rate: float, steps: int) -> Iterator[Batch]:
        """Draw batches of V's records, all of which take part alike, by coins that nothing else uses."""
        v, cap = self.data.validation, self.plan.privacy.records_per_owner
        everyone = Pool.everything(len(v)).as_own()
        return poisson_batches(v, everyone, rate=rate, steps=steps, rng=self._coins_of_v, records_per_owner=cap)

    def _with_validation(self, of_d: Batch, of_v: Batch) -> Batch:
        """Join what was drawn of D and of V to one batch. V's labels are right, and its owners are others than D's."""
        x, y, weights, *owners = of_v
        y = trusted(y, self.data.num_classes) if isinstance(self.training_loss, LikelihoodLoss) else y
        if self.data.train.owners is not None:
            return joined(of_d, (x, y, weights, owners[0] + self.data.train.owners.count))
        return joined(of_d, (x, y, weights))

    def _begin_on_validation(self) -> None:
        if self.plan.sigma_head_start is None:
            return
        take_head_start(self)
        if self.average is not None:
            self.average = WeightAverage(self.model, self.plan.privacy.ema_decay)

    def drawn(self, pool: Pool, *, rate: float, steps: int) -> Iterator[Batch]:
        """Draw batches from a pool of D, by coins that nothing else uses."""
        cap = self.plan.privacy.records_per_owner
        return poisson_batches(self.data.train, pool, rate=rate, steps=steps, rng=self._coins, records_per_owner=cap)

    def _take_likelihood(self, pool: Pool) -> Pool:
        """Let the loss of this epoch be that of the pool; a loss of the user's own is left as it is."""
        loss, given = self.training_loss, pool.likelihood
        if not isinstance(loss, LikelihoodLoss):
            return replace(pool, likelihood=None, predicted=None)
        tables = (None, None) if given is None else (torch.tensor(given.given), torch.tensor(given.drawn))
        loss.use(*tables)
        return pool

    def labels_in(self, batch: Batch) -> Tensor:
        """Return the labels of a batch, whose targets may say more than these."""
        return (
            labels_of(batch[1], self.data.num_classes) if isinstance(self.training_loss, LikelihoodLoss) else batch[1]
        )

    def step(self, batch: Batch) -> None:
        """Take one of the steps that were charged, on a batch as it was drawn."""
        with nullcontext() if self.plan.noiseless else self.steps.one():
            self.engine.step(*(part.to(self.run.device) for part in batch))
        if self.average is not None:
            self.average.update(self.model)
        self._advance(by_step=True)

    def pool(self, epoch: int) -> Pool:
        """Return what the strategy hands over for an epoch, checked: the pool of this process's records.

        All processes select together. A pool that no selection has made was drawn without looking at records: it is
        one of the whole set, and rank 0's counts.
        """
        start = time.perf_counter()
        given = self.source.pool(epoch)
        self.selection_seconds += time.perf_counter() - start
        own = isinstance(given, Pool) and given.own
        n = len(self.data.train) if own else self.plan.shape.n
        pool = checked_pool(given, n, self.plan.branch_count)
        owners, where = self.data.train.owners, None if own else self.data.train.places
        if where is None:
            return pool if own or owners is None else pool.of_owners(owners.codes)
        news = self.world.share(None if given is self._given else pool)  # most strategies keep theirs for the whole run
        if news is not None:
            self._given, self._part = given, news.among(where) if owners is None else news.of_owners(owners.codes)
        assert self._part is not None
        return self._part

    def _branch(self, pool: Pool) -> tuple[Pool, float, float]:
        """Return rate and noise of the branch that a release chose, once for the run; set the learning rate."""
        plan, chosen = self.plan, pool.branch
        if self.branch is None and self._first_levels is None:
            self.branch = chosen
            if self.run.planned_learning_rate:
                scale_learning_rate(self.optimizer, self.scheduler, branch_rate_factor(plan, chosen))
        elif self.branch != chosen:
            raise MechanismError("the steps that were charged together stay in the branch that was chosen first")
        return pool, plan.branches[chosen].rate, plan.branches[chosen].sigma

    def _levels(self, pool: Pool) -> tuple[Pool, float, float]:
        """Return a pool that keeps each record in its own branch for all steps, the highest rate and least noise."""
        first = self._first_levels = pool if self._first_levels is None else self._first_levels
        assert first.levels is not None
        assert pool.levels is not None
        same = np.array_equal(first.indices, pool.indices) and np.array_equal(first.levels, pool.levels)
        if self.plan.shape.rounds > 1 or self.branch is not None or not same:
            raise MechanismError("the steps that were charged together leave every record in its first branch")
        rates, sigmas = (np.array([getattr(b, name) for b in self.plan.branches]) for name in ("rate", "sigma"))
        return drawn_by_level(pool, rates, sigmas), float(rates.max()), float(sigmas.min())

    # -- cost, checkpoints, end -----------------------------------------------------------------------------

    def spent(self) -> Cost:
        """Return what has been charged so far, in (ε, δ)."""
        return self.plan.spent(self.ledger)

    def state(self) -> dict[str, Any]:
        state = {**super().state(), "ledger": self.ledger.id}
        selection = self.source.state() if hasattr(self.source, "state") else None
        if selection is not None:
            state["selection"] = selection
        return state if self.branch is None else {**state, "branch": self.branch}

    def load(self, state: Mapping[str, Any]) -> None:
        refuse_foreign(state, self.ledger)
        super().load(state)
        self.branch = state.get("branch")
        if "selection" in state:
            self.source.restore(state["selection"])

    def close(self) -> None:
        """Close the ledger and tell the account what the run has charged.

        A run that is not resumed and has no ledger has charged nothing. One that was resumed and whose ledger was
        refused has charged what nobody here can read: it keeps all that it has reserved.
        """
        super().close()
        if self.reservation is None:
            return
        if self.ledger.id == self.name:
            self.reservation.settle(self.ledger.entries)
        elif not self.run.resumes:
            self.reservation.settle(())


class _ConstantPool:
    """A strategy that hands over the same pool in every epoch."""

    def __init__(self, pool: Any):
        self.current = pool

    def pool(self, epoch: int) -> Any:
        return self.current
