"""`TrainClassifier`: CORDS' train loop, with private strategies.

A drop-in for CORDS' class of the same name: the same constructor, ``cfg``, ``logger`` and ``train``, the same log
paths, log lines and checkpoint keys. A session (`training.session`) takes the steps; for private strategies these are
DP-SGD by the privacy plan, and nothing about single records is logged.

The config is read when `train` is called, since scripts change ``cfg`` until then, and never written to. Everything
that can be wrong with it is found before a file is written or a record is read.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm import tqdm

from cords_dp import cords
from cords_dp.accounting import Ledger
from cords_dp.data import Facts, Splits
from cords_dp.errors import BudgetExceededError
from cords_dp.planning import Cost, PrivacyPlan
from cords_dp.processes import World, current_world, threads_for_steps
from cords_dp.training.checkpoint import began_with_validation, checkpoint_path, load_run, save_run
from cords_dp.training.handover import explaining_full_disks, folders_of, hand_over, look_back
from cords_dp.training.log import (
    RowLogger,
    console_logger,
    log_end,
    log_plan,
    progress_bar,
    row_logger,
    said,
    separate_logger,
    shown_metrics,
)
from cords_dp.training.metrics import History, Measuring
from cords_dp.training.preparing import (
    Prepared,
    fixed_lines,
    loss_functions,
    made_ready,
    optimizer_and_scheduler,
    prepare,
    ready_model,
)
from cords_dp.training.private_session import PrivateSession
from cords_dp.training.resolve import GivenConfig, as_given, resolve
from cords_dp.training.run import Run
from cords_dp.training.session import CordsSession, Session

_DATA_ARGUMENTS = ("trainset", "validset", "testset", "num_cls")


class TrainClassifier(cords.TrainClassifier):
    """CORDS' TrainClassifier with private strategies. ``TrainClassifier(cfg).train()`` trains and logs.

    The config is a DotMap, a dict or the path of a file. What is set on ``cfg`` until `train` is called counts.

    After `train`: ``model`` is the released model, ``plan`` and ``ledger`` say what it cost, ``history`` what was
    measured. Beside the log lie the privacy statement, if the strategy is private, and model.json, with which
    `cords_dp.load_model` reads a checkpoint (``ckpt.is_save``) or a ``state_dict`` that is saved there as model.pt.
    Each call of `train` is a run of its own.
    """

    logger: logging.Logger
    run: Run
    session: Session
    record: Tensor  # zeros in the shape and type of a record, which are public
    checkpoint: Path | None
    _rows: RowLogger
    _measuring: Measuring

    def __init__(self, config_file_data: GivenConfig):
        # read here too, so that mistakes show early; notebooks write to ``cfg`` before they call train()
        self.cfg, self._resolved = as_given(config_file_data)
        self.run = self._resolved or resolve(self.cfg, own_data=True, plan=False)
        self.world: World = current_world()
        self.logger = console_logger()
        self.logger.disabled = not self.world.main
        self.output_dir: Path | None = None
        self.show_progress = True  # False is quiet: warnings alone are shown, on stderr; the log file has every line
        self._reset()

    def _reset(self) -> None:
        self.history = History()
        self.plan: PrivacyPlan | None = None
        self.model: nn.Module | None = None
        self._remarks: list[str] = []
        self.session = Session(self.run, world=self.world, logger=self.logger)  # it has charged nothing

    # -- CORDS' building blocks -------------------------------------------------------------------

    def create_model(
        self, num_classes: int | None = None, input_shape: Sequence[int] | None = None, facts: Facts | None = None
    ) -> nn.Module:
        """Build the configured model, fit for per-example gradients where the strategy is private."""
        model, replaced = ready_model(self.run, num_classes, input_shape, facts)
        self._remarks += replaced
        return model

    @property
    def builds_configured_model(self) -> bool:
        """Whether the model is the config's, or that of a script which overrides `create_model`, as in CORDS."""
        return type(self).create_model is TrainClassifier.create_model

    def _build(self, *facts: Any) -> nn.Module:
        if self.builds_configured_model:
            return self.create_model(*facts)
        model, replaced = made_ready(self.run, self.create_model())  # CORDS' takes nothing
        self._remarks += replaced
        return model

    def loss_function(self) -> tuple[nn.Module, nn.Module]:
        """Return the mean loss and the losses of single records."""
        return loss_functions(self.run)

    def optimizer_with_scheduler(self, model: nn.Module) -> tuple[Optimizer, Any]:
        return optimizer_and_scheduler(self.run, self.plan, model)

    # -- training -----------------------------------------------------------------------------------

    def train(self, **kwargs: Any) -> tuple[list[float], list[float], list[float], list[float], np.ndarray]:
        """Train. Takes ``trainset, validset, testset, num_cls`` as CORDS does, or loads the configured dataset.

        Returns (training, validation, test, best test accuracies, seconds), one entry per evaluated epoch; of a
        regression R² stands in the place of accuracies. Of a private test set there is the one that was released.
        """
        given = Splits(*(kwargs[name] for name in _DATA_ARGUMENTS)) if set(_DATA_ARGUMENTS) <= set(kwargs) else None
        with explaining_full_disks(self), said(self.logger, shown=self.show_progress):
            self._reset()
            try:
                self._begin(given, kwargs.get("owners"))
                assert self.model is not None
                with threads_for_steps(self.model, self.record, self.run.batch_size):
                    self._train()
            finally:
                self.session.close()
        return self.history.as_cords(regression=self.run.regression)

    def _begin(self, given: Splits | None, owners: Any = None) -> None:
        """Resolve the config, build the model and plan; only then open the log and read the data."""
        run, built = self._resolved or resolve(self.cfg, own_data=given is not None), given is None
        self._rows = row_logger(run.config["train_args"], main=self.world.main)
        prepared = self._prepared(run, given, owners)
        self._open_log(built=built)
        if self.world.share(began_with_validation(self.run, self.plan, self.checkpoint)):
            prepared = self._prepared(run.with_validation(), given, owners)
        self.session = self._new_session()
        data = prepared.dataset(self.world)
        self.session.open(data, prepared.model, built=built, progress=self.show_progress)

    def _prepared(self, run: Run, given: Splits | None, owners: Any) -> Prepared:
        """Take over run, plan and model as they will be used."""
        self.run = run  # for `create_model`
        prepared = prepare(run, self._build, self.world, given, owners)
        self.run, self.plan, self.model, self.record = prepared.run, prepared.plan, prepared.model, prepared.record
        self._remarks += prepared.remarks
        return prepared

    def _open_log(self, *, built: bool) -> None:
        """Let CORDS' constructor choose the log's folder and format. Rank 0 alone writes."""
        self.checkpoint = None
        if not self.world.main:
            return
        cfg = self.cfg
        try:
            super().__init__(self.run.as_cords())
        finally:
            self.cfg = cfg
        self.logger = separate_logger(self.logger)
        for warning in (*self.run.notes, *self._remarks):
            self.logger.warning(warning)
        for line in fixed_lines(self.run, self.plan, built=built):
            self.logger.info(line)
        self.checkpoint = checkpoint_path(self.run.config, self.logger)
        look_back(self)

    def _new_session(self) -> Session:
        if self.plan is None:
            return CordsSession(self.run, world=self.world, logger=self.logger)
        return PrivateSession(self.run, self.plan, checkpoint=self.checkpoint, world=self.world, logger=self.logger)

    def _train(self) -> None:
        session, (_, loss) = self.session, self.loss_function()
        session.equip(loss, *self.optimizer_with_scheduler(session.model))
        done = load_run(self.checkpoint, session, self.history)
        shown = shown_metrics(self.run, self.plan, self.logger)
        self._measuring = Measuring(session, self.history, shown, self._rows, cords.IS_CHECKOUT)
        log_plan(self.run, self.plan, self.logger)
        self._loop(done)
        self.model = session.released
        self._test_privately()
        log_end(session, self.history, shown)
        if self.world.main:
            hand_over(self, folders_of(self))

    def _test_privately(self) -> None:
        """Release the noisy counts of a private test set, once, of the model that the run ends with."""
        if self.session.release_test() is not None and self.world.main and self.history.rows:
            self.history.rows[-1].update(self._measuring.costs(self.run.epochs))

    # -- the loop ---------------------------------------------------------------------------------------

    def _loop(self, done: int) -> None:
        refused, trained = None, done
        shown = self.show_progress and self.world.main
        with progress_bar(self.session, done, shown=shown) as bar, self.session.threads():
            for epoch in range(done + 1, self.run.epochs + 1):
                try:
                    subset_metrics = self.session.train_epoch(epoch, partial(self._after_step, bar))
                except BudgetExceededError as error:  # an interrupted run spent it; later epochs may have their own
                    refused = error
                    continue
                trained = epoch
                self._after_epoch(epoch, subset_metrics)
        if trained:
            self.session.calibrate()
        if refused is not None:
            self._ended_early(refused, trained)

    def _after_step(self, bar: tqdm) -> None:
        bar.update()

    def _after_epoch(self, epoch: int, subset_metrics: dict[str, float]) -> None:
        """Measure, all processes together; rank 0 writes."""
        config = self.run.config
        if epoch == self.run.epochs:
            self.session.calibrate()
        if epoch % config["train_args"]["print_every"] == 0 or epoch == self.run.epochs:
            self._measuring.measure(epoch, subset_metrics)
        every = config["ckpt"].get("save_every") or 1
        if self.checkpoint is None:
            return
        if config["ckpt"].get("is_save") and (epoch % every == 0 or epoch == self.run.epochs):
            self._save(self.checkpoint, epoch)
        if self.output_dir is not None and self.history.rows:
            self.history.to_csv(self.output_dir / "metrics.csv")  # after the checkpoint: a row that is there is kept

    def _ended_early(self, refused: BudgetExceededError, trained: int) -> None:
        if trained == 0:  # there is no model to keep
            raise refused
        self.logger.warning("Epochs that were spent before an interruption are missing: %s", refused)
        if self.world.share(self.history.last("epoch", 0) < trained):
            self._measuring.measure(trained, {})

    def _save(self, path: Path, epoch: int) -> None:
        save_run(path, epoch, self.session, self.history, self.loss_function())

    # -- what a run may tell ----------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        return self.session.ledger

    @property
    def data(self) -> Splits | None:
        return getattr(self.session, "data", None)

    def spent(self) -> Cost:
        """Return what has been charged so far, in (ε, δ)."""
        assert self.plan is not None
        return self.plan.spent(self.ledger)
