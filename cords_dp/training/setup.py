"""A config, checked and resolved: what a run needs to know before it touches data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from dotmap import DotMap

from cords_dp.config import (
    AUTO,
    PrivacySettings,
    SelectionSettings,
    check_keys,
    check_training,
    privacy_settings,
    selection_settings,
)
from cords_dp.datasets import check_dataset, known_sizes
from cords_dp.distributed import current_world, local_rank
from cords_dp.errors import ConfigError
from cords_dp.models import check_model
from cords_dp.plan import PrivacyPlan
from cords_dp.planner import build_plan
from cords_dp.registry import Strategy, get_strategy
from cords_dp.selection.scores import get_score
from cords_dp.training.optim import check_optimizer


@dataclass(frozen=True)
class RunSetup:
    """The checked settings of a run."""

    strategy: Strategy
    selection: SelectionSettings
    privacy: PrivacySettings | None
    epochs: int
    batch_size: int | None  # None: the plan chooses
    device: str
    seed: int | None

    def plan(self, n: int, n_validation: int) -> PrivacyPlan | None:
        """The privacy plan for public sizes, or None for a strategy that is not private."""
        if self.privacy is None:
            return None
        return build_plan(
            self.strategy.name,
            self.privacy,
            self.selection,
            epochs=self.epochs,
            batch_size=self.batch_size,
            n=n,
            n_validation=n_validation,
            whole=self.strategy.whole,
            selects=self.strategy.selects,
        )


def check_config(cfg: DotMap, *, own_data: bool = False, plan: bool = True) -> RunSetup:
    """Check everything that can be checked without data.

    ``own_data``: datasets will be handed to ``train``. ``plan``: also make the plan, which takes seconds.
    """
    strategy = get_strategy((cfg.get("dss_args") or {}).get("type"))
    check_keys(cfg, private=strategy.private)
    epochs, batch_size = check_training(cfg)
    check_optimizer(cfg)
    check_model(cfg)
    for key, value in (("dataloader.batch_size", batch_size), ("optimizer.lr", cfg.optimizer.lr)):
        if value in (None, AUTO) and not strategy.private:
            raise ConfigError(key, AUTO, "follows the privacy plan, which only private strategies have; give a number")
    loss = cfg.loss.get("type")
    if loss not in ("CrossEntropyLoss", "MeanSquaredLoss"):
        raise ConfigError("loss.type", loss, "must be CrossEntropyLoss or MeanSquaredLoss")
    if not own_data:
        check_dataset(cfg, private=strategy.private)
    if strategy.private and (cfg.get("is_reg") or loss != "CrossEntropyLoss"):
        raise ConfigError("loss.type", loss, "private strategies train classifiers: CrossEntropyLoss")
    setup = RunSetup(
        strategy=strategy,
        selection=_selection(cfg, strategy),
        privacy=privacy_settings(cfg) if strategy.private else None,
        epochs=epochs,
        batch_size=batch_size,
        device=_device(cfg.train_args.get("device")),
        seed=_seed(cfg.train_args.get("seed")),
    )
    if plan and not own_data and strategy.private and (sizes := known_sizes(cfg)) is not None:
        setup.plan(*sizes)  # batch size, delta and selection rules depend on n
    return setup


def as_dotmaps(cfg: DotMap) -> None:
    """Sections may be set as plain dicts; CORDS reads them by attribute."""
    for name, section in list(cfg.items()):
        if type(section) is dict:
            cfg[name] = DotMap(section)


def fill_defaults(cfg: DotMap, whole: bool) -> None:
    """Values that CORDS' constructor reads and a short config leaves out."""
    cfg.setdefault("setting", "SL")
    cfg.setdefault("is_reg", False)
    if whole:
        cfg.dss_args.setdefault("fraction", 1.0)
    cfg.dss_args.setdefault("select_every", 1)
    if "ckpt" not in cfg:
        cfg.ckpt = DotMap(is_load=False, is_save=False, dir="results/", save_every=1)
    cfg.train_args.setdefault("results_dir", "results/")
    cfg.train_args.setdefault("run", 1)
    cfg.dataset.setdefault("name", "custom")


def _selection(cfg: DotMap, strategy: Strategy) -> SelectionSettings:
    if not strategy.private:
        return SelectionSettings()
    settings = selection_settings(cfg, selects=strategy.selects, whole=strategy.whole)
    if not strategy.selects:
        return settings
    return replace(settings, reads_validation=get_score(settings.score).uses_validation)


def _device(name: Any) -> str:
    wanted = str(name or "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise ConfigError("train_args.device", wanted, "must be cpu, cuda or cuda:N") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        return "cpu"
    if device.type == "cuda" and current_world().size > 1:
        return f"cuda:{local_rank()}"
    return wanted


def _seed(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigError("train_args.seed", value, "must be a whole number of at least 0, or left out")
    return value
