"""The summary of a run: for ``result.json``, for a row of a table, and in words for its user."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cords_dp.report.metrics import metric_rows, metric_words


@dataclass(frozen=True)
class RunResult:
    """The summary of a run, one row of a table. A regression has ``rmse`` and ``r2``, and NaN as accuracy."""

    dataset: str
    strategy: str
    fraction: float
    seed: int | None
    accuracy: float
    rmse: float | None = field(default=None, kw_only=True)
    r2: float | None = field(default=None, kw_only=True)
    loss: float
    epsilon: float
    epsilon_allowed: float
    delta: float
    train_seconds: float
    selection_seconds: float
    out: str
    metrics: dict[str, Any] = field(default_factory=dict, kw_only=True)  # `evaluation.measured`

    def facts(self) -> dict[str, Any]:
        """Return the summary for ``result.json``: with an accuracy, or with RMSE and R² in its place."""
        other = ("rmse", "r2") if self.rmse is None else ("accuracy",)
        return {name: value for name, value in asdict(self).items() if name not in other}

    def text(self) -> str:
        """Summarise the run for the user when it ends."""
        lines = (
            [] if math.isnan(self.accuracy) else [f"test accuracy   {100 * self.accuracy:.2f} %{_beside(self.metrics)}"]
        )
        if self.rmse is not None:
            lines = [f"test RMSE       {self.rmse:.4g}, in the target's unit", f"test R²         {self.r2:.4f}"]
        lines += _metric_lines(self.metrics)
        if "released" in self.metrics:
            lines.append("  of the private test set, with noise, released once and charged to it; 95 % intervals")
            lines += _lost_line(self.metrics)
        if math.isinf(self.epsilon_allowed):
            lines.append("privacy         none (not a private run)")
        else:
            lines.append(f"epsilon         {self.epsilon:.4f} of {self.epsilon_allowed:g}")
            lines.append(f"delta           {self.delta:.3g}")
        training, selecting = _describe_seconds(self.train_seconds), _describe_seconds(self.selection_seconds)
        lines.append(f"seconds         {training} training, {selecting} selecting")
        lines.append(f"results in      {self.out}")
        if math.isfinite(self.epsilon_allowed):
            lines.append(f"the guarantee   {Path(self.out) / 'privacy.md'}")
        return "\n".join(lines)


def _describe_seconds(seconds: float) -> str:
    """Describe a duration: of a secret pool in whole seconds, where 0 would read as if nothing had been done."""
    return f"{seconds:.1f}" if seconds >= 1 else "under 1"


_HEADLINES = ("accuracy", "base_rate", "rmse", "r2")  # in the first lines already
_FEW_CLASSES = 10


def _lost_line(metrics: Mapping[str, Any]) -> list[str]:
    """Name the metrics that the noise leaves nothing of: a public value, as all that follows from the release."""
    rows = {name: row for name, row in metrics.items() if isinstance(row, Mapping) and "low" in row}
    lost = [metric_words(name) for name, row in rows.items() if row.get("value") is None]
    return [f"  lost in the noise: {', '.join(lost)}; a larger test set or ε shows them"] if lost else []


def _beside(metrics: Mapping[str, Any]) -> str:
    """Describe what always saying the most frequent class would reach, beside an accuracy."""
    rows = dict(metric_rows({"metrics": {"base_rate": metrics.get("base_rate")}}))
    return "".join(f"; always the most frequent class: {value}" for value in rows.values())


def _metric_lines(metrics: Mapping[str, Any]) -> list[str]:
    """Return the other metrics as a small table, and precision and recall where the classes are few."""
    numbers = {name: value for name, value in metrics.items() if name not in _HEADLINES}
    rows = metric_rows({"metrics": numbers})
    lines = [f"  {words:<20}{value}" for words, value in rows]
    classes = metrics.get("by_class")
    if isinstance(classes, list) and len(classes) <= _FEW_CLASSES:
        lines += _table_lines("class", classes)
    return lines + _table_lines("group", metrics.get("by_group") or [])


def _table_lines(first: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    numbers: dict[str, list[str]] = {first: [str(row[first]) for row in rows]}
    for name in list(rows[0])[1:6]:
        values = [row.get(name, math.nan) for row in rows]
        values = [value["value"] if isinstance(value, Mapping) else value for value in values]
        values = [math.nan if value is None else value for value in values]  # lost in the noise
        numbers[metric_words(name)] = [f"{v:,.0f}" if name == "records" else f"{v:.3f}" for v in values]
    widths = {name: max(len(name), *map(len, values)) for name, values in numbers.items()}
    table = [list(numbers), *zip(*numbers.values(), strict=True)]
    return [
        f"  {row[0]:<{widths[first]}}  "
        + "  ".join(f"{v:>{w}}" for v, w in zip(row[1:], list(widths.values())[1:], strict=True))
        for row in table
    ]
