"""Caches calibrated noise on disk: the next calibration of the same events begins there.

Formal guarantee: none is needed, because nothing here is trusted. A cached value only says where a search starts
(`planning.build`); the run's accountant evaluates ε at it, as at every other guess, and it is used where that ε
lies within the budget and dropped where it does not. A lost, wrong or forged file costs time, never privacy.

Held: a digest of public values (events, δ, target, accountant, versions) as the file's name, and the noise in it. The
folder is `files.cache_folder("noise")`, for its owner alone (0700). How many files are in it, and since when, tells how
many plans were made: a tuning, whose trials are secret, keeps theirs in its own folder (`files.caches_in`).
"""

from __future__ import annotations

import contextlib
import hashlib
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import cords_dp
from cords_dp.files import cache_folder, make_owners_folder, write_durably

_LEAST, _MOST = 1e-9, 1e9
_ACCOUNTING_PACKAGES = ("dp-accounting", "prv-accountant", "numpy", "scipy")


def digest(*problem: Any) -> str:
    """Name a calibration by everything that its result follows from."""
    return hashlib.sha256(repr((problem, _versions())).encode()).hexdigest()


def remembered(name: str) -> float | None:
    """Return the cached result, or None."""
    folder = _folder()
    if folder is None:
        return None
    try:
        value = float((folder / name).read_text()[:64])
    except (OSError, ValueError):
        return None
    return value if _LEAST < value < _MOST else None


def remember(name: str, value: float) -> None:
    """Keep a result. Where the folder cannot be written to, nothing is kept."""
    folder = _folder()
    if folder is not None:
        with contextlib.suppress(OSError):
            write_durably(make_owners_folder(folder) / name, repr(value), mode=0o600)


def _folder() -> Path | None:
    return cache_folder("noise")


@lru_cache(maxsize=1)
def _versions() -> tuple[str, ...]:
    return (cords_dp.__version__, *map(_version, _ACCOUNTING_PACKAGES))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
