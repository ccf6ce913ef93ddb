"""Checks of single values, and `Key`, which joins a check to a default and a meaning.

Each check returns the value or raises an error that names the key, the value and the fix.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from cords_dp.errors import ConfigError, Problems

Check = Callable[[str, Any], Any]


def anything(key: str, value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Key:
    """One key of a config: the check of its value, its default and what it means.

    default: None where the key may be left out and something else decides; MISSING where it must be given.
    """

    check: Check
    default: Any = None
    doc: str = ""

    def field(self) -> Any:
        """Make it a field of a dataclass: ``looks: int = Key(whole, 3, "how many looks").field()``."""
        return field(default=self.default, metadata={"key": self})


def keys_of(kind: type) -> dict[str, Key]:
    """Return the keys that the fields of a dataclass are; a plain field takes any value."""
    return {f.name: f.metadata.get("key", Key(anything, f.default)) for f in fields(kind)}


def check_keys(section: str, values: Mapping[str, Any], keys: Mapping[str, Key]) -> None:
    """Check the values that are given, and report all that are wrong. Other keys are left alone."""
    problems = Problems()
    for name, key in keys.items():
        if values.get(name) is not None:
            with problems.noted():
                key.check(f"{section}.{name}" if section else name, values[name])
    problems.refuse()


def number(
    key: str,
    value: Any,
    *,
    low: float,
    high: float = math.inf,
    infinite: bool = False,
    low_included: bool = False,
    high_included: bool = False,
) -> float:
    interval = f"{'[' if low_included else '('}{low:g}, {high:g}{']' if high_included or infinite else ')'}"
    fix = f"must be a number in {interval}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(key, value, fix)
    try:
        given = float(value)
    except OverflowError as error:  # a whole number that no float holds
        raise ConfigError(key, value, fix) from error
    if infinite and given == math.inf:
        return given
    above = given >= low if low_included else given > low
    below = given <= high if high_included else given < high
    if not (math.isfinite(given) and above and below):
        raise ConfigError(key, value, fix)
    return given


def whole(key: str, value: Any, *, low: int = 1, high: int | None = None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        limits = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise ConfigError(key, value, f"must be a whole number {limits}")
    return value


def flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(key, value, "must be True or False")
    return value


def one_of(key: str, value: Any, choices: Iterable[Any]) -> Any:
    choices = tuple(choices)
    if (value is not None and not isinstance(value, str)) or value not in choices:  # an array has no plain ==
        raise ConfigError(key, value, f"must be one of {', '.join(map(repr, choices))}")
    return value


def text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable() or len(value) > 1000:
        raise ConfigError(key, value, "must be a short printable text")
    return value


def section(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(key, value, "must be a dict")
    return value


def file_name(key: str, value: Any) -> str:
    """Check a text that becomes part of a path: it must not lead elsewhere."""
    if (
        not isinstance(value, str)
        or not value
        or not value.isprintable()
        or {*"/\\"} & {*value}
        or value in (".", "..")
    ):
        raise ConfigError(key, value, "must be a name: a text without slashes")
    if len(value.encode(errors="replace")) > 100:
        raise ConfigError(key, value, "must be a name of at most 100 bytes")
    return value


def path(key: str, value: Any) -> Path:
    if not isinstance(value, (str, os.PathLike)) or not str(value).isprintable() or not str(value).strip():
        raise ConfigError(key, value, "must be a path")
    try:
        return Path(value).expanduser()
    except (RuntimeError, TypeError) as error:  # ~ of a user that is not there; a path of bytes
        raise ConfigError(key, value, "must be a path") from error


def folder(key: str, value: Any) -> Path:
    """Check a path where a folder is, or can be made: what is there already is looked at, nothing is written."""
    wanted = path(key, value)
    try:
        there = next(part for part in (wanted.absolute(), *wanted.absolute().parents) if part.exists())
        fit = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    except OSError:  # a name that is too long, a loop of links
        fit = False
    if not fit:
        raise ConfigError(key, str(value), "must be a folder that can be written to, or the path of a new one")
    return wanted


def list_of(key: str, value: Any, check: Check, *, empty: bool = False) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)) or not (value or empty):
        raise ConfigError(key, value, "must be a list" if empty else "must be a list of one or more")
    return tuple(check(key, part) for part in value)


def function(key: str, value: Any) -> Any:
    if not callable(value):
        raise ConfigError(key, value, "must be a function, or left out")
    return value


def suggest(key: object, known: Iterable[str]) -> str:
    """Say what to do about an unknown key."""
    known = sorted(known)
    close = difflib.get_close_matches(str(key), known, n=1)
    return f"unknown key; did you mean {close[0]!r}?" if close else f"unknown key; known are {known}"
