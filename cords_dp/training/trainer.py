"""`TrainClassifier`: CORDS' train loop, with private strategies.

A drop-in for CORDS' class of the same name: the same constructor, ``cfg``, ``logger`` and ``train``, the same log
paths, log lines and checkpoint keys. CORDS' own strategies run through it as they do in CORDS. For private
strategies the loop is DP-SGD by the privacy plan, and nothing about single records is logged.

The config is read when `train` is called, once, and never written to. Everything that can be wrong with it is found
before a file is written or a record is read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dotmap import DotMap
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm import tqdm

from cords_dp import toolkit
from cords_dp.accounting import Ledger
from cords_dp.config import load_config, thawed_copy
from cords_dp.datasets import (
    PixelConstants,
    Splits,
    build_dataset,
    cut_splits,
    data_binding,
    described_rows,
    find_source,
    known_sizes,
    public_facts,
    rows_of,
    threads_for,
    whole_size,
)
from cords_dp.distributed import current_world
from cords_dp.errors import BudgetExceededError, MechanismError
from cords_dp.mechanisms.noise import noise_source
from cords_dp.models import build_model, check_input, check_outputs, make_private_ready
from cords_dp.planning import Cost, PrivacyPlan
from cords_dp.seeding import Streams, seed_global_generators
from cords_dp.training.averaging import WeightAverage
from cords_dp.training.checkpoint import (
    Progress,
    checkpoint_path,
    run_id,
    save_checkpoint,
)
from cords_dp.training.continuing import continued, reserved, resumes, shared_ledger
from cords_dp.training.engine import PrivateEngine
from cords_dp.training.epochs import CordsEpochs, PrivateEpochs
from cords_dp.training.evaluation import History
from cords_dp.training.logs import (
    allowed_metrics,
    console_logger,
    log_plan,
    log_results,
    own_logger,
    progress_bar,
    quiet_libraries,
)
from cords_dp.training.losses import RecordMSELoss
from cords_dp.training.measuring import Measuring
from cords_dp.training.optim import build_optimizer, build_scheduler, planned_learning_rate
from cords_dp.training.parts import refuse_other_parts, refuse_what_needs_all_records, share_of
from cords_dp.training.preparation import prepared_splits, released_fit
from cords_dp.training.records import featured, padding_in_words, readable
from cords_dp.training.row_loggers import row_logger
from cords_dp.training.run import Run, resolve
from cords_dp.training.source import build_source
from cords_dp.training.stepping import build_engine
from cords_dp.training.steps import ChargedSteps
from cords_dp.training.streams import run_streams
from cords_dp.training.threads import threads_for_steps

_DATA_ARGUMENTS = ("trainset", "validset", "testset", "num_cls")


class TrainClassifier(toolkit.TrainClassifier):
    """CORDS' TrainClassifier with private strategies. ``TrainClassifier(cfg).train()`` trains and logs.

    The config is a DotMap, a dict or the path of a file. What is set on ``cfg`` until `train` is called counts.

    After `train`: ``model`` is the released model, ``plan`` and ``ledger`` say what it cost, ``history`` what was
    measured. Each call of `train` is a run of its own.
    """

    logger: logging.Logger
    run: Run
    progress: Progress
    record: Tensor  # zeros in the shape and type of a record, which are public
    _binding: str  # which data the ledger is for; rank 0's
    _total_steps: int
    _built: bool

    def __init__(self, config_file_data: DotMap | Mapping[str, Any] | str | PathLike[str]):
        given = config_file_data
        if isinstance(given, (str, PathLike)):  # CORDS' older notebooks hand over the path of a config file
            given = load_config(Path(given))
        self.cfg = given if isinstance(given, DotMap) else DotMap(given)
        self.run = resolve(self.cfg, own_data=True, plan=False)  # mistakes show now; what counts is read by train()
        self.world = current_world()
        self.logger = console_logger()
        self.logger.disabled = not self.world.main
        self.output_dir: Path | None = None
        self.show_progress = True
        self._reset()

    def _reset(self) -> None:
        self.history = History()
        self.plan: PrivacyPlan | None = None
        self.ledger = Ledger()
        self.model: nn.Module | None = None
        self.data: Splits | None = None
        self.train_seconds = 0.0
        self._epochs: PrivateEpochs | CordsEpochs | None = None
        self._remarks: list[str] = []
        self._constants: PixelConstants | None = None  # of the configured dataset's pixels
        self._fit: dict[str, Any] | None = None
        self._rows_of_train: np.ndarray | None = None

    # -- CORDS' building blocks -------------------------------------------------------------------

    def create_model(self, num_classes: int | None = None, input_shape: Sequence[int] | None = None) -> nn.Module:
        """The configured model, made fit for per-example gradients where the strategy is private."""
        seed = Streams(self.run.seed).public_seed
        model = build_model(
            self.run.config, seed=seed, num_classes=num_classes, input_shape=input_shape, constants=self._constants
        )
        if self.run.strategy.private:
            model, replaced = make_private_ready(model)
            self._remarks += [f"{self.run.config['model']['architecture']}: replaced {what}." for what in replaced]
        return model.to(self.run.device)

    def loss_function(self) -> tuple[nn.Module, nn.Module]:
        """The mean loss and the losses of single records."""
        if self.run.regression:
            return nn.MSELoss(), RecordMSELoss()
        return nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="none")

    def optimizer_with_scheduler(self, model: nn.Module) -> tuple[Optimizer, Any]:
        optimizer = build_optimizer(self.run.config, model)
        scheduler, self._scheduler_by_step = build_scheduler(
            self.run.config, optimizer, epochs=self.run.epochs, steps=self._total_steps
        )
        return optimizer, scheduler

    # -- training -----------------------------------------------------------------------------------

    def train(self, **kwargs: Any) -> tuple[list[float], list[float], list[float], list[float], np.ndarray]:
        """Train. Takes ``trainset, validset, testset, num_cls`` as CORDS does, or loads the configured dataset.

        Returns (training, validation, test, best test accuracies, seconds), one entry per evaluated epoch.
        """
        given = Splits(*(kwargs[name] for name in _DATA_ARGUMENTS)) if set(_DATA_ARGUMENTS) <= set(kwargs) else None
        with quiet_libraries():
            self._reset()
            self._built = given is None
            data = self._begin(given)
            assert self.model is not None
            try:
                with threads_for_steps(self.model, self.record, self.run.batch_size):
                    self._train(data)
            finally:
                self.ledger.close()
                if self._reservation is not None:
                    self._reservation.settle(self.ledger.entries)
        measured = self.history.columns()
        trained, validated, tested, best = (measured.get(f"{n}_acc", []) for n in ("trn", "val", "tst", "best"))
        return trained, validated, tested, best, np.array(self.history.column("time"))

    def _begin(self, data: Splits | None) -> Splits:
        """Resolve the config, plan and build the model; only then open the log and read the data."""
        run = self.run = resolve(self.cfg, own_data=data is not None)
        self._rows = row_logger(run.config["train_args"], main=self.world.main)
        facts = public_facts(run.config) if data is None else None
        share = share_of(run, self.world)
        if facts is not None:
            self._constants = facts.constants
            self.model = self._fitting_model(facts.num_classes, torch.zeros(facts.shape, dtype=facts.dtype))
        sizes = known_sizes(run.config) if data is None else None
        if sizes is None:  # public, but they have to be counted
            own = data is not None or find_source(run.config["dataset"].get("name")) is not None
            data = readable(data or build_dataset(run.config, Streams(run.seed).numpy("data"), share), run, own=own)
            self._remarks += padding_in_words(run)
            sizes = whole_size(data.train), whole_size(data.validation)
        self.plan = run.plan(*sizes)
        if self.world.size > 1:
            refuse_what_needs_all_records(run, self.plan)
        if self.model is None:
            assert data is not None
            self.model = self._fitting_model(data.num_classes, data.train[0][0])
        self.run = run.with_plan(self.plan, self._learning_rate(self.model))
        self._open_log()
        self._saved = checkpoint_path(run.config, self.logger) if self.world.main else None
        self._reserve()
        data = data or build_dataset(run.config, Streams(run.seed).numpy("data"), share)
        self._binding = data_binding(self.run.config, self.run.seed, data, built=self._built)
        self._rows_of_train = rows_of(data.train) if self._built else None
        part = cut_splits(data, share)
        if self.plan is not None and self.world.size > 1:
            refuse_other_parts(self.run, self.plan, self.world, share=share, part=part, binding=self._binding)
        return part

    def _fitting_model(self, num_classes: int, record: Tensor) -> nn.Module:
        """The configured model, refused where it cannot read such records."""
        self.record = torch.zeros_like(record)
        model = self.create_model(num_classes, record.shape)
        if self.run.strategy.private:
            check_input(model, record)
        if self.run.strategy.private and self.run.regression:
            check_outputs(model, record, num_classes)
        return model

    def _reserve(self) -> None:
        """Name the run and set its plan aside in the account of the data, if there is one."""
        self._name, self._reservation = "", None
        if self.plan is not None and self._saved is not None:
            self._name = run_id(self._saved, resume=resumes(self.run))
            self._reservation = reserved(self.plan, self._name)

    def _learning_rate(self, model: nn.Module) -> float:
        if self.run.learning_rate is not None:
            return self.run.learning_rate
        assert self.plan is not None
        return planned_learning_rate(self.run.config, self.plan, model)

    def _open_log(self) -> None:
        """CORDS' constructor chooses the log's folder and format, so it is called here. Rank 0 alone writes."""
        if not self.world.main:
            return
        cfg = self.cfg
        try:
            super().__init__(DotMap(thawed_copy(self.run.config)))
        finally:
            self.cfg = cfg
        self.logger = own_logger(self.logger)
        for warning in (*self.run.notes, *self._remarks):
            self.logger.warning(warning)
        if self.run.planned_learning_rate:
            self.logger.info("Learning rate by the plan: %.4g.", self.run.learning_rate)
        if self.run.device != str(self.run.config["train_args"].get("device") or "cpu"):
            self.logger.info("No CUDA on this machine: training on the CPU instead.")

    def _train(self, data: Splits) -> None:
        _, criterion = self.loss_function()
        self._loop(self._prepare(data, criterion), criterion)
        self.model = self._released()
        self._log_end()

    def _prepare(self, data: Splits, criterion: nn.Module) -> int:
        """Open the ledger and build everything that takes steps and measures; return the epochs already done."""
        run, plan, model, saved = self.run, self.plan, self.model, self._saved
        assert model is not None
        self.ledger = shared_ledger(run, plan, self.world, saved=saved, binding=self._binding, name=self._name)
        streams = run_streams(run, plan, self.ledger, self.world)
        if plan is not None or run.seed is not None:
            seed_global_generators(streams, self.world.rank)
        self.world.copy_from_main(model.state_dict().values())
        shown = self.show_progress and self.world.main
        data = self.data = featured(self._prepared(data, streams), model, run, progress=shown)
        self._total_steps = plan.shape.steps if plan else 0
        optimizer, scheduler = self.optimizer_with_scheduler(model)
        decay = plan.privacy.ema_decay if plan else 0.0
        average = WeightAverage(model, decay) if decay else None
        source = build_source(run, plan, self.ledger, streams, data, model, criterion, optimizer, average, self.logger)
        self.progress = Progress(model, optimizer, scheduler, source, average, self.history)
        done = continued(self.progress, run, plan, self.ledger, self.world, saved=saved, logger=self.logger)
        self.train_seconds = float(self.history.last("time", 0.0))
        self._epochs = self._build_epochs(data, streams, criterion)
        wanted = run.config["train_args"].get("print_args") or ["tst_loss", "tst_acc", "time"]
        metrics = allowed_metrics(wanted, plan, self.logger)
        self._measuring = Measuring(
            run, plan, self.ledger, data, self.world, self.history, metrics, self._rows, self.logger
        )
        log_plan(run, plan, self.logger)
        return done

    def _build_epochs(self, data: Splits, streams: Streams, criterion: nn.Module) -> PrivateEpochs | CordsEpochs:
        run, plan, progress = self.run, self.plan, self.progress
        noise = noise_source(streams.numpy("noise"), secure=bool(plan and plan.privacy.secure_noise))
        steps = ChargedSteps(self.ledger, noise)
        engine = build_engine(run, plan, data, progress.model, progress.optimizer, criterion, streams, steps)
        if isinstance(engine, PrivateEngine):
            self.logger.info("Per-example gradients by Opacus, mode %s.", engine.mode)
        if plan is None:
            return CordsEpochs(run, progress.source, engine)
        coins = streams.numpy("batches", rank=self.world.rank)  # each process tosses for its own records
        return PrivateEpochs(run, plan, data.train, progress, engine, steps, coins, self.world)

    def _loop(self, done: int, criterion: nn.Module) -> None:
        assert self.data is not None
        refused, trained = None, done
        with self._progress_bar() as bar, threads_for(self.data.train):
            for epoch in range(done + 1, self.run.epochs + 1):
                try:
                    subset_metrics = self._train_epoch(epoch, partial(self._after_step, bar))
                except BudgetExceededError as error:  # an interrupted run spent it; later epochs may have their own
                    refused = error
                    continue
                trained = epoch
                self._after_epoch(epoch, subset_metrics, criterion)
        if refused is not None:
            self._ended_early(refused, trained, criterion)

    def _ended_early(self, refused: BudgetExceededError, trained: int, criterion: nn.Module) -> None:
        if trained == 0:  # there is no model to keep
            raise refused
        self.logger.warning("Epochs that were spent before an interruption are missing: %s", refused)
        if self.world.share(self.history.last("epoch", 0) < trained):
            self._evaluate_epoch(trained, criterion, {})

    def _after_epoch(self, epoch: int, subset_metrics: dict[str, float], criterion: nn.Module) -> None:
        """All processes measure together, rank 0 writes."""
        config = self.run.config
        if epoch % config["train_args"]["print_every"] == 0 or epoch == self.run.epochs:
            self._evaluate_epoch(epoch, criterion, subset_metrics)
        if self._saved is None:
            return
        if config["ckpt"].get("is_save") and epoch % (config["ckpt"].get("save_every") or 1) == 0:
            self._save(self._saved, epoch)
        if self.output_dir is not None and self.history.rows:
            self.history.to_csv(self.output_dir / "metrics.csv")  # after the checkpoint: a row that is there is kept

    def _progress_bar(self) -> tqdm:
        steps = self._total_steps if self.plan else self.run.epochs * len(self.progress.source)
        shown = self.show_progress and self.world.main
        return progress_bar(self.run.strategy.name, steps, secret_pool=self._secret_pool, shown=shown)

    @property
    def _secret_pool(self) -> bool:
        return self.plan is not None and self.plan.secret_pool

    def _released(self) -> nn.Module:
        """The model that is evaluated and released: the average of the steps where one is kept."""
        return self.progress.model if self.progress.average is None else self.progress.average.model

    def _prepared(self, data: Splits, streams: Streams) -> Splits:
        """The sets as values that are fitted on D want them; they are released once a run."""
        source = find_source(self.run.config["dataset"].get("name"))
        if self.plan is None or self.plan.preparation is None or source is None:
            return data
        generator = streams.numpy("preparation")
        self._fit = released_fit(source, data, self.plan, self.ledger, generator, self.world)
        return prepared_splits(source, data, self._fit)

    def card(self) -> dict[str, Any] | None:
        """What a prediction needs to know about records of the user's own; None for other data. Public values."""
        source = find_source(self.run.config["dataset"].get("name"))
        if source is None:
            return None
        card = source.card(self.run.config["dataset"])
        return card if self._fit is None else {**card, "fitted": self._fit}

    # -- one epoch ----------------------------------------------------------------------------------

    def _train_epoch(self, epoch: int, after_step: Callable[[], None]) -> dict[str, float]:
        start, selecting = time.perf_counter(), self.selection_seconds
        assert self._epochs is not None
        metrics = self._epochs.train(epoch, after_step)
        if self.progress.scheduler is not None and not self._scheduler_by_step:
            self.progress.scheduler.step()
        self.train_seconds += time.perf_counter() - start - (self.selection_seconds - selecting)
        return metrics

    @property
    def selection_seconds(self) -> float:
        return self._epochs.selection_seconds if self._epochs is not None else 0.0

    def _after_step(self, bar: tqdm) -> None:
        if self.progress.scheduler is not None and self._scheduler_by_step:
            self.progress.scheduler.step()
        bar.update()

    # -- what is measured ---------------------------------------------------------------------------

    def _evaluate_epoch(self, epoch: int, criterion: nn.Module, subset_metrics: dict[str, float]) -> None:
        measuring = self._measuring
        seconds = self.shown_seconds(self.train_seconds + self.selection_seconds)
        row: dict[str, Any] = {"epoch": epoch, "time": seconds, **measuring.metrics(self._released(), criterion)}
        if not self.world.main:
            return
        row.update({key: value for key, value in subset_metrics.items() if key in measuring.shown})
        measuring.tell({**row, **measuring.costs(epoch)})

    def _log_end(self) -> None:
        """CORDS' closing lines. Selected indices are logged for its non-private strategies only."""
        source = self.progress.source
        if self.plan is None and getattr(source, "selected_idxs", None):
            self.logger.info("Selected Indices: ")
            self.logger.info(source.selected_idxs)
        seconds = self.shown_seconds(self.train_seconds + self.selection_seconds)
        kind = self.run.config["dss_args"]["type"]
        log_results(self.logger, kind, self.history, self._measuring.shown, seconds)
        if self.plan is not None and not self.plan.noiseless:
            cost, allowed = self.spent(), self.plan.privacy.epsilon
            self.logger.info("Privacy spent: epsilon %.4f of %g at delta %g", cost.epsilon, allowed, cost.delta)

    # -- checkpoints and ledger -----------------------------------------------------------------------

    def _save(self, path: Path, epoch: int) -> None:
        ledger = None if self.plan is None else self.ledger
        save_checkpoint(path, self.progress.to_dict(epoch, self.loss_function(), ledger))
        self.logger.info("Model checkpoint saved at epoch: %d", epoch)

    # -- what a run may tell ----------------------------------------------------------------------------

    def shown_seconds(self, seconds: float) -> float:
        """Seconds as they may be shown: whole ones where the pool is secret, since time follows its size."""
        return float(round(seconds)) if self._secret_pool else seconds

    def published_subset(self) -> list[int]:
        """Numbers in D of the last subset. Only where it was paid for, or drawn without looking at the data."""
        if self.plan is None or self.plan.secret_pool:
            raise MechanismError("the pool is secret state of the training mechanism and cannot be published")
        return [int(i) for i in self.progress.source.current.indices]

    def published_rows(self) -> dict[str, Any]:
        """``subset.json``: the same records by their rows in the file or the published set, for use elsewhere."""
        return described_rows(self.run.config, self._rows_of_train, self.published_subset())

    def spent(self) -> Cost:
        """What has been charged so far, in (ε, δ)."""
        assert self.plan is not None
        return self.plan.spent(self.ledger)


__all__ = ["TrainClassifier"]
