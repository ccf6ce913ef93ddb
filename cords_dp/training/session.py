"""Puts a run together in one place: plan, ledger, streams, records, model, loss and optimizer.

`PrivateSession` is the only wiring of a private run. The trainer (CORDS' face), the loaders for loops and whatever else
trains drive it through the same few calls:

    session = PrivateSession(run, plan, checkpoint=…)    reserves the plan in the account; no record is read
    session.open(data, model, built=…)                   opens the ledger on these records; features
    session.equip(loss, optimizer, scheduler)            builds the strategy and what takes steps
    session.batches(epoch), session.step(batch)          charge, draw, clip, add noise, step
    session.close()                                      ledger closed, account settled

`Session` has what a run without privacy needs too (`cords_strategies.CordsSession`).
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
from dotmap import DotMap
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, Account, Ledger, Reservation
from cords_dp.config import config_digest, thawed_copy
from cords_dp.config.settings import AUTO
from cords_dp.data.build import data_binding, featured
from cords_dp.data.digests import RecordDigests, bound_records
from cords_dp.data.handed_over import as_records
from cords_dp.data.readable import limit_words
from cords_dp.data.record_set import RecordSet, Share, Splits, cut_splits
from cords_dp.data.sources.base import find_source
from cords_dp.errors import ConfigError, MechanismError
from cords_dp.models.losses import LikelihoodLoss, labels_of
from cords_dp.noise.generators import Streams, noise_source, seed_global_generators
from cords_dp.planning import Cost, PrivacyPlan
from cords_dp.planning.mechanism import registered_mechanisms
from cords_dp.planning.schedule import PREPARATION
from cords_dp.processes import World
from cords_dp.selection import Records, SelectionContext
from cords_dp.selection.pool import Pool, checked_pool, drawn_by_level
from cords_dp.selection.releases import Releases
from cords_dp.selection.session import SelectionArchive, Selections, charging
from cords_dp.training.checkpoint import open_ledger, refuse_foreign, run_id
from cords_dp.training.gradients import GradientMode, choose_mode, gradient_mode, gradient_modes, refuse_mixing
from cords_dp.training.optim import WeightAverage, branch_rate_factor, scale_learning_rate
from cords_dp.training.poisson import Batch, poisson_batches
from cords_dp.training.resolve import Run
from cords_dp.training.step import ChargedSteps, PlainEngine, PrivateEngine, Views
from cords_dp.training.strategies import StrategyContext

_MODE, _RECORDS = "gradient mode", "records"  # among the notes of a ledger


class Session:
    """The state of any run, and the part of it that a checkpoint keeps.

    source: what the strategy has built; a loader of CORDS', or an object with ``pool(epoch)``.
    average: of the weights over the steps, where one is kept. fit: what was released of D before training.
    """

    plan: PrivacyPlan | None = None
    selection_seconds = 0.0
    model: nn.Module
    loss: nn.Module
    optimizer: Optimizer
    scheduler: Any
    data: Splits
    source: Any
    average: WeightAverage | None = None
    fit: dict[str, Any] | None = None

    def __init__(self, run: Run, *, world: World, logger: logging.Logger):
        self.run, self.world, self.logger = run, world, logger
        self.ledger = Ledger()  # in memory, and empty: nothing was charged

    def open(
        self, data: Splits, model: nn.Module, *, built: bool, features: bool = True, progress: bool = False
    ) -> None:
        """Take the records and the model.

        ``built``: the records are the config's, and were not handed over. ``features``: pass them through the model's
        fixed transform once, if it has one.
        """
        if self.run.seed is not None:
            seed_global_generators(Streams(self.run.seed, reproducible=True), self.world.rank)
        self.model, self.data = model, self._featured(data, model, progress=progress) if features else data

    def _featured(self, data: Splits, model: nn.Module, *, progress: bool) -> Splits:
        run, shown = self.run, progress and self.world.main
        return featured(data, model, run.config, device=run.device, progress=shown)

    def train_epoch(self, epoch: int, after_step: Callable[[], None]) -> dict[str, float]:
        """Take all steps of an epoch; return what was measured on the way, if anything may be."""
        raise NotImplementedError

    def close(self) -> None:
        self.ledger.close()

    @property
    def released(self) -> nn.Module:
        """The model that is evaluated and released: the average of the steps where one is kept."""
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


class PrivateSession(Session):
    """A private run.

    Formal guarantees
    -----------------
    Released, to everybody who gets the model: the weights after each step (a Poisson-subsampled Gaussian event each,
    sensitivity C, charged to D), and what the plan's releases list, charged to D or V.

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
            self._refuse_what_needs_all_records()
        resume = run.resumes and checkpoint is not None
        self.name = run_id(checkpoint, plan, resume=resume) if checkpoint is not None else secrets.token_hex(8)
        self.reservation = self._reserved() if world.main else None
        self.branch: int | None = None  # of the plan, once a release has chosen it
        self._digests: list[RecordDigests] = []
        self._first_levels: Pool | None = None
        self._given: object = None  # the pool of the whole set that the strategy has handed over last
        self._part: Pool | None = None  # what this process holds of rank 0's

    # -- beginning ----------------------------------------------------------------------------------------

    def _reserved(self) -> Reservation | None:
        """Set the plan aside in the account of the data, if there is one, before a record is read."""
        if self.plan.privacy.account is None or self.plan.noiseless:
            return None
        account = Account.read(Path(self.plan.privacy.account).expanduser())
        return account.reserve(self.name, self.plan.entries(), unit=self.plan.privacy.unit)

    def _refuse_what_needs_all_records(self) -> None:
        """Refuse a mechanism that compares records: every process holds its own only."""
        mechanism = self.run.mechanism
        if mechanism is not None and not mechanism.sharded:
            others = ", ".join(repr(m.name) for m in registered_mechanisms() if m.sharded)
            raise ConfigError(
                "dss_args.mechanism",
                mechanism.name,
                "compares all records with each other, and of several processes each holds its own only; train in one "
                f"process, or use one of {others}",
            )

    def open(
        self, data: Splits, model: nn.Module, *, built: bool, features: bool = True, progress: bool = False
    ) -> None:
        binding = data_binding(self.run.config, self.run.seed, data, built=built)
        part = cut_splits(data.each(as_records), share_of(self.world, self.run.config))
        if self.world.size > 1:
            self._refuse_other_parts(part, binding)
        self.ledger = self._opened_ledger(binding)
        if not built:
            self._bind_records(part, model)
        self.streams = self._drawn_streams()
        seed_global_generators(self.streams, self.world.rank)
        self.world.copy_from_main(model.state_dict().values())
        part = self._prepared(part)
        self.model, self.data = model, self._featured(part, model, progress=progress) if features else part

    def _refuse_other_parts(self, part: Splits, binding: str) -> None:
        """Refuse processes with other configs or files: they could hold one record twice. All of this is public."""
        plan, world = self.plan, self.world
        facts = [binding, plan.fingerprint, config_digest(self.run.config), self.run.config["train_args"].get("shares")]
        world.refuse_disagreement(facts, "config or data", "give all of them the same files")
        sets, planned = [part.train, part.validation], [plan.shape.n, plan.shape.n_validation]
        if plan.sigma_test is not None:
            sets, planned = [*sets, part.test], [*planned, plan.shape.n_test]
        whole = planned if plan.privacy.unit == "record" else [s.total for s in sets]
        if [s.units for s in sets] != planned or world.total(np.array([len(s) for s in sets])).tolist() != whole:
            raise MechanismError("the parts of the processes do not add up to the records that were planned for")

    def _opened_ledger(self, binding: str) -> Ledger:
        """Open rank 0's ledger; the other ranks keep a copy in memory, which refuses the same charges."""
        plan, ledger = self.plan, None
        if self.checkpoint is not None:
            ledger = open_ledger(
                plan,
                self.checkpoint,
                resume=self.run.resumes,
                binding=binding,
                name=self.name,
                reservation=self.reservation,
            )
        elif self.world.main:
            ledger = Ledger(plan.entries(), fingerprint=plan.fingerprint, binding=binding, id=self.name)
        ledger = self.world.share(ledger)
        assert ledger is not None
        if not self.world.main:
            ledger.path = None
        return ledger

    def _bind_records(self, data: Splits, model: nn.Module) -> None:
        """Let unknown words do no harm, and bind the run to the records that it began with.

        Several processes each hold a part of the records, which may be another when they resume: there the sets are
        bound by kind and size alone.
        """
        limit_words(data, model)
        if self.ledger.path is None or self.world.size > 1 or not self.resumable:
            return
        resumed = _RECORDS in self.ledger.notes
        tested = self.plan.sigma_test is not None
        self._digests = bound_records(data, self.ledger.path.parent, resumed=resumed, tested=tested)
        if self._digests and not resumed:
            self.keep_digests()
            self.ledger.note(_RECORDS, "bound")

    def keep_digests(self) -> None:
        """Write down which records were read so far, for their owner alone."""
        for digests in self._digests:
            digests.save()

    def _drawn_streams(self) -> Streams:
        """Return streams of this attempt's own, keyed by plan and config.

        One process alone asks the operating system for each stream; several share one secret.
        """
        plan, run = self.plan, self.run
        entropy = secrets.randbits(256) if self.world.size > 1 else None
        free = run.seed is not None and plan.noiseless  # there is nothing to protect
        return Streams(
            run.seed,
            attempt=self.ledger.attempts,
            context=f"{plan.fingerprint} {config_digest(run.config)}",
            entropy=self.world.share(entropy),
            reproducible=free or plan.privacy.reproducible_noise,
        )

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
        self.loss, self.optimizer, self.scheduler = loss, optimizer, scheduler
        self.training_loss = self._with_likelihood(loss)
        if plan.privacy.ema_decay:
            self.average = WeightAverage(self.model, plan.privacy.ema_decay)
        coins = self.streams.numpy("coins", rank=self.world.rank)  # each process tosses for its own records
        built = self._built_strategy(coins, self._selections(coins))
        self.source = built if hasattr(built, "pool") else _ConstantPool(built)
        self._coins = self.streams.numpy("batches", rank=self.world.rank)
        noise = noise_source(self.streams.numpy("noise"), secure=plan.privacy.secure_noise)
        self.steps = ChargedSteps(self.ledger, noise)
        self.engine = self._engine(self.model if stepped is None else stepped)

    def _with_likelihood(self, loss: nn.Module) -> nn.Module:
        """Return the loss that steps minimise: the plain one can take over how D's labels came about."""
        plain = type(loss) is nn.CrossEntropyLoss and loss.weight is None and not loss.label_smoothing
        selects = self.plan.mechanism is not None
        return LikelihoodLoss(self.data.num_classes) if plain and selects else loss

    def _selections(self, coins: np.random.Generator) -> Selections | None:
        plan, data = self.plan, self.data
        if plan.mechanism is None:
            return None
        refuse_mixing(self.model, self._made_up_batch()[0])
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

    def _engine(self, model: nn.Module) -> PlainEngine | PrivateEngine:
        plan, privacy = self.plan, self.plan.privacy
        if plan.noiseless:
            return PlainEngine(
                model, self.optimizer, self.training_loss, batch_size=plan.shape.batch_size, world=self.world
            )
        views = self._views()
        mode = self._chosen_mode(model, views)
        self.logger.info("Per-example gradients: mode %s.", mode)
        return PrivateEngine(
            model,
            self.optimizer,
            self.training_loss,
            sigma=plan.sigma,
            max_grad_norm=privacy.max_grad_norm,
            batch_size=plan.shape.batch_size,
            mode=mode,
            noise=self.steps,
            normalise=privacy.clipping == "automatic",
            max_physical_batch_size=privacy.max_physical_batch_size,
            views=views,
            by_owner=plan.privacy.unit == "owner",
            world=self.world,
        )

    def _views(self) -> Views | None:
        count = self.plan.privacy.augmentations
        if count == 1:
            return None
        if self.data.train.no_records()[0].dim() != 4 or hasattr(self.model, "input_transform"):
            raise ConfigError(
                "privacy.augmentations", count, "only models that read images themselves can be shown other views"
            )
        return Views(count, self.streams.numpy("augmentation", rank=self.world.rank))

    def _chosen_mode(self, model: nn.Module, views: Views | None) -> GradientMode:
        """Return the mode that the run began with, the configured one, or the best for the model; tried in any case.

        The ledger remembers it, so that a resumed run continues as it began, whatever a stopwatch would say now.
        """
        wanted = self.ledger.notes.get(_MODE, self.plan.privacy.grad_sample_mode)
        modes = gradient_modes() if wanted == AUTO else (gradient_mode(wanted),)
        if views is not None:
            modes = tuple(mode for mode in modes if mode.averages_views)
        if self.plan.privacy.unit == "owner":
            modes = tuple(mode for mode in modes if mode.sums_owners)
        if not modes:
            fix = "cannot add up the gradients of an owner's records before it clips; leave it at auto"
            raise ConfigError("privacy.grad_sample_mode", wanted, fix)
        chosen = choose_mode(model, *self._made_up_batch(), self.training_loss, modes, say=self.logger.info)
        chosen = gradient_mode(self.world.share(chosen.name))
        self.ledger.note(_MODE, chosen.name)
        return chosen

    def _made_up_batch(self) -> tuple[Tensor, Tensor]:
        """Make up numbers in the shape of a record: choosing a mode must not read records."""
        records, targets = self.data.train.no_records()
        generator, device = torch.Generator().manual_seed(0), self.run.device
        if records.is_floating_point():
            x = torch.randn(4, *records.shape[1:], generator=generator).to(records.dtype)
        else:  # the first two words: every vocabulary has them
            x = torch.randint(0, 2, (4, *records.shape[1:]), generator=generator)
        if self.run.regression:
            return x.to(device), torch.randn(4, *targets.shape[1:], generator=generator).to(device)
        return x.to(device), torch.arange(4, device=device) % self.data.num_classes

    # -- epochs and steps -----------------------------------------------------------------------------------

    def train_epoch(self, epoch: int, after_step: Callable[[], None]) -> dict[str, float]:
        self.model.train()
        for batch in self.batches(epoch):
            self.step(batch)
            after_step()
        self.keep_digests()
        return {}

    def batches(self, epoch: int) -> Iterator[Batch]:
        """Draw the batches of an epoch, from 1 on; it is charged when the first is asked for."""
        plan, planned, held = self.plan, self.plan.shape.epochs[epoch - 1], len(self.data.train)  # type: ignore[arg-type]
        if not planned.steps:
            return
        pool = Pool.everything(held).as_own() if planned.pool == "all" else self.pool(epoch)
        rate, sigma = planned.rate, plan.sigma
        if plan.branches and planned.branched:
            pool, rate, sigma = self._branch(pool) if pool.levels is None else self._levels(pool)
        if isinstance(self.engine, PrivateEngine):
            self.engine.set_noise_multiplier(sigma)  # a branch before it may have left other noise behind
            self.steps.begin(plan, planned)
        yield from self.drawn(self._take_likelihood(pool), rate=rate, steps=planned.steps)

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


