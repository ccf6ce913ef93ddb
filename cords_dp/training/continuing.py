"""Under which ledger and account a run is, and from where it goes on."""

from __future__ import annotations

import logging
from pathlib import Path

from cords_dp.accounting import Account, Ledger, Reservation
from cords_dp.distributed import World
from cords_dp.planning import PrivacyPlan
from cords_dp.training.checkpoint import Progress, load_checkpoint, open_ledger, refuse_foreign
from cords_dp.training.run import Run


def resumes(run: Run) -> bool:
    return bool(run.config["ckpt"].get("is_load"))


def reserved(plan: PrivacyPlan, name: str) -> Reservation | None:
    """Set the plan aside in the account of the data, if there is one, before a record is read."""
    if plan.privacy.account is not None and not plan.noiseless:
        account = Account.read(Path(plan.privacy.account).expanduser())
        return account.reserve(name, plan.entries())
    return None


def shared_ledger(
    run: Run, plan: PrivacyPlan | None, world: World, *, saved: Path | None, binding: str, name: str
) -> Ledger:
    """Rank 0's ledger; the other ranks keep a copy in memory, which refuses the same charges."""
    ledger: Ledger | None = None
    if saved is not None:
        ledger = open_ledger(plan, saved, resume=resumes(run), binding=binding, name=name)
    ledger = world.share(ledger)
    assert ledger is not None
    if not world.main:
        ledger.path = None
    return ledger


def continued(
    progress: Progress,
    run: Run,
    plan: PrivacyPlan | None,
    ledger: Ledger,
    world: World,
    *,
    saved: Path | None,
    logger: logging.Logger,
) -> int:
    """Load the checkpoint if the config asks for it and there is one; return the epochs already done."""
    if not resumes(run):
        return 0
    found = saved is not None and saved.is_file()
    state = world.share(load_checkpoint(saved, run.device) if found else None)  # type: ignore[arg-type]
    if state is None:
        logger.warning("No checkpoint to load: starting from the beginning.")
        return 0
    if plan is not None:
        refuse_foreign(state, ledger, saved or Path("model.pt"))
    epoch = progress.load(state)
    logger.info("Loading saved checkpoint model at epoch: %d", epoch)
    return epoch
