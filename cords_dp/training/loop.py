"""Private loaders for a training loop of the user's own, in place of CORDS' loaders of the same names.

    dataloader = GLISTERDPDataLoader(trainloader, valloader, dss_args, logger, batch_size=20, privacy=dict(epsilon=3))
    model, optimizer = dataloader.make_private(model, optimizer)

The loop stays as it is, with ``loss = torch.dot(losses, weights)``.

Formal guarantees
-----------------
Unit and relation as for a run (`planning.plan`). Released, to whoever gets the model: the weights after each step (a
Poisson-subsampled Gaussian event each, sensitivity C, charged to D) and what the mechanism's `releases` list, charged
to D or V. The plan is made when the loader is, from public sizes alone.

- An epoch is charged when its first batch is asked for, all its steps at once (`epochs.PrivateEpochs`). Breaking out
  of it, skipping a step and starting over forgo steps that stay charged. More epochs than planned are refused.
- A step is taken by the engine, on the batch that the loader drew, inside a charged step (`steps.ChargedSteps`). What
  the loop computes of the batch enters the weights nowhere. One batch is good for one step (`turn.Turn`), and the
  optimizer that was handed in refuses to step by itself (`loop_optimizer.LoopOptimizer`).
- Not covered: what the loop itself shows of its batches, such as their sizes and losses; and code of the loop that
  writes to the weights, which no interface in Python prevents.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, default_collate

from cords_dp.accounting import Account, Ledger
from cords_dp.config.settings import AUTO
from cords_dp.config.values import suggest, whole
from cords_dp.dataloaders.poisson import Batch
from cords_dp.datasets import GuardedDataset, Splits, checked_splits, data_binding
from cords_dp.distributed import World, current_world
from cords_dp.errors import BudgetExceededError, ConfigError, MechanismError
from cords_dp.files import write_durably
from cords_dp.mechanisms.noise import noise_source
from cords_dp.models import check_input, make_private_ready
from cords_dp.planning import Cost, PrivacyPlan
from cords_dp.planning.statement import privacy_markdown, privacy_report
from cords_dp.seeding import Streams, seed_global_generators
from cords_dp.training.checkpoint import Progress, open_ledger
from cords_dp.training.epochs import PrivateEpochs
from cords_dp.training.evaluation import History
from cords_dp.training.loop_optimizer import LoopOptimizer, follow
from cords_dp.training.run import resolve
from cords_dp.training.source import build_source
from cords_dp.training.stepping import build_engine
from cords_dp.training.steps import ChargedSteps
from cords_dp.training.turn import Turn

_LIVE = ("model", "loss", "eta", "num_classes", "num_epochs", "device", "collate_fn")  # CORDS' objects in dss_args
_MEANINGLESS = ("shuffle", "pin_memory", "num_workers", "drop_last")  # DataLoader's; batches are Poisson draws here
_SHOWN_BY_THE_LOOP = "what the training loop itself shows of its batches: their sizes, losses and accuracies"


class PrivateLoader:
    """One private run, batch by batch. ``plan`` and ``ledger`` say what it may cost and has cost.

    batch_size: the *expected* size; "auto" lets the plan choose. privacy: the section of a config. folder: where ledger
    and statement lie, by default beside the logger's file; without either the ledger is in memory.
    """

    strategy: ClassVar[str]

    def __init__(
        self,
        trainloader: DataLoader,
        *arguments: Any,
        privacy: Mapping[str, Any],
        batch_size: int | str = AUTO,
        folder: str | Path | None = None,
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
        self._data = _splits(trainloader, valloader, dss_args)
        sizes = [len(loader.dataset) if loader is not None else 0 for loader in (trainloader, valloader)]  # type: ignore[arg-type]
        plan = self._run.plan(*sizes)
        assert plan is not None
        self.plan: PrivacyPlan = plan
        self.ledger = self._open_ledger()
        self._epochs: PrivateEpochs | None = None
        self._optimizer: LoopOptimizer | None = None
        self._turn: Turn | None = None
        self._epoch, self._drawing = 0, False

    def _check_run(self) -> None:
        privacy = self._run.privacy
        assert privacy is not None
        if privacy.ema_decay:
            raise ConfigError("privacy.ema_decay", privacy.ema_decay, "a loop of your own keeps its own average")

    def _open_ledger(self) -> Ledger:
        binding = data_binding(self._run.config, None, self._data)
        entries = self.plan.entries()
        if self.folder is None:
            ledger = Ledger(allowance=entries, fingerprint=self.plan.fingerprint, binding=binding)
        else:
            own = Ledger()  # a fresh name
            beside = self.folder / "private-loop.pt"
            ledger = open_ledger(self.plan, beside, resume=False, binding=binding, name=own.id)
        if self.plan.privacy.account is not None and entries:
            # never settled: nobody can say when a loop has ended, so the whole plan counts
            Account.read(Path(self.plan.privacy.account).expanduser()).reserve(ledger.id, entries)
        return ledger

    # -- making a model private -------------------------------------------------------------------------

    def make_private(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, LoopOptimizer]:
        """The model and the optimizer to go on with. Layers that mix records (BatchNorm) are replaced, with a warning.

        Steps are taken by a twin that shares the model's weights, so the model itself stays free of hooks that
        per-example gradients need, and can be saved and evaluated as always.
        """
        if self._epochs is not None:
            raise MechanismError("a loader is one private run, with one model: make another loader for another model")
        if current_world().size > 1:
            raise MechanismError("a loop of your own runs in one process; TrainClassifier trains in several")
        ready, replaced = make_private_ready(model)
        for what in replaced:
            self.logger.warning("%s: replaced %s.", type(model).__name__, what)
        follow(optimizer, model, ready)
        device = next(ready.parameters()).device
        ready.to(device)
        check_input(ready, self._data.train[0][0])
        run = self._run = replace(
            self._run.with_plan(self.plan, optimizer.param_groups[0]["lr"]), own_device=str(device)
        )
        streams = self._streams()
        seed_global_generators(streams, rank=0)
        source = build_source(
            run, self.plan, self.ledger, streams, self._data, ready, self._loss, optimizer, None, self.logger
        )
        twin = copy.deepcopy(ready, {id(p): p for p in ready.parameters()}).train()
        noise = noise_source(streams.numpy("noise"), secure=self.plan.privacy.secure_noise)
        steps = ChargedSteps(self.ledger, noise)
        engine = build_engine(run, self.plan, self._data, twin, optimizer, self._loss, streams, steps)
        progress = Progress(ready, optimizer, None, source, None, History())
        coins = streams.numpy("batches")
        self._epochs = PrivateEpochs(run, self.plan, self._data.train, progress, engine, steps, coins, World())
        self._optimizer = LoopOptimizer(optimizer, self._take_step)
        self._watch(ready)
        return ready, self._optimizer

    def _streams(self) -> Streams:
        return Streams(context=f"{self.plan.fingerprint} loop", reproducible=self.plan.privacy.reproducible_noise)

    # -- batches and steps --------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The steps of this epoch, or of the next one between epochs: a public number."""
        epochs = self.plan.shape.epochs
        return epochs[min(self._epoch - self._drawing, len(epochs) - 1)].steps

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the next epoch. It is charged as a whole when the first of them is asked for."""
        epochs, epoch = self._begin_epoch()
        try:
            for batch in epochs.batches(epoch):
                self._turn = Turn(*batch)
                if len(batch[1]):
                    yield batch[0].clone(), batch[1].clone(), batch[2].clone()  # the step's own stay as they were drawn
                else:  # few models can read an empty batch, and its step is one like any other
                    self._turn.checked = True
                    assert self._optimizer is not None
                    self._optimizer.step()
                if self._epoch != epoch:
                    raise MechanismError("another epoch has begun: the batches of this one are forgone")
        finally:
            self._drawing = self._drawing and self._epoch != epoch

    def _begin_epoch(self) -> tuple[PrivateEpochs, int]:
        if self._epochs is None:
            raise MechanismError("first write  model, optimizer = dataloader.make_private(model, optimizer)")
        if self._epoch >= self._run.epochs:
            raise BudgetExceededError(
                f"the plan pays for {self._run.epochs} epochs (dss_args.num_epochs) and all have begun"
            )
        self._epoch, self._drawing, self._turn = self._epoch + 1, True, None
        return self._epochs, self._epoch

    def _take_step(self) -> None:
        if self._turn is None or self._epochs is None:
            raise MechanismError("there is no batch to step on: a step belongs to a batch that the loader has drawn")
        turn, epochs = self._turn, self._epochs
        turn.take()
        with epochs.steps.one() if not self.plan.noiseless else contextlib.nullcontext():
            epochs.engine.step(*(part.to(self._run.device) for part in (turn.x, turn.y, turn.weights)))

    def _watch(self, model: nn.Module) -> None:
        """Let every forward pass of the loop be seen. A plain function: copies of the model do not copy the loader."""

        def seen(module: nn.Module, inputs: tuple[object, ...], outputs: object) -> None:
            if self._turn is not None:
                self._turn.watch(module, inputs, outputs, self._loss)

        model.register_forward_hook(seen)

    # -- what may be told -----------------------------------------------------------------------------------

    def spent(self) -> Cost:
        """What has been charged so far, in (ε, δ)."""
        return self.plan.spent(self.ledger)

    def statement(self, folder: str | Path | None = None) -> str:
        """Write privacy.json and privacy.md, by default beside the log, and return the latter."""
        report = privacy_report(self.plan, self.ledger, unused_keys=self._run.unused)
        if "not_covered" in report:
            report["not_covered"].append(_SHOWN_BY_THE_LOOP)
        text = privacy_markdown(report)
        place = Path(folder) if folder is not None else self.folder or Path()
        write_durably(place / "privacy.json", json.dumps(report, indent=2))
        write_durably(place / "privacy.md", text)
        return text


class FullDPDataLoader(PrivateLoader):
    """DP-SGD on all records: ``FullDPDataLoader(trainloader, dss_args, logger, batch_size=…, privacy=…)``."""

    strategy = "FullDP"


class RandomDPDataLoader(PrivateLoader):
    """DP-SGD on a random subset, in place of CORDS' RandomDataLoader."""

    strategy = "RandomDP"


