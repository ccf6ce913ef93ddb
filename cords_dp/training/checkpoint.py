"""Checkpoints with CORDS' keys and the ledger beside them: written whole or not at all, read without running code."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch
from dotmap import DotMap
from torch import nn

from cords_dp.accounting import Ledger
from cords_dp.errors import CordsDPError
from cords_dp.plan import PrivacyPlan

_SAFE_CLASSES: list[Any] = [nn.CrossEntropyLoss, nn.MSELoss, set]


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint at ``path`` in one rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    os.replace(temporary, path)


def load_checkpoint(path: Path, device: str) -> dict[str, Any]:
    try:
        with torch.serialization.safe_globals(_SAFE_CLASSES):
            return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise CordsDPError(f"the checkpoint {path.name} cannot be read: {error}") from error


def checkpoint_path(cfg: DotMap, logger: logging.Logger) -> Path:
    """Where CORDS keeps its checkpoint: the log folder's path below ``ckpt.dir``."""
    log_file = next(h.baseFilename for h in logger.handlers if isinstance(h, logging.FileHandler))
    below = Path(log_file).parent.relative_to(Path(cfg.train_args.results_dir).expanduser().resolve())
    return Path(cfg.ckpt.get("dir") or "results").expanduser().resolve() / below / "model.pt"


def open_ledger(plan: PrivacyPlan | None, checkpoint: Path, *, resume: bool) -> Ledger:
    """The ledger beside a checkpoint: the one that is there when a run resumes, or a new one."""
    if plan is None:
        return Ledger()
    path = checkpoint.parent / "ledger.json"
    if resume and path.is_file():
        return Ledger.load(path, plan.entries(), plan.fingerprint)
    if not resume:
        # Another run's releases stay on record, and its weights must not be continued under this ledger.
        _set_aside(path, checkpoint)
    ledger = Ledger(allowance=plan.entries(), path=path, fingerprint=plan.fingerprint)
    ledger.save()
    return ledger


def _set_aside(*paths: Path) -> None:
    """Rename what an earlier run left, all with one number."""
    number = 1
    while any(path.with_name(f"{path.stem}-{number}{path.suffix}").exists() for path in paths):
        number += 1
    for path in paths:
        if path.exists():
            path.rename(path.with_name(f"{path.stem}-{number}{path.suffix}"))
