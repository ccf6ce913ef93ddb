"""Typed errors. Each says what was wrong and what to do about it."""

from __future__ import annotations

from typing import Any


class CordsDPError(Exception):
    """Base of every error that cords_dp raises on purpose."""


class ConfigError(CordsDPError, ValueError):
    """A config value cannot be used. Raised before any data is read."""

    def __init__(self, key: str, value: Any, fix: str):
        self.key, self.value, self.fix = key, value, fix
        super().__init__(f"{key} = {value!r}: {fix}")


class ConfigFileError(CordsDPError, FileNotFoundError):
    """A config file is missing or cannot be parsed."""


class ToolkitMissingError(CordsDPError, ImportError):
    """CORDS, or something it needs, is not installed."""


class DatasetUnavailableError(CordsDPError, RuntimeError):
    """A dataset is neither in the data directory nor to be had from where it is published."""


class UnsupportedModelError(CordsDPError, ValueError):
    """A model cannot be trained with per-example gradients."""


class MechanismError(CordsDPError, RuntimeError):
    """A mechanism was used in a way that would void its guarantee."""


class AccountingError(CordsDPError, RuntimeError):
    """No accountant could bound the privacy loss of a list of events."""


class BudgetExceededError(CordsDPError, RuntimeError):
    """An event was refused because it would exceed the privacy budget."""


class ResultsError(CordsDPError, FileNotFoundError):
    """A folder holds no results to report."""
