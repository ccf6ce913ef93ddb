"""Puts what a run has measured into words and tables, whatever it has measured: ``result.json``, section ``metrics``.

A number is a row. ``{"value": …, "low": …, "high": …}`` is a number with an interval. A list of dicts, or a dict of
dicts, is a table; a list of lists a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import pandas as pd

_WORDS = {
    "auc": "AUC",
    "r2": "R²",
    "rmse": "RMSE, in the target's unit",
    "mae": "mean absolute error",
    "base_rate": "base rate (always the most frequent class)",
    "average_precision": "average precision",
    "log_loss": "log loss",
    "ece": "calibration error",
}
_SHARES = {"accuracy", "balanced_accuracy", "base_rate", "precision", "recall"}


def metric_words(name: str) -> str:
    return _WORDS.get(name) or name.replace("_", " ")


def is_share(name: str) -> bool:
    """Return whether a metric is a share, which is shown in percent."""
    return name in _SHARES


def metric_numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the single numbers of a result, the headline ones first: accuracy with the base rate beside it, the rest.

    A result of an earlier version has an accuracy or an RMSE, and nothing else.
    """
    found: dict[str, float] = {}
    for name in ("accuracy", "rmse", "r2"):
        if _is_number(result.get(name)):
            found[name] = float(result[name])
    measured = result.get("metrics")
    for name, value in measured.items() if isinstance(measured, Mapping) else ():
        value = value.get("value") if isinstance(value, Mapping) else value
        if _is_number(value):
            found.setdefault(str(name), float(value))
    first = ("accuracy", "base_rate", "balanced_accuracy", "auc")
    return {name: found[name] for name in (*(n for n in first if n in found), *(n for n in found if n not in first))}


def metric_rows(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the single numbers in words, with intervals where they have one."""
    measured = result.get("metrics")
    measured = measured if isinstance(measured, Mapping) else {}
    return [
        (metric_words(name), shown_metric(name, value) + _interval(name, measured.get(name)))
        for name, value in metric_numbers(result).items()
    ]


def metric_tables(result: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Return tables of what is more than a number: by class, by group, the confusion matrix."""
    measured, tables = result.get("metrics"), {}
    for name, value in measured.items() if isinstance(measured, Mapping) else ():
        table = _table(value, result.get("classes"))
        if table is not None:
            tables[metric_words(str(name))] = table
    return tables


def _table(value: Any, classes: Any) -> pd.DataFrame | None:
    if isinstance(value, Mapping) and value and all(isinstance(part, Mapping) for part in value.values()):
        return pd.DataFrame([{"": name, **part} for name, part in value.items()])
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        return None
    if all(isinstance(part, Mapping) for part in value):
        return pd.DataFrame(list(value))
    if all(isinstance(part, Sequence) and len(part) == len(value) for part in value):
        names = list(classes) if classes and len(classes) == len(value) else list(map(str, range(len(value))))
        table = pd.DataFrame(value, columns=[f"predicted {name}" for name in names])
        table.insert(0, "true class", names)
        return table
    return None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def shown_metric(name: str, value: float) -> str:
    """Write a number of this metric: shares in percent."""
    return f"{100 * value:.2f} %" if name in _SHARES else f"{value:.4g}"


def _interval(name: str, measured: Any) -> str:
    if not isinstance(measured, Mapping) or not (_is_number(measured.get("low")) and _is_number(measured.get("high"))):
        return ""
    return f" ({shown_metric(name, measured['low'])} to {shown_metric(name, measured['high'])})"
