"""`TrainClassifier`: CORDS' train loop, with private strategies.

A drop-in for CORDS' class of the same name: the same constructor, ``cfg``, ``logger`` and ``train``, the same log
paths, log lines and checkpoint keys. It is CORDS' loop, log, evaluation and checkpoint over a session
(`training.session`), which takes the steps; for private strategies these are DP-SGD by the privacy plan, and nothing
about single records is logged.

The config is read when `train` is called, since scripts change ``cfg`` until then, and never written to. The
constructor reads it too, so that mistakes show early. Everything that can be wrong with it is found before a file is
written or a record is read.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from dotmap import DotMap
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm import tqdm

from cords_dp import cords
from cords_dp.accounting import Ledger
from cords_dp.config import load_config, thawed_copy
from cords_dp.data.record_set import Splits
from cords_dp.data.sources.base import Facts
from cords_dp.errors import BudgetExceededError
from cords_dp.models.private import make_private_ready
from cords_dp.planning import Cost, PrivacyPlan
from cords_dp.processes import World, current_world, threads_for_steps
from cords_dp.training.checkpoint import (
    checkpoint_path,
    load_checkpoint,
    log_folder,
    save_checkpoint,
    spent_before,
)
from cords_dp.training.cords_strategies import CordsSession
from cords_dp.training.handover import explaining_full_disks, hand_over, withdraw
from cords_dp.training.log import (
    RowLogger,
    console_logger,
    log_end,
    log_plan,
    progress_bar,
    quiet_libraries,
    row_logger,
    said,
    separate_logger,
    shown_metrics,
)
from cords_dp.training.metrics import History, Measuring, scores
from cords_dp.training.preparing import (
    Prepared,
    began_with_validation,
    fixed_lines,
    loss_functions,
    optimizer_and_scheduler,
    prepare,
    ready_model,
)
from cords_dp.training.private_session import PrivateSession
from cords_dp.training.resolve import resolve
from cords_dp.training.run import Run
from cords_dp.training.session import Session

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
    _checkpoint: Path | None
    _rows: RowLogger
    _measuring: Measuring

    def __init__(self, config_file_data: Run | DotMap | Mapping[str, Any] | str | PathLike[str]):
        given = config_file_data
        if isinstance(given, (str, PathLike)):  # CORDS' older notebooks hand over the path of a config file
            given = load_config(Path(given))
        self._resolved = given if isinstance(given, Run) else None
        if isinstance(given, Run):
            self.cfg, self.run = DotMap(thawed_copy(given.config)), given
        else:  # CORDS' notebooks write to ``cfg`` before they call train(), which therefore reads it anew
            self.cfg = given if isinstance(given, DotMap) else DotMap(given)
            self.run = resolve(self.cfg, own_data=True, plan=False)
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
        model = self.create_model()  # CORDS' takes nothing
        if self.run.strategy.private:
            model, replaced = make_private_ready(model)
            self._remarks += [f"{type(model).__name__}: replaced {what}." for what in replaced]
        return model.to(self.run.device)

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
        with quiet_libraries(), explaining_full_disks(self), said(self.logger, shown=self.show_progress):
            self._reset()
            try:
                self._begin(given, kwargs.get("owners"))
                assert self.model is not None
                with threads_for_steps(self.model, self.record, self.run.batch_size):
                    self._train()
            finally:
                self.session.close()
        measured = self.history.columns()
        score = scores(regression=self.run.regression)[-1]
        trained, validated, tested, best = (measured.get(f"{n}_{score}", []) for n in ("trn", "val", "tst", "best"))
        return trained, validated, tested, best, np.array(self.history.column("time"))

    def _begin(self, given: Splits | None, owners: Any = None) -> None:
        """Resolve the config, build the model and plan; only then open the log and read the data."""
        run, built = self._resolved or resolve(self.cfg, own_data=given is not None), given is None
        self._rows = row_logger(run.config["train_args"], main=self.world.main)
        prepared = self._prepared(run, given, owners)
        self._open_log(built=built)
        if self.world.share(began_with_validation(self.run, self.plan, self._checkpoint)):
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
        self._checkpoint = None
        if not self.world.main:
            return
        cfg = self.cfg
        try:
            super().__init__(DotMap(thawed_copy(self.run.config)))
        finally:
            self.cfg = cfg
        self.logger = separate_logger(self.logger)
        for warning in (*self.run.notes, *self._remarks):
            self.logger.warning(warning)
        for line in fixed_lines(self.run, self.plan, built=built):
            self.logger.info(line)
        self._checkpoint = checkpoint_path(self.run.config, self.logger)
        self._look_back(self._checkpoint)

    def _look_back(self, checkpoint: Path) -> None:
        """Tell what a run that was interrupted here has spent; withdraw what an earlier one said of its model."""
        if not self.run.resumes and (warning := spent_before(checkpoint, self.plan, self._folders())):
            self.logger.warning(warning)
        if self.output_dir is None:  # the first checkpoint replaces the model that it speaks of
            withdraw(self._folders())

    def _new_session(self) -> Session:
        if self.plan is None:
            return CordsSession(self.run, world=self.world, logger=self.logger)
        return PrivateSession(self.run, self.plan, checkpoint=self._checkpoint, world=self.world, logger=self.logger)

    def _train(self) -> None:
        session, (_, loss) = self.session, self.loss_function()
        session.equip(loss, *self.optimizer_with_scheduler(session.model))
        done = self._continued()
        shown = shown_metrics(self.run, self.plan, self.logger)
        self._measuring = Measuring(session, self.history, shown, self._rows, cords.IS_CHECKOUT)
        log_plan(self.run, self.plan, self.logger)
        self._loop(done)
        self.model = session.released
        self._test_privately()
        log_end(session, self.history, shown)
        if self.world.main:
            hand_over(self, self._folders())

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
        if self._checkpoint is None:
            return
        if config["ckpt"].get("is_save") and (epoch % every == 0 or epoch == self.run.epochs):
            self._save(self._checkpoint, epoch)
        if self.output_dir is not None and self.history.rows:
            self.history.to_csv(self.output_dir / "metrics.csv")  # after the checkpoint: a row that is there is kept

    def _ended_early(self, refused: BudgetExceededError, trained: int) -> None:
        if trained == 0:  # there is no model to keep
            raise refused
        self.logger.warning("Epochs that were spent before an interruption are missing: %s", refused)
        if self.world.share(self.history.last("epoch", 0) < trained):
            self._measuring.measure(trained, {})

    # -- checkpoints --------------------------------------------------------------------------------------

    def _continued(self) -> int:
        """Load the checkpoint if the config asks for it and there is one; return the epochs already done."""
        if not self.run.resumes:
            return 0
        path = self._checkpoint
        state = load_checkpoint(path, self.run.device) if path is not None and path.is_file() else None
        state = self.world.share(state)
        if state is None:
            self.logger.warning("No checkpoint to load: starting from the beginning.")
            return 0
        self.session.load(state)
        self.history.rows = list(state.get("rows", []))
        self.session.train_seconds = float(self.history.last("time", 0.0))
        self.logger.info("Loading saved checkpoint model at epoch: %d", state["epoch"])
        return int(state["epoch"])

    def _save(self, path: Path, epoch: int) -> None:
        measured = {"metrics": self.history.columns(), "rows": self.history.rows}
        save_checkpoint(path, {"epoch": epoch, "loss": self.loss_function(), **measured, **self.session.state()})
        self.logger.info("Model checkpoint saved at epoch: %d", epoch)

    def _folders(self) -> list[Path]:
        """Return where model and statement lie: a folder of the run's own, or beside log and checkpoint."""
        if self.output_dir is not None:
            return [self.output_dir]
        assert self._checkpoint is not None
        saving = [self._checkpoint.parent] if self.run.config["ckpt"].get("is_save") else []
        return list(dict.fromkeys([log_folder(self.logger), *saving]))

    # -- what a run may tell ----------------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        return self.session.ledger

    @property
    def data(self) -> Splits | None:
        return getattr(self.session, "data", None)

    def spent(self) -> Cost:
        """Return what has been charged so far, in (ε, δ)."""
        assert isinstance(self.session, PrivateSession)
        return self.session.spent()


__all__ = ["TrainClassifier"]
