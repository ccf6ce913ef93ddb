"""Checkpoints with CORDS' keys and the ledger beside them: written whole or not at all, read without running code."""

from __future__ import annotations

import io
import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from cords_dp.accounting import TRAINING_DATA, Ledger, Reservation, epsilon_bound, ledger_under
from cords_dp.accounting.journal import locked
from cords_dp.errors import AccountingError, CordsDPError
from cords_dp.files import remove_stale, write_durably
from cords_dp.models.losses import CHECKPOINT_CLASSES
from cords_dp.planning import PrivacyPlan
from cords_dp.planning.statement import STATEMENT


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


def ledger_path(checkpoint: Path) -> Path:
    return checkpoint.parent / "ledger.jsonl"


def run_id(checkpoint: Path, plan: PrivacyPlan, *, resume: bool) -> str:
    """Return the name of the run in its ledger and in an account: that of the run which is resumed, or a new one."""
    path = ledger_path(checkpoint)
    return Ledger.id_of(path, plan.fingerprint) if resume and path.is_file() else secrets.token_hex(8)


def open_ledger(
    plan: PrivacyPlan,
    checkpoint: Path,
    *,
    resume: bool,
    binding: str,
    name: str,
    reservation: Reservation | None = None,
) -> Ledger:
    """Open the ledger beside a checkpoint: the one that is there when a run resumes, or a new one."""
    path = ledger_path(checkpoint)
    if path.parent.is_dir():
        remove_stale(path.parent)  # an attempt that was killed in its first write has left no ledger, but its beginning
    with locked(path):  # a ledger that another process writes is not moved away from it
        if not resume:
            # Another run's releases stay on record, and its weights must not be continued under this ledger.
            _set_aside(path, checkpoint)
        return ledger_under(
            reservation, path, plan.entries(), fingerprint=plan.fingerprint, binding=binding, name=name, resume=resume
        )


def refuse_foreign(state: Mapping[str, Any], ledger: Ledger) -> None:
    """Refuse a checkpoint that was written under another ledger."""
    if state.get("ledger") != ledger.id:
        raise AccountingError(
            "the checkpoint was not written under the ledger beside it, so what its weights cost is "
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


def spent_before(checkpoint: Path, plan: PrivacyPlan | None, folders: Sequence[Path]) -> str | None:
    """Return a warning about what an unfinished earlier run has spent; None where there is no such run.

    A run that ended has left a statement with the name of its ledger in one of ``folders``.
    """
    path = ledger_path(checkpoint)
    if plan is None or plan.noiseless or not path.is_file():
        return None
    try:
        earlier = Ledger.read(path)
    except AccountingError as error:  # it will be set aside all the same
        return f"What an earlier run in this folder has spent is unknown: {error}."
    if not earlier.charges or any(_states(folder, earlier) for folder in folders):
        return None
    if earlier.fingerprint == plan.fingerprint:
        spent, with_what = plan.spent(earlier, quick=True).training_data, ""
    else:  # this plan's accounting is not that run's: its subset may be secret, say
        spent = epsilon_bound(earlier.events(TRAINING_DATA), plan.delta, "quick")
        with_what = ", with the config of that run,"
    words = (
        f"An earlier run in this folder did not end (it left no statement) and has spent epsilon {spent.epsilon:.4f} "
        f"on D, at delta {plan.delta:.3g}. This run begins anew and adds to that"
    )
    if plan.subset.secret_subset:  # cannot be resumed
        return f"{words}."
    return f"{words}; --resume (ckpt.is_load){with_what} would have continued it."


def _states(folder: Path, ledger: Ledger) -> bool:
    """Return whether the statement in this folder is that of the run with this ledger."""
    try:
        report = json.loads((folder / STATEMENT[0]).read_text())
        return report["ledger"]["id"] == ledger.id
    except (OSError, ValueError, KeyError, TypeError):
        return False