class GLISTERDPDataLoader(PrivateLoader):
    """DP-SGD on records chosen privately, in place of CORDS' GLISTERDataLoader."""

    strategy = "GLISTERDP"

    def __init__(self, trainloader: DataLoader, valloader: DataLoader, *arguments: Any, **options: Any):
        if not isinstance(valloader, DataLoader):
            raise ConfigError("valloader", valloader, "GLISTERDP selects by a validation set: give its DataLoader")
        super().__init__(trainloader, valloader, *arguments, **options)


# --- from CORDS' arguments to ours ---------------------------------------------------------------------


def _arguments(given: tuple[Any, ...]) -> tuple[DataLoader | None, dict[str, Any], logging.Logger | None]:
    """``[valloader,] dss_args[, logger]``, as CORDS' loaders take them."""
    valloader, rest = (given[0], given[1:]) if given and isinstance(given[0], DataLoader) else (None, given)
    if not rest or not isinstance(rest[0], Mapping) or len(rest) > 2:
        raise ConfigError("dss_args", rest[:1], "write …DPDataLoader(trainloader, [valloader,] dss_args, logger, …)")
    return valloader, dict(rest[0].items()), rest[1] if len(rest) == 2 else None


def _check_options(options: Mapping[str, Any], trainloader: DataLoader) -> None:
    for key, value in options.items():
        if key not in _MEANINGLESS and value is not None:
            raise ConfigError(key, value, suggest(key, ("batch_size", "privacy", "folder", *_MEANINGLESS)))
    if trainloader.collate_fn is not default_collate:
        raise ConfigError(
            "collate_fn", trainloader.collate_fn, "a loop draws records of one shape; use TrainClassifier for others"
        )


def _config(strategy: str, dss_args: Mapping[str, Any], privacy: Mapping[str, Any], batch_size: Any) -> dict[str, Any]:
    """The config that the arguments amount to: it goes through the same checks as any other."""
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
        "privacy": dict(privacy),
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
    # the test set is the loop's business
    return checked_splits(Splits(train, validation, GuardedDataset(validation, classes), classes), private=True)


def _folder(given: str | Path | None, logger: logging.Logger) -> Path | None:
    if given is not None:
        return Path(given).expanduser()
    files = [handler.baseFilename for handler in logger.handlers if isinstance(handler, logging.FileHandler)]
    return Path(files[0]).parent if files else None


__all__ = ["FullDPDataLoader", "GLISTERDPDataLoader", "PrivateLoader", "RandomDPDataLoader"]
