"""What a statement says about a run besides its guarantee: which data, when, with what, which model, which account.

Released are public values: names of files without their folders, numbers of records, a date, versions, the total of an
account and how much of it plans hold; the digest of the model, which is released itself; and digests of the data's
files that only their owner can check (`data.digests`).
"""

from __future__ import annotations

import datetime
import hashlib
import io
import platform
import secrets
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml
from torch import nn

from cords_dp.accounting import Reservation
from cords_dp.config import to_plain
from cords_dp.data.digests import owner_digest, owner_key
from cords_dp.data.handed_over import as_records
from cords_dp.data.record_set import Splits
from cords_dp.data.sources.base import find_source
from cords_dp.errors import OwnerKeyError

if TYPE_CHECKING:
    from cords_dp.planning import PrivacyPlan
    from cords_dp.training.private_session import PrivateSession
    from cords_dp.training.trainer import TrainClassifier

_FILES = ("path", "labels", "owner", "validation_path", "test_path")  # keys of ``dataset`` that name files of records
_PACKAGES = ("cords-dp", "cords", "torch", "opacus", "prv-accountant", "dp-accounting")


def about_run(trainer: TrainClassifier, folder: Path) -> dict[str, Any]:
    """Collect what the statement in ``folder`` says about the run. No record is read."""
    assert trainer.data is not None
    return {
        **about_now(getattr(trainer.session, "reservation", None)),
        "data": {**trainer.session.data_files, **counted(record_counts(trainer.data), trainer.plan)},
        "model": _about_model(trainer, folder),
        "config": None if trainer.output_dir is None else _about_config(trainer),
    }


def about_now(reservation: Reservation | None) -> dict[str, Any]:
    """Return the day, the versions, and the account with what is left of it."""
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "versions": versions(),
        "account": None if reservation is None else _about_account(reservation),
    }


def about_handed_over(session: PrivateSession) -> dict[str, Any]:
    """Say the same of a session whose records a program has handed over, and whose model it keeps itself."""
    sizes = {"D": session.plan.shape.n, "V": session.plan.shape.n_validation}
    counts = counted({name: size for name, size in sizes.items() if size}, session.plan)
    data = {**about_files({}, built=False), **counts}
    return {**about_now(session.reservation), "data": data, "model": None}


def about_files(section: Mapping[str, Any], *, built: bool, salt: str | None = None) -> dict[str, Any]:
    """Name the data, and digest the owner's files as they are now. Call it when they are read.

    Published sets are known by their names; records that a script has handed over have none. ``salt``: that of the
    run's first attempt.
    """
    if not built:
        return {"name": "handed over by the program that trained", "files": []}
    name = str(section.get("name"))
    paths = [(key, Path(section[key]).expanduser()) for key in _FILES if isinstance(section.get(key), (str, Path))]
    paths = [(key, path) for key, path in paths if key != "owner" or path.suffix == ".npy"]  # else a column, or a rule
    if find_source(name) is None or not paths:
        return {"name": name, "files": []}
    salt = salt or secrets.token_hex(8)
    return {"name": name, "files": [_about_file(key, path, salt) for key, path in paths], "salt": salt}


def _about_file(key: str, path: Path, salt: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"key": f"dataset.{key}", "file": path.name}
    try:
        return {**facts, "digest": owner_digest(path, owner_key(), salt)}
    except OwnerKeyError as error:
        return {**facts, "digest": None, "no_digest": str(error)}
    except OSError as error:  # it was read before, perhaps from a copy
        return {**facts, "digest": None, "no_digest": error.strerror or "it cannot be read"}


def record_counts(data: Splits) -> dict[str, int]:
    """Return how many units of privacy D, V and the test set have, which is public: records, or owners of them.

    A V that was not split off is left out.
    """
    sizes = {name: as_records(part).units for name, part in zip(("D", "V", "test"), data[:3], strict=True)}
    return {name: size for name, size in sizes.items() if size or name != "V"}


def counted(counts: dict[str, int], plan: PrivacyPlan | None) -> dict[str, dict[str, int]]:
    """Say what was counted. How many records owners have is private."""
    return {"owners" if plan is not None and plan.privacy.unit == "owner" else "records": counts}


def _about_model(trainer: TrainClassifier, folder: Path) -> dict[str, str] | None:
    """Name the file of weights: of a run's own folder the one that is written next, else a checkpoint that is there."""
    if trainer.output_dir is not None:
        assert trainer.model is not None
        return about_weights(weights(trainer.model))
    checkpoint = folder / "model.pt"
    return about_weights(checkpoint.read_bytes()) if checkpoint.is_file() else None


def _about_config(trainer: TrainClassifier) -> dict[str, str]:
    """Name the config.yaml that is written into a run's own folder next."""
    return {"file": "config.yaml", "sha256": hashlib.sha256(config_text(trainer).encode()).hexdigest()}


def config_text(trainer: TrainClassifier) -> str:
    """Return the content of ``config.yaml``: the config as it was resolved."""
    return str(yaml.safe_dump(to_plain(trainer.run.config), sort_keys=False))


def about_weights(content: bytes) -> dict[str, str]:
    """Name a model.pt by its content."""
    return {"file": "model.pt", "sha256": hashlib.sha256(content).hexdigest()}


def weights(model: nn.Module) -> bytes:
    """Return the content of ``model.pt``: a plain state_dict."""
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    return buffer.getvalue()


def _about_account(reservation: Reservation) -> dict[str, Any]:
    """Describe the account with this run's whole plan in it; what a run gives back at its end comes on top."""
    account = reservation.account
    holdings = account.holdings()
    held = account.share_of(holdings)
    return {
        "file": account.path.name,
        "id": account.id,
        "run": reservation.run,
        "epsilon": account.epsilon,
        "delta": account.delta,
        "runs": len(holdings),
        "share_held": held,
        "share_left": max(0.0, 1 - held),
    }


def versions() -> dict[str, str]:
    """Return the versions of what a result depends on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
