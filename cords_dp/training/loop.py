"""Private loaders for custom training loops, in place of CORDS' loaders of the same names.

The guarantee holds only for a loop that decides nothing by exact values of its batches: a learning rate that follows a
batch or its loss, a step that is skipped or a stop because of them tells of single records, and nothing prevents it.

    dataloader = GLISTERDPDataLoader(trainloader, valloader, dss_args, logger, batch_size=20, privacy=dict(epsilon=3))
    model, optimizer = dataloader.make_private(model, optimizer)

The loop stays as it is, with ``loss = torch.dot(losses, weights)``.

Formal guarantees
-----------------
Unit and relation as for a run (`planning.plan`). Released, to everybody who gets the model: the weights after each step
(a Poisson-subsampled Gaussian event each, sensitivity C, charged to D, and with ``train_on_validation=True`` to V as
well, whose records are then in the batches) and what the mechanism's `releases` list, charged to D or V. The plan is
made when the loader is, from public sizes alone.

- An epoch is charged when its first batch is asked for, all its steps at once (`PrivateSession`). Breaking out of it,
  skipping a step and starting over forgo steps that stay charged. More epochs than planned are refused.
- A step is taken by the session, on the batch that the loader drew, inside a charged step. What the loop computes of
  the batch enters the weights nowhere; its loss is only compared, so that a mistake in it is noticed (`DrawnBatch`).
  Where the loop's loss is the plain cross entropy and the mechanism has learnt how D's labels came about
  (`selection.likelihood`), the step minimises that likelihood; the loop writes down the plain loss and needs no change.
  One batch is good for one step, and the optimizer that was handed in refuses to step by itself (`LoopOptimizer`).
- Not covered: what the loop itself shows of its batches, such as their sizes and losses; what it decides by them; and
  code of the loop that writes to the weights. No interface in Python prevents either.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, default_collate

import cords_dp.cords  # noqa: F401 - CORDS' modules, which a script with a loop imports next, would fail without it
from cords_dp.accounting import Ledger
from cords_dp.config.settings import AUTO
from cords_dp.config.values import suggest, whole
from cords_dp.data.record_set import Splits
from cords_dp.errors import BudgetExceededError, ConfigError, MechanismError
from cords_dp.planning import Cost, PrivacyPlan
from cords_dp.planning.statement import privacy_report, write_statement
from cords_dp.processes import current_world
from cords_dp.training.loop_step import DrawnBatch, LoopOptimizer, ready_for_loop, watch
from cords_dp.training.poisson import Batch
from cords_dp.training.preparing import planned_records
from cords_dp.training.private_session import PrivateSession
from cords_dp.training.provenance import about_handed_over
from cords_dp.training.resolve import resolve

_LIVE = ("model", "loss", "eta", "num_classes", "num_epochs", "device", "collate_fn")  # CORDS' objects in dss_args
_MEANINGLESS = ("shuffle", "pin_memory", "num_workers", "drop_last")  # DataLoader's; batches are Poisson draws here
_ONLY_IF = (
    "This holds only if the training loop decided nothing by exact values of its batches: no learning rate that "
    "follows a batch or its loss, no step skipped and no stop because of them. cords_dp cannot see whether it did; if "
    "so, single records may show in the weights. "
)
_OF_THE_LOOP = (
    "what the training loop decides by exact values of its batches: learning rates, skipped steps, when to stop",
    "what the training loop itself shows of its batches: their sizes, losses and accuracies",
)


class PrivateLoader:
    """One private run, batch by batch, if the loop decides nothing by exact values of its batches.

    A learning rate that follows a batch or its loss, a step that is skipped or a stop because of them lets single
    records show in the weights, and cannot be prevented here. ``plan`` and ``ledger`` say what the run may cost and has
    cost.

    batch_size: the *expected* size; "auto" lets the plan choose. privacy: the section of a config. folder: where ledger
    and statement lie, by default beside the logger's file; without either the ledger is in memory. owners: whose each
    record is, where people have several: names for the training set, or (training, validation). The unit of privacy is
    then an owner, and batch_size counts owners.
    """

    strategy: ClassVar[str]

    def __init__(
        self,
        trainloader: DataLoader,
        *arguments: Any,
        privacy: Mapping[str, Any],
        batch_size: int | str = AUTO,
        folder: str | Path | None = None,
        owners: Any = None,
        **options: Any,
    ):
        valloader, dss_args, logger = _arguments(arguments)
        _check_options(options, trainloader)
        self.logger = logger or logging.getLogger("cords_dp")
        self.folder = _folder(folder, self.logger)
        self._loss = _loss(dss_args.get("loss"))
        self._run = resolve(
            _config(self.strategy, dss_args, privacy, batch_size), own_data=True, own_model=True, plan=False
        )
        self._check_run()
        for warning in self._run.notes:
            self.logger.warning(warning)
        splits = _splits(trainloader, valloader, dss_args)
        self._run = self._run.for_owners(owned=owners is not None)
        self._data, plan = planned_records(self._run, splits, owners=owners, validation=valloader is not None)
        assert plan is not None
        self.plan: PrivacyPlan = plan
        beside = None if self.folder is None else self.folder / "private-loop.pt"
        # never closed: nobody can say when a loop has ended, so its whole plan counts in an account
        self._session = PrivateSession(self._run, plan, checkpoint=beside, resumable=False, logger=self.logger)
        self._optimizer: LoopOptimizer | None = None
        self._batch: DrawnBatch | None = None
        self._epoch, self._drawing = 0, False

    def _check_run(self) -> None:
        privacy = self._run.privacy
        assert privacy is not None
        if privacy.head_start:
            fix = "takes steps of its own before the first epoch, and a loop of your own takes all: leave it out"
            raise ConfigError("privacy.head_start", privacy.head_start, fix)
        if privacy.temperature:
            fix = "nobody can say when a loop of your own has ended, so none is fitted: leave it out"
            raise ConfigError("privacy.temperature", True, fix)
        if privacy.ema_decay:
            raise ConfigError("privacy.ema_decay", privacy.ema_decay, "a loop of your own keeps its own average")

    @property
    def ledger(self) -> Ledger:
        return self._session.ledger

    # -- making a model private -------------------------------------------------------------------------

    def make_private(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, LoopOptimizer]:
        """Return the model and the optimizer to use from now on. BatchNorm and the like are replaced, with a warning.

        Steps are taken by a twin that shares the model's weights, so the model itself stays free of hooks that
        per-example gradients need, and can be saved and evaluated as always.
        """
        if self._optimizer is not None:
            raise MechanismError("a loader is one private run, with one model: make another loader for another model")
        if current_world().size > 1:
            raise MechanismError("a loop of your own runs in one process; TrainClassifier trains in several")
        ready = ready_for_loop(model, optimizer, self._data.train[0][0], self.logger)
        session, rate = self._session, optimizer.param_groups[0]["lr"]
        device = str(next(ready.parameters()).device)
        session.run = replace(self._run.with_plan(self.plan, rate), own_device=device)
        session.open(self._data, ready, built=False, features=False)
        twin = copy.deepcopy(ready, {id(p): p for p in ready.parameters()}).train()
        session.equip(self._loss, optimizer, stepped=twin)
        self._optimizer = LoopOptimizer(optimizer, self._take_step)
        watch(ready, self._seen)
        return ready, self._optimizer

    # -- batches and steps --------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the steps of this epoch, or of the next one between epochs: a public number."""
        epochs = self.plan.shape.epochs
        return epochs[min(self._epoch - self._drawing, len(epochs) - 1)].steps

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of the next epoch. It is charged as a whole when the first of them is asked for."""
        epoch = self._begin_epoch()
        try:
            for batch in self._session.batches(epoch):
                drawn = self._batch = DrawnBatch(batch, self._session.labels_in(batch))
                if len(drawn.y):
                    yield drawn.x.clone(), drawn.y.clone(), drawn.weights.clone()  # the step's own stay as drawn
                else:  # few models can read an empty batch, and its step is one like any other
                    self._batch.checked = True
                    assert self._optimizer is not None
                    self._optimizer.step()
                if self._epoch != epoch:
                    raise MechanismError("another epoch has begun: the batches of this one are forgone")
        finally:
            self._drawing = self._drawing and self._epoch != epoch

    def _begin_epoch(self) -> int:
        if self._optimizer is None:
            raise MechanismError("first write  model, optimizer = dataloader.make_private(model, optimizer)")
        if self._epoch >= self._run.epochs:
            raise BudgetExceededError(
                f"the plan pays for {self._run.epochs} epochs (dss_args.num_epochs) and all have begun"
            )
        self._epoch, self._drawing, self._batch = self._epoch + 1, True, None
        return self._epoch

    def _take_step(self) -> None:
        if self._batch is None:
            raise MechanismError("there is no batch to step on: a step belongs to a batch that the loader has drawn")
        self._batch.take()
        self._session.step(self._batch.drawn)

    def _seen(self, module: nn.Module, inputs: tuple[object, ...], outputs: object) -> None:
        if self._batch is not None:
            self._batch.watch(module, inputs, outputs, self._loss)

    # -- what may be told -----------------------------------------------------------------------------------

    def spent(self) -> Cost:
        """Return what has been charged so far, in (ε, δ)."""
        return self._session.spent()

    def statement(self, folder: str | Path | None = None) -> str:
        """Write privacy.json, privacy.md and privacy.html, by default beside the log; return privacy.md.

        It begins with what only the loop's author can know: whether the loop decides anything by exact values.
        """
        about = about_handed_over(self._session)
        report = privacy_report(self.plan, self.ledger, unused_keys=self._run.unused, about=about)
        if report["private"]:
            report["statement"] = _ONLY_IF + report["statement"]
        if "not_covered" in report:
            report["not_covered"] = [*_OF_THE_LOOP, *report["not_covered"]]
        return write_statement(Path(folder) if folder is not None else self.folder or Path(), report)


class FullDPDataLoader(PrivateLoader):
    """DP-SGD on all records, for a loop that decides nothing (learning rate, stopping) by exact values of its batches.

    ``FullDPDataLoader(trainloader, dss_args, logger, batch_size=…, privacy=…)``; see `PrivateLoader`.
    """

    strategy = "FullDP"


class RandomDPDataLoader(PrivateLoader):
    """DP-SGD on a subset, for a loop that decides nothing (learning rate, stopping) by exact values of its batches.

    In place of CORDS' RandomDataLoader; see `PrivateLoader`.
    """

    strategy = "RandomDP"


class GLISTERDPDataLoader(PrivateLoader):
    """DP-SGD on a selection, for a loop that decides nothing (learning rate, stopping) by exact values of its batches.

    In place of CORDS' GLISTERDataLoader; see `PrivateLoader`.
    """

    strategy = "GLISTERDP"

    def __init__(self, trainloader: DataLoader, valloader: DataLoader, *arguments: Any, **options: Any):
        if not isinstance(valloader, DataLoader):
            raise ConfigError("valloader", valloader, "GLISTERDP selects by a validation set: give its DataLoader")
        super().__init__(trainloader, valloader, *arguments, **options)


# --- from CORDS' arguments to ours ---------------------------------------------------------------------


def _arguments(given: tuple[Any, ...]) -> tuple[DataLoader | None, dict[str, Any], logging.Logger | None]:
    """Read ``[valloader,] dss_args[, logger]``, as CORDS' loaders take them."""
    valloader, rest = (given[0], given[1:]) if given and isinstance(given[0], DataLoader) else (None, given)
    if not rest or not isinstance(rest[0], Mapping) or len(rest) > 2:
        raise ConfigError("dss_args", rest[:1], "write …DPDataLoader(trainloader, [valloader,] dss_args, logger, …)")
    return valloader, dict(rest[0].items()), rest[1] if len(rest) == 2 else None


