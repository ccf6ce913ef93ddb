"""Opens a private run on its records: account, ledger, what binds it to them, and its randomness.

The ledger lies beside the checkpoint, where an earlier attempt may have left one.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cords_dp.accounting import TRAINING_DATA, Account, Ledger, Reservation, epsilon_bound, ledger_under
from cords_dp.accounting.journal import locked
from cords_dp.config import config_digest
from cords_dp.data.digests import RecordDigests, bound_records, key_digest, owner_key
from cords_dp.data.handed_over import as_records
from cords_dp.data.record_set import Splits, cut_splits
from cords_dp.errors import AccountingError, ConfigError, DataError, MechanismError
from cords_dp.files import remove_stale
from cords_dp.noise.generators import Streams
from cords_dp.planning import Mechanism, PrivacyPlan
from cords_dp.planning.mechanism import registered_mechanisms
from cords_dp.planning.statement import STATEMENT
from cords_dp.processes import World
from cords_dp.training.provenance import about_files

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


def own_part(session: PrivateSession, data: Splits, binding: str) -> Splits:
    """Return this process's part of the sets.

    Processes with other configs or files are refused: they could hold one record twice. All of this is public.
    """
    run, plan, world = session.run, session.plan, session.world
    part = cut_splits(data.each(as_records), run.share(world))
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


# --- the ledger beside a checkpoint -----------------------------------------------------------------------------------


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


def refuse_unlike(data: Splits) -> None:
    """Refuse records of V that cannot be in one batch with D's: other shapes or kinds of numbers."""
    for d, v in zip(as_records(data.train).no_records(), as_records(data.validation).no_records(), strict=True):
        if d.shape[1:] != v.shape[1:] or d.is_floating_point() != v.is_floating_point():
            raise DataError(
                f"records of the validation set have shape {tuple(v.shape[1:])} and those of the training set "
                f"{tuple(d.shape[1:])}, or another kind of numbers, and steps are taken on both: make them alike, or "
                "leave V out of the steps with privacy.train_on_validation=False"
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
