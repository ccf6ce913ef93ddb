"""Checkpoints with CORDS' keys and the ledger beside them: written whole or not at all, read without running code."""

from __future__ import annotations

import io
import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from cords_dp.accounting import Ledger
from cords_dp.errors import AccountingError, CordsDPError
from cords_dp.files import remove_stale, write_durably
from cords_dp.planning import PrivacyPlan
from cords_dp.training.averaging import WeightAverage
from cords_dp.training.evaluation import History
from cords_dp.training.losses import RecordMSELoss

_SAFE_CLASSES: list[Any] = [nn.CrossEntropyLoss, nn.MSELoss, RecordMSELoss, set]


@dataclass
class Progress:
    """What training has come to, and what a checkpoint holds of it: released and public values only."""

    model: nn.Module
    optimizer: Optimizer
    scheduler: Any
    source: Any  # the strategy's loader or pool source
    average: WeightAverage | None
    history: History
    branch: int | None = None  # of the plan, once a release has chosen it

    def to_dict(self, epoch: int, loss: Any, ledger: Ledger | None) -> dict[str, Any]:
        """CORDS' keys, and ours. ``ledger`` is None for a run that is not private."""
        state: dict[str, Any] = {
            "epoch": epoch,
            "state_dict": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loss": loss,
            "metrics": self.history.columns(),
            "rows": self.history.rows,
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else None,
        }
        if ledger is not None:
            state["ledger"] = ledger.id
            selection = self.source.state() if hasattr(self.source, "state") else None
            if selection is not None:
                state["selection"] = selection
            if self.branch is not None:
                state["branch"] = self.branch
        if self.average is not None:
            state["average"] = {"state_dict": self.average.model.state_dict(), "steps": self.average.steps}
        return state

    def load(self, state: Mapping[str, Any]) -> int:
        """Take over a checkpoint; return the epochs already done."""
        self.model.load_state_dict(state["state_dict"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None and state.get("scheduler"):
            self.scheduler.load_state_dict(state["scheduler"])
        self.history.rows = list(state.get("rows", []))
        if "selection" in state:
            self.source.restore(state["selection"])
        self.branch = state.get("branch")
        if hasattr(self.source, "cur_epoch"):  # CORDS' loaders count epochs themselves
            self.source.cur_epoch = state["epoch"] + 1
        if self.average is not None and "average" in state:
            self.average.model.load_state_dict(state["average"]["state_dict"])
            self.average.steps = int(state["average"]["steps"])
        return int(state["epoch"])


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint at ``path`` in one rename."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_durably(path, buffer.getvalue())


def load_checkpoint(path: Path, device: str) -> dict[str, Any]:
    try:
        with torch.serialization.safe_globals(_SAFE_CLASSES):
            return torch.load(path, map_location=device, weights_only=True)
    except Exception as error:
        raise CordsDPError(f"the checkpoint {path.name} cannot be read: {error}") from error


def checkpoint_path(config: Mapping[str, Any], logger: logging.Logger) -> Path:
    """Where CORDS keeps its checkpoint: the log folder's path below ``ckpt.dir``."""
    log_file = next(h.baseFilename for h in logger.handlers if isinstance(h, logging.FileHandler))
    below = Path(log_file).parent.relative_to(Path(config["train_args"]["results_dir"]).expanduser().resolve())
    return Path(config["ckpt"].get("dir") or "results").expanduser().resolve() / below / "model.pt"


def ledger_path(checkpoint: Path) -> Path:
    return checkpoint.parent / "ledger.jsonl"


def run_id(checkpoint: Path, *, resume: bool) -> str:
    """The name of the run in its ledger and in an account: that of the run which is resumed, or a new one."""
    path = ledger_path(checkpoint)
    return Ledger.id_of(path) if resume and path.is_file() else secrets.token_hex(8)


def open_ledger(plan: PrivacyPlan | None, checkpoint: Path, *, resume: bool, binding: str, name: str) -> Ledger:
    """The ledger beside a checkpoint: the one that is there when a run resumes, or a new one."""
    if plan is None:
        return Ledger()
    path = ledger_path(checkpoint)
    if path.parent.is_dir():
        remove_stale(path.parent)  # an attempt that was killed in its first write has left no ledger, but its beginning
    if resume and path.is_file():
        return Ledger.load(path, plan.entries(), plan.fingerprint, binding)
    if not resume:
        # Another run's releases stay on record, and its weights must not be continued under this ledger.
        _set_aside(path, checkpoint)
    ledger = Ledger(allowance=plan.entries(), path=path, fingerprint=plan.fingerprint, binding=binding, id=name)
    ledger.save()
    return ledger


def refuse_foreign(state: Mapping[str, Any], ledger: Ledger, path: Path) -> None:
    """A checkpoint is continued only under the ledger that it was written under."""
    if state.get("ledger") != ledger.id:
        raise AccountingError(
            f"the checkpoint {path.name} was not written under the ledger beside it, so what its weights cost is "
            "unknown; start afresh in another folder"
        )


def _set_aside(*paths: Path) -> None:
    """Rename what an earlier run left, all with one number."""
    number = 1
    while any(path.with_name(f"{path.stem}-{number}{path.suffix}").exists() for path in paths):
        number += 1
    for path in paths:
        if path.exists():
            path.rename(path.with_name(f"{path.stem}-{number}{path.suffix}"))
