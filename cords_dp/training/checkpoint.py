"""Saves and loads checkpoints with CORDS' keys: written whole or not at all, read without running code."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cords_dp.accounting import Ledger
from cords_dp.errors import CordsDPError
from cords_dp.files import write_durably
from cords_dp.models.losses import CHECKPOINT_CLASSES
from cords_dp.planning import PrivacyPlan
from cords_dp.training.metrics import History
from cords_dp.training.opening import ledger_path
from cords_dp.training.run import Run
from cords_dp.training.session import Session


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint at ``path`` in one rename."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_durably(path, buffer.getvalue())


def load_checkpoint(path: Path, device: str) -> dict[str, Any]:
    try:
        with torch.serialization.safe_globals(CHECKPOINT_CLASSES):
            return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise CordsDPError(f"the checkpoint {path.name} cannot be read: {error}") from error


def log_folder(logger: logging.Logger) -> Path:
    """Return the folder of a logger's file."""
    return Path(next(h.baseFilename for h in logger.handlers if isinstance(h, logging.FileHandler))).parent


def checkpoint_path(config: Mapping[str, Any], logger: logging.Logger) -> Path:
    """Return where CORDS keeps its checkpoint: the log folder's path below ``ckpt.dir``."""
    below = log_folder(logger).relative_to(Path(config["train_args"]["results_dir"]).expanduser().resolve())
    return Path(config["ckpt"].get("dir") or "results").expanduser().resolve() / below / "model.pt"


def save_run(path: Path, epoch: int, session: Session, history: History, loss: tuple[nn.Module, nn.Module]) -> None:
    """Save a run after an epoch: what CORDS keeps, and what was measured so far."""
    measured = {"metrics": history.columns(), "rows": history.rows}
    save_checkpoint(path, {"epoch": epoch, "loss": loss, **measured, **session.state()})
    session.logger.info("Model checkpoint saved at epoch: %d", epoch)


def load_run(path: Path | None, session: Session, history: History) -> int:
    """Load the checkpoint if the config asks for it and there is one; return the epochs already done."""
    if not session.run.resumes:
        return 0
    state = load_checkpoint(path, session.run.device) if path is not None and path.is_file() else None
    state = session.world.share(state)
    if state is None:
        session.logger.warning("No checkpoint to load: starting from the beginning.")
        return 0
    session.load(state)
    history.rows = list(state.get("rows", []))
    session.train_seconds = float(history.last("time", 0.0))
    session.logger.info("Loading saved checkpoint model at epoch: %d", state["epoch"])
    return int(state["epoch"])


def began_with_validation(run: Run, plan: PrivacyPlan | None, checkpoint: Path | None) -> bool:
    """Return whether the run that is resumed began with V split off, by a version that always did.

    Its ledger was opened under another plan then: the one for D without V's records is tried, or the run refused.
    """
    path = None if checkpoint is None else ledger_path(checkpoint)
    if plan is None or not (run.whole and run.resumes) or path is None or not path.is_file():
        return False
    return Ledger.read(path).fingerprint != plan.fingerprint
