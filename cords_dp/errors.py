"""Typed errors. Each says what was wrong and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


def shown(value: object) -> str:
    """Shorten a value for an error message, whatever the value is (a live object, a page of text)."""
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
    """Config values cannot be used. Raised before any data is read.

    ``problems`` holds an error for each of them; key, value and fix are those of the first.
    """

    def __init__(self, key: str, value: Any, fix: str, *, others: Sequence[CordsDPError] = ()):
        self.key, self.value, self.fix, self._others = key, value, fix, tuple(others)
        texts = [f"{key} = {shown(value)}: {fix}", *map(str, others)]
        super().__init__(texts[0] if not others else f"{len(texts)} problems:\n" + numbered(texts))

    @property
    def problems(self) -> tuple[CordsDPError, ...]:
        return (ConfigError(self.key, self.value, self.fix), *self._others) if self._others else (self,)


def numbered(texts: Sequence[str]) -> str:
    return "\n".join(f"{number}. {text}" for number, text in enumerate(texts, 1))


class Problems:
    """Collects the errors of checks, so that a config is refused once, for all that is wrong with it.

    A key is reported once: what a later check says about it, or about a key inside of it, follows from the first.
    """

    def __init__(self) -> None:
        self.found: list[CordsDPError] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note an error of ours that ends the block."""
        try:
            yield
        except ConfigError as error:
            for problem in error.problems:
                self.note(problem)
        except CordsDPError as error:  # of a model that cannot be private, or of a file: it names no key
            self.note(error)

    def note(self, error: CordsDPError) -> None:
        if not (isinstance(error, ConfigError) and self.about(error.key)):
            self.found.append(error)

    def about(self, key: str) -> bool:
        """Return whether there is a problem with this key, or with the section or dict that it stands in."""
        known = (problem.key for problem in self.found if isinstance(problem, ConfigError))
        return any(key == name or key.startswith(f"{name}.") for name in known)

    def refuse(self) -> None:
        """Raise what was noted, if anything: a single error as it is, several as one `ConfigError`."""
        first = next((error for error in self.found if isinstance(error, ConfigError)), None)
        if first is None or len(self.found) == 1:
            for error in self.found:
                raise error
            return
        others = [error for error in self.found if error is not first]
        raise ConfigError(first.key, first.value, first.fix, others=others) from first


class PrivacyWarning(UserWarning):
    """Something is allowed that the guarantee does not cover, or that adds up."""


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


class OwnerKeyError(CordsDPError, RuntimeError):
    """The key of an owner's digests is missing or damaged, or others can read it."""


class LostProcessError(CordsDPError, RuntimeError):
    """A process of a run in several has ended, or does not answer."""


class ModelUnavailableError(CordsDPError, RuntimeError):
    """A folder holds no released model that can be loaded."""


class ResultsError(CordsDPError, FileNotFoundError):
    """A folder holds no results to report."""
