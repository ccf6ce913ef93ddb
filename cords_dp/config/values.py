"""Checks of single values. Each returns the value or raises an error that names the key, the value and the fix."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any

from cords_dp.errors import ConfigError


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
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        raise ConfigError(key, value, fix)
    if math.isinf(value):
        if infinite and value > 0:
            return float(value)
        raise ConfigError(key, value, fix)
    if value < low or (value == low and not low_included):
        raise ConfigError(key, value, fix)
    if value > high or (value == high and not high_included):
        raise ConfigError(key, value, fix)
    return float(value)


def whole(key: str, value: Any, *, low: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ConfigError(key, value, f"must be a whole number of at least {low}")
    return value


def flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(key, value, "must be True or False")
    return value


def one_of(key: str, value: Any, choices: Iterable[Any]) -> Any:
    choices = tuple(choices)
    if value not in choices:
        raise ConfigError(key, value, f"must be one of {', '.join(map(repr, choices))}")
    return value


def suggest(key: object, known: Iterable[str]) -> str:
    """What to do about an unknown key."""
    known = sorted(known)
    close = difflib.get_close_matches(str(key), known, n=1)
    return f"unknown key; did you mean {close[0]!r}?" if close else f"unknown key; known are {known}"


def short(value: object) -> str:
    """A value for an error message."""
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."
