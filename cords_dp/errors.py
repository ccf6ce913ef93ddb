"""Typed errors. Each says what was wrong and what to do about it."""

from __future__ import annotations

from typing import Any


def shown(value: object) -> str:
    """A value for an error message: short, and whatever the value is (a live object, a page of text)."""
    try:
        text = repr(value)
    except Exception:  # a broken __repr__ must not hide the error that was to be told
        return f"<{type(value).__name__}>"
    return text if len(text) < 80 else text[:77] + "..."


def how_to_install(extra: str) -> str:
    """Say how an extra is installed. No package index has cords_dp yet, and its name there is anybody's to take."""
    return f"pip install '.[{extra}]' in the clone of cords_dp, or 'FILE.whl[{extra}]' with its wheel"


class CordsDPError(Exception):
    """Base of every error that cords_dp raises on purpose."""


class ConfigError(CordsDPError, ValueError):
    """A config value cannot be used. Raised before any data is read."""

    def __init__(self, key: str, value: Any, fix: str):
        self.key, self.value, self.fix = key, value, fix
        super().__init__(f"{key} = {shown(value)}: {fix}")


class ConfigFileError(CordsDPError, FileNotFoundError):
    """A config file is missing or cannot be parsed."""


class ToolkitMissingError(CordsDPError, ImportError):
    """CORDS, or something it needs, is not installed."""


class MissingExtraError(CordsDPError, ImportError):
    """Something was asked for that needs a package of an extra, which is not installed."""

    def __init__(self, what: str, package: str, extra: str):
        self.what, self.package, self.extra = what, package, extra
        super().__init__(f"{what} needs {package}: {how_to_install(extra)}")


class DatasetUnavailableError(CordsDPError, RuntimeError):
    """A dataset is neither in the data directory nor to be had from where it is published."""


class DataError(CordsDPError, ValueError):
    """Records cannot be trained on. Never says which record, nor what is in it."""


class UnsupportedModelError(CordsDPError, ValueError):
    """A model cannot be trained with per-example gradients."""


class MechanismError(CordsDPError, RuntimeError):
    """A mechanism was used in a way that would void its guarantee."""


class AccountingError(CordsDPError, RuntimeError):
    """No accountant could bound the privacy loss of a list of events."""


class BudgetExceededError(CordsDPError, RuntimeError):
    """An event was refused because it would exceed the privacy budget."""


class StorageError(CordsDPError, OSError):
    """Nothing more can be written: the disk is full, or a quota is used up."""


class LostProcessError(CordsDPError, RuntimeError):
    """A process of a run in several has ended, or does not answer."""


class ModelUnavailableError(CordsDPError, RuntimeError):
    """A folder holds no released model that can be loaded."""


class ResultsError(CordsDPError, FileNotFoundError):
    """A folder holds no results to report."""