def share_of(world: World, config: Mapping[str, Any]) -> Share:
    """Return what this process holds of the records."""
    weights = config["train_args"].get("shares") or ()
    return Share() if world.size == 1 else Share(world.rank, world.size, tuple(weights))


class _ConstantPool:
    """A strategy that hands over the same pool in every epoch."""

    def __init__(self, pool: Any):
        self.current = pool

    def pool(self, epoch: int) -> Any:
        return self.current


def released_fit(
    source: Any,
    data: Splits,
    plan: PrivacyPlan,
    ledger: Ledger,
    generator: np.random.Generator,
    world: World = World(),  # noqa: B008 - frozen
) -> dict[str, Any]:
    """Release what a source fits on D, once a run; return what it makes of it: public values, fit for JSON.

    Formal guarantee: the sum is released by the Gaussian mechanism of the plan's event, charged before its noise is
    drawn (`selection.releases`). The released values are on record, with a digest in the ledger, before they are used.
    So a run that is resumed has the same values and releases nothing again; one that was killed in between draws anew,
    under the charge that it had made and whose outcome nobody has seen (`accounting.ledger`). Several processes add up
    their parts.
    """
    preparation = plan.preparation
    if preparation is None:
        raise MechanismError("the plan pays for no release before training")
    archive = SelectionArchive(ledger, None if ledger.path is None else ledger.path.parent)
    found = world.share(archive.find(PREPARATION) if world.main else None)
    if found is None:
        releases = Releases(
            plan.preparation_releases(),
            charge=charging(ledger),
            generators={TRAINING_DATA: generator},
            noiseless=plan.noiseless,
            secure=plan.privacy.secure_noise,
            world=world,
        )
        released = releases.gaussian(preparation.name, source.sums(data.train.handed_out()))
        found = {"released": torch.from_numpy(released)}
        archive.keep(PREPARATION, found)
    deviation = (plan.preparation_noise or 0.0) * preparation.sensitivity
    return world.share(source.fitted(found["released"].numpy(), deviation))
