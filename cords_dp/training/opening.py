"""Opens a private run on its records: the account, the ledger, what binds it to them, and its randomness."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cords_dp.accounting import Account, Ledger, Reservation
from cords_dp.config import config_digest
from cords_dp.data.digests import RecordDigests, bound_records, key_digest, owner_key
from cords_dp.data.handed_over import as_records
from cords_dp.data.record_set import Share, Splits, cut_splits
from cords_dp.errors import AccountingError, ConfigError, MechanismError
from cords_dp.noise.generators import Streams
from cords_dp.planning import Mechanism, PrivacyPlan
from cords_dp.planning.mechanism import registered_mechanisms
from cords_dp.processes import World
from cords_dp.training.checkpoint import open_ledger
from cords_dp.training.provenance import about_files
from cords_dp.training.run import Run

if TYPE_CHECKING:
    from cords_dp.training.private_session import PrivateSession

_RECORDS, _FILES = "records", "files"  # among the notes of a ledger


def reserved(plan: PrivacyPlan, name: str) -> Reservation | None:
    """Set a run's plan aside in the account of the data, if there is one, before a record is read."""
    if plan.privacy.account is None or plan.noiseless:
        return None
    account = Account.read(Path(plan.privacy.account).expanduser())
    return account.reserve(name, plan.entries(), unit=plan.privacy.unit)


def refuse_what_needs_all_records(mechanism: Mechanism | None) -> None:
    """Refuse a mechanism that compares records: every process holds its own only."""
    if mechanism is not None and not mechanism.sharded:
        others = ", ".join(repr(m.name) for m in registered_mechanisms() if m.sharded)
        raise ConfigError(
            "dss_args.mechanism",
            mechanism.name,
            "compares all records with each other, and of several processes each holds its own only; train in one "
            f"process, or use one of {others}",
        )


def share_of(world: World, run: Run) -> Share:
    """Return what this process holds of the records."""
    weights = run.config["train_args"].get("shares") or ()
    return Share() if world.size == 1 else Share(world.rank, world.size, tuple(weights))


def own_part(session: PrivateSession, data: Splits, binding: str) -> Splits:
    """Return this process's part of the sets.

    Processes with other configs or files are refused: they could hold one record twice. All of this is public.
    """
    run, plan, world = session.run, session.plan, session.world
    part = cut_splits(data.each(as_records), share_of(world, run))
    if world.size > 1:
        facts = [binding, plan.fingerprint, config_digest(run.config), run.config["train_args"].get("shares")]
        world.refuse_disagreement(facts, "config or data", "give all of them the same files")
        _refuse_overlap(part, plan, world)
    return part


def _refuse_overlap(part: Splits, plan: PrivacyPlan, world: World) -> None:
    """Refuse parts that do not add up to what was planned for."""
    sets, planned = [part.train, part.validation], [plan.shape.n, plan.shape.n_validation]
    if plan.sigma_test is not None:
        sets, planned = [*sets, part.test], [*planned, plan.shape.n_test]
    whole = planned if plan.privacy.unit == "record" else [s.total for s in sets]
    if [s.units for s in sets] != planned or world.total(np.array([len(s) for s in sets])).tolist() != whole:
        raise MechanismError("the parts of the processes do not add up to the records that were planned for")


def opened_ledger(session: PrivateSession, binding: str) -> Ledger:
    """Open rank 0's ledger; the other ranks keep a copy in memory, which refuses the same charges."""
    plan, world, ledger = session.plan, session.world, None
    if session.checkpoint is not None:
        ledger = open_ledger(
            plan,
            session.checkpoint,
            resume=session.run.resumes,
            binding=binding,
            name=session.name,
            reservation=session.reservation,
        )
    elif world.main:
        ledger = Ledger(plan.entries(), fingerprint=plan.fingerprint, binding=binding, id=session.name)
    ledger = world.share(ledger)
    assert ledger is not None
    if not world.main:
        ledger.path = None
    return ledger


def bound_files(session: PrivateSession) -> Mapping[str, Any]:
    """Name the owner's files with their digests, and refuse to resume on files that were changed.

    Other contents may deal other owners or rows to D, V and the test set: a record would pay on two of them. Where the
    owner's key is missing, or another one than when the run began, this cannot be told.
    """
    noted = session.ledger.notes.get(_FILES, "").split()
    about = about_files(session.run.config["dataset"], built=session.built, salt=noted[0] if noted else None)
    digests = [file["digest"] for file in about["files"]]
    if not digests or None in digests:
        return about
    found = [about["salt"], key_digest(owner_key(), about["salt"]), *digests]
    if not noted:
        session.ledger.note(_FILES, " ".join(found))
    elif noted[1] != found[1]:
        session.logger.warning("The owner's key is another than when the run began: its files cannot be compared.")
    elif noted != found:
        raise AccountingError(
            "a file of the dataset was changed since the run began: what was charged does not cover other records; "
            "resume with that run's data, or start afresh in another folder"
        )
    return about


def digests_of(session: PrivateSession, data: Splits) -> list[RecordDigests]:
    """Bind the run to the records that were handed over when it began.

    Several processes each hold a part of the records, which may be another when they resume: there the sets are
    bound by kind and size alone.
    """
    ledger = session.ledger
    if ledger.path is None or session.world.size > 1 or not session.resumable:
        return []
    resumed, tested = _RECORDS in ledger.notes, session.plan.sigma_test is not None
    digests = bound_records(data, ledger.path.parent, resumed=resumed, tested=tested)
    if digests and not resumed:
        for one in digests:
            one.save()
        ledger.note(_RECORDS, "bound")
    return digests


def drawn_streams(session: PrivateSession) -> Streams:
    """Return streams of this attempt's own, keyed by plan and config.

    One process alone asks the operating system for each stream; several share one secret.
    """
    plan, run, world = session.plan, session.run, session.world
    entropy = secrets.randbits(256) if world.size > 1 else None
    free = run.seed is not None and plan.noiseless  # there is nothing to protect
    return Streams(
        run.seed,
        attempt=session.ledger.attempts,
        context=f"{plan.fingerprint} {config_digest(run.config)}",
        entropy=world.share(entropy),
        reproducible=free or plan.privacy.reproducible_noise,
    )
