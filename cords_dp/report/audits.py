"""The picture of an audit: lower bounds against claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

_SOUND, _BROKEN, _CLAIM = "#4C72B0", "#C44E52", "black"


def audit_figure(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Bars: the lower bound on ε, at 95 % for the row. Lines: the claim. Rows without a bound are left out."""
    drawn = [row for row in rows if row["bound_95"] is not None]
    budgets = list(dict.fromkeys(row["epsilon"] for row in drawn))
    tallest = max((sum(row["epsilon"] == e for row in drawn) for e in budgets), default=1)
    figure, axes = plt.subplots(
        1, max(1, len(budgets)), figsize=(6.5 * max(1, len(budgets)), 1 + 0.3 * tallest), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axis, epsilon in zip(axes[0], budgets, strict=False):
        _bars(axis, [row for row in drawn if row["epsilon"] == epsilon], f"ε = {epsilon:g}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plt.close(figure)
    return path


def _bars(axis: Any, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    places = np.arange(len(rows))[::-1]
    reach = 1.25 * max(row["claimed"] for row in rows)
    lengths = [min(row["bound_95"], reach) for row in rows]
    axis.barh(places, lengths, height=0.6, color=[_SOUND if row["passed"] else _BROKEN for row in rows])
    axis.vlines([row["claimed"] for row in rows], places - 0.4, places + 0.4, color=_CLAIM, lw=1.5)
    axis.set_yticks(places, [f"{row['audited']}, {row['audit'].split(', ')[-1]}" for row in rows], fontsize=7)
    axis.set(xlim=(0, reach), xlabel="ε: bar = lower bound (95 %), line = claim", title=title)
    axis.spines[["top", "right"]].set_visible(False)
