"""`TrainClassifier`: CORDS' train loop, with private strategies.

A drop-in for CORDS' class of the same name: the same constructor, ``cfg``, ``logger`` and ``train``, the same log
paths, log lines and checkpoint keys. CORDS' own strategies run through it as they do in CORDS. For private
strategies the loop is DP-SGD by the privacy plan, and nothing about single records is logged.
"""

from __future__ import annotations

import atexit
import copy
import logging
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dotmap import DotMap
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from cords_dp import toolkit
from cords_dp.accounting import TRAINING_DATA, Ledger
from cords_dp.config import AUTO, config_digest
from cords_dp.dataloaders import sequential_batches
from cords_dp.datasets import Splits, build_dataset
from cords_dp.distributed import World, current_world
from cords_dp.errors import AccountingError, BudgetExceededError, ConfigError, MechanismError
from cords_dp.mechanisms.noise import noise_source
from cords_dp.models import build_model, make_private_ready, with_features
from cords_dp.plan import Cost, PrivacyPlan
from cords_dp.registry import LoaderContext
from cords_dp.seeding import Streams, seed_global_generators
from cords_dp.training.averaging import WeightAverage
from cords_dp.training.checkpoint import checkpoint_path, load_checkpoint, open_ledger, save_checkpoint
from cords_dp.training.engine import MODES, PlainEngine, PrivateEngine, Views
from cords_dp.training.evaluation import LABELS, History, evaluate
from cords_dp.training.logs import allowed_metrics, log_plan, log_results, own_logger, quiet_libraries
from cords_dp.training.modes import fastest_mode
from cords_dp.training.optim import build_optimizer, build_scheduler, planned_learning_rate
from cords_dp.training.setup import as_dotmaps, check_config, fill_defaults

_EVALUATION_BATCH = 1024