def _check_options(options: Mapping[str, Any], trainloader: DataLoader) -> None:
    for key, value in options.items():
        if key not in _MEANINGLESS and value is not None:
            raise ConfigError(key, value, suggest(key, ("batch_size", "privacy", "folder", "owners", *_MEANINGLESS)))
    if trainloader.collate_fn is not default_collate:
        raise ConfigError(
            "collate_fn", trainloader.collate_fn, "a loop draws records of one shape; use TrainClassifier for others"
        )


def _config(strategy: str, dss_args: Mapping[str, Any], privacy: Mapping[str, Any], batch_size: Any) -> dict[str, Any]:
    """Build the config that the arguments amount to: it goes through the same checks as any other."""
    own = {key: value for key, value in dss_args.items() if key not in _LIVE}
    if own.get("selection_type") == "SL":  # CORDS' notebook names the setting here; CORDS takes it for the default
        own["selection_type"] = "Supervised"
    epochs = dss_args.get("num_epochs")
    if not epochs:
        raise ConfigError(
            "dss_args.num_epochs", epochs, "say how many epochs the loop has: they are planned beforehand"
        )
    return {
        "dataset": {"name": "custom"},
        "dataloader": {"batch_size": batch_size},
        "model": {"architecture": "the loop's own"},
        "loss": {"type": "CrossEntropyLoss"},
        "optimizer": {"type": "sgd", "lr": dss_args.get("eta") or 0.01},
        "dss_args": {**own, "type": strategy},
        "train_args": {"num_epochs": epochs},
        "privacy": {"temperature": False, "train_on_validation": False, **privacy},
    }


def _loss(given: Any) -> nn.Module:
    loss = given or nn.CrossEntropyLoss(reduction="none")
    if not isinstance(loss, nn.Module) or getattr(loss, "reduction", "none") != "none":
        raise ConfigError(
            "dss_args.loss", given, "must give one loss per record: nn.CrossEntropyLoss(reduction='none')"
        )
    return loss


def _splits(trainloader: DataLoader, valloader: DataLoader | None, dss_args: Mapping[str, Any]) -> Splits:
    classes = whole("dss_args.num_classes", dss_args.get("num_classes"), low=2)
    train: Dataset = trainloader.dataset
    validation = train if valloader is None else valloader.dataset
    return Splits(train, validation, None, classes)  # the test set is the loop's business


def _folder(given: str | Path | None, logger: logging.Logger) -> Path | None:
    if given is not None:
        return Path(given).expanduser()
    files = [handler.baseFilename for handler in logger.handlers if isinstance(handler, logging.FileHandler)]
    return Path(files[0]).parent if files else None