class TrainClassifier(toolkit.TrainClassifier):
    """CORDS' TrainClassifier with private strategies. ``TrainClassifier(cfg).train()`` trains and logs."""

    logger: logging.Logger
    _total_steps: int

    def __init__(self, config_file_data: DotMap):
        config_file_data = config_file_data if isinstance(config_file_data, DotMap) else DotMap(config_file_data)
        as_dotmaps(config_file_data)
        self.setup = check_config(config_file_data, own_data=True)  # the data may be handed to train()
        fill_defaults(config_file_data, self.setup.strategy.whole)
        self.world = current_world()
        if not self.world.main:  # rank 0 alone writes
            _write_nowhere(config_file_data)
        super().__init__(config_file_data)
        self.logger = own_logger(self.logger)
        self.logger.disabled = not self.world.main
        if self.setup.device != str(self.cfg.train_args.device):
            self.logger.warning("No CUDA on this machine: training on the CPU instead.")
        self.cfg.train_args.device = self.setup.device
        self.history = History()
        self.plan: PrivacyPlan | None = None
        self.ledger = Ledger()
        self.model: nn.Module | None = None
        self.data: Splits | None = None
        self.train_seconds = self.selection_seconds = 0.0
        self.output_dir: Path | None = None
        self.show_progress = True

    # -- CORDS' building blocks -------------------------------------------------------------------

    def create_model(self, num_classes: int | None = None) -> nn.Module:
        """The configured model, made fit for per-example gradients where the strategy is private."""
        model = build_model(self.cfg, seed=Streams(self.setup.seed).public_seed, num_classes=num_classes)
        if self.setup.strategy.private:
            model, replaced = make_private_ready(model)
            for sentence in replaced:
                self.logger.warning("%s: replaced %s.", self.cfg.model.architecture, sentence)
        return model.to(self.setup.device)

    def optimizer_with_scheduler(self, model: nn.Module) -> tuple[Optimizer, Any]:
        optimizer = build_optimizer(self.cfg, model)
        scheduler, self._scheduler_by_step = build_scheduler(
            self.cfg, optimizer, epochs=self.setup.epochs, steps=self._total_steps
        )
        return optimizer, scheduler

    # -- training -----------------------------------------------------------------------------------

    def train(self, **kwargs: Any) -> tuple[list[float], list[float], list[float], list[float], np.ndarray]:
        """Train. Takes ``trainset, validset, testset, num_cls`` as CORDS does, or loads the configured dataset.

        Returns (training, validation, test, best test accuracies, seconds), one entry an evaluated epoch.
        """
        with quiet_libraries():
            self._train(self._load_data(kwargs))
        accuracy = self.history.column("tst_acc")
        best = list(np.maximum.accumulate(accuracy)) if accuracy else []
        return (
            self.history.column("trn_acc"),
            self.history.column("val_acc"),
            accuracy,
            best,
            np.array(self.history.column("time")),
        )

    def _load_data(self, given: dict[str, Any]) -> Splits:
        names = ("trainset", "validset", "testset", "num_cls")
        if all(name in given for name in names):
            data = Splits(*(given[name] for name in names))
        else:
            check_config(self.cfg)  # dataset and plan, before any data is read
            data = build_dataset(self.cfg, Streams(self.setup.seed).numpy("data"))
        n, n_validation = len(data.train), len(data.validation)  # type: ignore[arg-type]
        self.plan = self.setup.plan(n, n_validation)
        if self.plan is None and self.world.size > 1:
            raise ConfigError(
                "dss_args.type", self.cfg.dss_args.type, "only private strategies train in several processes"
            )
        return data

    def _train(self, data: Splits) -> None:
        saved = checkpoint_path(self.cfg, self.logger)
        self.ledger = self._shared_ledger(saved)
        context = f"{self.plan.fingerprint} {config_digest(self.cfg)}" if self.plan else ""
        streams = Streams(
            self.setup.seed,
            attempt=self.ledger.attempts,
            context=context,
            entropy=self.world.share(_entropy(self.world)),
            reproducible=self.setup.seed is not None and (self.plan is None or self.plan.noiseless),
        )
        if self.plan is not None or self.setup.seed is not None:
            seed_global_generators(streams, self.world.rank)
        self._total_steps = self.plan.shape.steps if self.plan else 0
        model = self.model = self.create_model(data.num_classes)
        if self.world.size > 1:
            DPDDP(model)  # sends rank 0's weights to the others
        data = self.data = self._with_features(data, model)
        _, criterion = self.loss_function()
        if self.cfg.optimizer.lr == AUTO:
            assert self.plan is not None
            self.cfg.optimizer.lr = planned_learning_rate(self.cfg, self.plan, model)
            self.logger.info("Learning rate by the plan: %.4g.", self.cfg.optimizer.lr)
        optimizer, scheduler = self.optimizer_with_scheduler(model)
        loader = self._build_loader(data, model, criterion, optimizer, streams)
        self._average = self._build_average(model)
        start_epoch = self._resume(saved, model, optimizer, scheduler, loader)
        engine = self._build_engine(data, model, optimizer, criterion, streams)
        wanted = self.cfg.train_args.get("print_args") or ["tst_loss", "tst_acc", "time"]
        self._print_args = allowed_metrics(wanted, self.plan, self.logger)
        log_plan(self.plan, self.logger)
        bar = tqdm(
            total=self.setup.epochs * (len(loader) if not self.plan else 0) + self._total_steps or None,
            unit="step",
            desc=self.setup.strategy.name,
            mininterval=0.5,
            # where the pool is secret, the time of a step follows its size
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps" if self._secret_pool else None,
            disable=not self.show_progress or not self.world.main,
            leave=False,
        )
        with bar:
            for epoch in range(start_epoch + 1, self.setup.epochs + 1):
                try:
                    subset_metrics = self._train_epoch(epoch, loader, engine, model, scheduler, bar)
                except BudgetExceededError as error:
                    if epoch == 1:  # an interrupted run spent it; there is no model to keep
                        raise
                    self.logger.warning("Stopped after epoch %d: %s", epoch - 1, error)
                    break
                if not self.world.main:
                    continue
                if epoch % self.cfg.train_args.get("print_every", 1) == 0 or epoch == self.setup.epochs:
                    self._evaluate_epoch(epoch, data, self._released(model), criterion, subset_metrics)
                if self.cfg.ckpt.get("is_save") and epoch % (self.cfg.ckpt.get("save_every") or 1) == 0:
                    self._save(saved, epoch, model, optimizer, scheduler, loader)
        self.model, self._loader = self._released(model), loader
        self._log_end()

    @property
    def _secret_pool(self) -> bool:
        return self.plan is not None and self.plan.secret_pool

    @property
    def _batch_size(self) -> int:
        size = self.plan.shape.batch_size if self.plan else self.setup.batch_size
        assert size is not None
        return size

    def _build_average(self, model: nn.Module) -> WeightAverage | None:
        decay = self.plan.privacy.ema_decay if self.plan else 0.0
        return WeightAverage(model, decay) if decay else None

    def _released(self, model: nn.Module) -> nn.Module:
        """The model that is evaluated and released: the average of the steps where one is kept."""
        return model if self._average is None else self._average.model

    def _with_features(self, data: Splits, model: nn.Module) -> Splits:
        """Pass every record through the model's fixed input transform once, where it has one."""
        transform = getattr(model, "input_transform", None)
        if transform is None:
            return data
        cache = Path(self.cfg.dataset.get("datadir") or "data").expanduser() / "features"

        def features(part: Dataset) -> Dataset:
            return with_features(part, transform, cache, progress=self.show_progress)

        return Splits(features(data.train), features(data.validation), features(data.test), data.num_classes)

    def _train_epoch(
        self, epoch: int, loader: Any, engine: Any, model: nn.Module, scheduler: Any, bar: tqdm
    ) -> dict[str, float]:
        start = time.perf_counter()
        selected_before = getattr(loader, "selection_seconds", 0.0)
        if self.plan is not None and not self.plan.noiseless:
            planned = self.plan.shape.epochs[epoch - 1]
            if planned.steps:
                # The whole epoch is charged before its first noise: a crash wastes budget, never regains it.
                self.ledger.charge(TRAINING_DATA, planned.phase, self.plan.step_event(planned))
        loss_sum, correct, seen = 0.0, 0, 0
        model.train()
        for x, y, weights in loader:
            x, y, weights = (t.to(self.setup.device) for t in (x, y, weights))
            if self.plan is not None:
                engine.step(x, y, weights)
                if self._average is not None:
                    self._average.update(model)
            else:
                batch_loss, batch_correct = self._cords_step(engine, x, y, weights)
                loss_sum += batch_loss
                correct += batch_correct
                seen += len(y)
            if scheduler is not None and self._scheduler_by_step:
                scheduler.step()
            bar.update()
        if scheduler is not None and not self._scheduler_by_step:
            scheduler.step()
        selecting = getattr(loader, "selection_seconds", 0.0) - selected_before
        self.selection_seconds += selecting
        self.train_seconds += time.perf_counter() - start - selecting
        return {"subtrn_loss": loss_sum, "subtrn_acc": correct / seen} if seen else {}

    def _cords_step(self, engine: PlainEngine, x: Tensor, y: Tensor, weights: Tensor) -> tuple[float, int]:
        """CORDS' own step: a weighted mean over the batch, as its non-private strategies expect."""
        engine.optimizer.zero_grad()
        outputs = engine.model(x)
        losses = engine.criterion(outputs.view_as(y) if self.cfg.is_reg else outputs, y)
        loss = torch.dot(losses.reshape(-1), weights.to(losses) / weights.sum())
        loss.backward()
        engine.optimizer.step()
        correct = 0 if self.cfg.is_reg else int((outputs.argmax(dim=1) == y).sum())
        return float(loss.detach()), correct

    # -- the parts ------------------------------------------------------------------------------------

    def _build_loader(
        self, data: Splits, model: nn.Module, criterion: nn.Module, optimizer: Optimizer, streams: Streams
    ) -> Any:
        dss_args = copy.deepcopy(self.cfg.dss_args)
        dss_args.update(
            model=model,
            loss=criterion,
            eta=self.cfg.optimizer.lr,
            num_classes=data.num_classes,
            num_epochs=self.setup.epochs,
            device=self.setup.device,
        )
        dss_args.setdefault("kappa", 0)
        dss_args.setdefault("select_every", 1)
        if self.plan is None and self.cfg.dataset.get("type"):
            dss_args.data_type = self.cfg.dataset.type

        def sequential(dataset: Dataset) -> DataLoader:
            collate = self.cfg.dataloader.get("collate_fn") or None
            return DataLoader(dataset, batch_size=self._batch_size, shuffle=False, collate_fn=collate)

        return self.setup.strategy.build(
            LoaderContext(
                cfg=self.cfg,
                dss_args=dss_args,
                trainset=data.train,
                validset=data.validation,
                train_loader=sequential(data.train),
                val_loader=sequential(data.validation),
                model=model,
                criterion=criterion,
                optimizer=optimizer,
                logger=self.logger,
                streams=streams,
                plan=self.plan,
                ledger=self.ledger,
            )
        )

    def _build_engine(
        self, data: Splits, model: nn.Module, optimizer: Optimizer, criterion: nn.Module, streams: Streams
    ) -> PlainEngine | PrivateEngine:
        if self.plan is None or self.plan.noiseless:
            return PlainEngine(model, optimizer, criterion, batch_size=self._batch_size)
        privacy = self.plan.privacy
        views = self._views(data, streams)
        mode = privacy.grad_sample_mode
        modes = [m for m in MODES if m not in ("linear", "ghost") or views is None] if mode == "auto" else [mode]
        mode = self.world.share(fastest_mode(model, *self._made_up_batch(data), criterion, modes))
        self.logger.info("Per-example gradients by Opacus, mode %s.", mode)
        return PrivateEngine(
            model,
            optimizer,
            criterion,
            sigma=self.plan.sigma,
            max_grad_norm=privacy.max_grad_norm,
            batch_size=self.plan.shape.batch_size,
            mode=mode,
            noise=noise_source(streams.numpy("noise")),
            normalise=privacy.clipping == "automatic",
            max_physical_batch_size=privacy.max_physical_batch_size,
            views=views,
            distributed=True,
        )

    def _views(self, data: Splits, streams: Streams) -> Views | None:
        assert self.plan is not None
        count = self.plan.privacy.augmentations
        if count == 1:
            return None
        if data.train[0][0].dim() != 3 or hasattr(self.model, "input_transform"):
            raise ConfigError(
                "privacy.augmentations",
                count,
                "only models that read images themselves can be shown other views",
            )
        return Views(count, streams.torch("augmentation", self.setup.device, rank=self.world.rank))

    def _made_up_batch(self, data: Splits) -> tuple[Tensor, Tensor]:
        """Random numbers in the shape of a record: choosing a mode must not read records."""
        shape = data.train[0][0].shape
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(4, *shape, generator=generator).to(self.setup.device)
        return x, torch.arange(4, device=self.setup.device) % data.num_classes

    def _evaluate_epoch(
        self,
        epoch: int,
        data: Splits,
        model: nn.Module,
        criterion: nn.Module,
        subset_metrics: dict[str, float],
    ) -> None:
        row: dict[str, Any] = {"epoch": epoch, "time": self.shown_seconds(self.train_seconds + self.selection_seconds)}
        for prefix, dataset in (("trn", data.train), ("val", data.validation), ("tst", data.test)):
            if f"{prefix}_loss" in self._print_args or f"{prefix}_acc" in self._print_args:
                row[f"{prefix}_loss"], row[f"{prefix}_acc"] = evaluate(
                    model,
                    self._evaluation_batches(dataset),
                    criterion,
                    self.setup.device,
                    is_regression=bool(self.cfg.is_reg),
                )
        row.update({key: value for key, value in subset_metrics.items() if key in self._print_args})
        if self.plan is not None:
            cost = self.spent()
            row["epsilon"] = cost.epsilon
            row.update({f"epsilon_{phase.replace(' ', '_')}": bound.epsilon for phase, bound in cost.phases.items()})
        self.history.rows.append(row)
        self.logger.info(self.history.line(self._print_args, best=toolkit.IS_CHECKOUT))
        if self.output_dir is not None:
            self.history.to_csv(self.output_dir / "metrics.csv")
        if self.cfg.get("report_tune"):
            from ray import tune

            tune.report({"mean_accuracy": row.get("val_acc", row.get("tst_acc", 0.0))})

    def _evaluation_batches(self, dataset: Dataset) -> Iterable[tuple[Tensor, Tensor]]:
        collate = self.cfg.dataloader.get("collate_fn") or None
        if collate is None:
            return sequential_batches(dataset, _EVALUATION_BATCH)
        return DataLoader(dataset, batch_size=_EVALUATION_BATCH, collate_fn=collate)

    # -- checkpoints and ledger -----------------------------------------------------------------------

    def _shared_ledger(self, saved: Path) -> Ledger:
        """Rank 0's ledger; the other ranks keep a copy in memory, which refuses the same charges."""
        resume = bool(self.cfg.ckpt.get("is_load"))
        ledger: Ledger = self.world.share(open_ledger(self.plan, saved, resume=resume) if self.world.main else None)
        if not self.world.main:
            ledger.path = None
        return ledger

    def _save(
        self, path: Path, epoch: int, model: nn.Module, optimizer: Optimizer, scheduler: Any, loader: Any
    ) -> None:
        metrics = {name: self.history.column(name) for name in LABELS if self.history.column(name)}
        state = {
            "epoch": epoch,
            "state_dict": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loss": self.loss_function(),
            "metrics": metrics,
            "rows": self.history.rows,
            "scheduler": scheduler.state_dict() if scheduler is not None else None,
        }
        if self.plan is not None:
            state["ledger"] = self.ledger.id
            # A secret pool is left out: it is recomputed from released values. Any other subset was chosen without
            # looking at the data, or released by a mechanism that was paid for.
            if self._average is not None:
                state["average"] = {"state_dict": self._average.model.state_dict(), "steps": self._average.steps}
            if self.plan.selection.secret_subset:
                pass  # no file may hold it, so the run cannot be resumed (config refuses)
            elif self.plan.secret_pool and loader.strategy.released:
                state["selection"] = loader.strategy.state()
            else:
                state["subset"] = torch.as_tensor(np.asarray(loader.subset_indices))
        save_checkpoint(path, state)
        self.logger.info("Model checkpoint saved at epoch: %d", epoch)

    def _resume(self, path: Path, model: nn.Module, optimizer: Optimizer, scheduler: Any, loader: Any) -> int:
        """Load the checkpoint if the config asks for it and there is one; return the epochs already done."""
        if not self.cfg.ckpt.get("is_load"):
            return 0
        state = self.world.share(load_checkpoint(path, self.setup.device) if path.is_file() else None)
        if state is None:
            self.logger.warning("No checkpoint to load: starting from the beginning.")
            return 0
        if self.plan is not None and state.get("ledger") != self.ledger.id:
            raise AccountingError(
                f"the checkpoint {path.name} was not written under the ledger beside it, so what its weights cost is "
                "unknown; start afresh in another folder"
            )
        model.load_state_dict(state["state_dict"])
        optimizer.load_state_dict(state["optimizer"])
        if scheduler is not None and state.get("scheduler"):
            scheduler.load_state_dict(state["scheduler"])
        self.history.rows = list(state.get("rows", []))
        if self.history.rows:
            self.train_seconds = float(self.history.rows[-1]["time"])
        if hasattr(loader, "cur_epoch"):
            loader.cur_epoch = state["epoch"] + 1
        if "selection" in state:
            loader.restore(state["selection"])
        elif self.plan is not None and "subset" in state:
            loader.subset_indices = state["subset"].numpy()
        if self._average is not None and "average" in state:
            self._average.model.load_state_dict(state["average"]["state_dict"])
            self._average.steps = int(state["average"]["steps"])
        self.logger.info("Loading saved checkpoint model at epoch: %d", state["epoch"])
        return int(state["epoch"])

    def shown_seconds(self, seconds: float) -> float:
        """Seconds as they may be shown: whole ones where the pool is secret, since time follows its size."""
        return float(round(seconds)) if self._secret_pool else seconds

    def published_subset(self) -> list[int]:
        """Indices of the last subset. Only for subsets that were paid for or drawn without looking at the data."""
        if self.plan is None or self.plan.secret_pool:
            raise MechanismError("the pool is secret state of the training mechanism and cannot be published")
        return [int(i) for i in self._loader.subset_indices]

    def spent(self) -> Cost:
        """What has been charged so far, in (ε, δ)."""
        assert self.plan is not None
        return self.plan.spent(self.ledger)

    def _log_end(self) -> None:
        """CORDS' closing lines. Selected indices are logged for its non-private strategies only."""
        if self.plan is None and getattr(self._loader, "selected_idxs", None):
            self.logger.info("Selected Indices: ")
            self.logger.info(self._loader.selected_idxs)
        seconds = self.shown_seconds(self.train_seconds + self.selection_seconds)
        log_results(self.logger, self.cfg.dss_args.type, self.history, self._print_args, seconds)
        if self.plan is not None and not self.plan.noiseless:
            cost, allowed = self.spent(), self.plan.privacy.epsilon
            self.logger.info("Privacy spent: epsilon %.4f of %g at delta %g", cost.epsilon, allowed, cost.delta)


def _entropy(world: World) -> int | None:
    """Secret entropy for all ranks. One process alone asks the operating system for each stream instead."""
    return secrets.randbits(256) if world.size > 1 else None


def _write_nowhere(cfg: DotMap) -> None:
    folder = tempfile.mkdtemp(prefix="cords_dp-rank-")
    cfg.train_args.results_dir = cfg.ckpt.dir = folder
    cfg.ckpt.is_save = False
    atexit.register(shutil.rmtree, folder, ignore_errors=True)


__all__ = ["TrainClassifier"]
