"""Figures: what all of them share, and the picture of a budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt

from cords_dp.planning.budget import Budget

__all__ = ["budget_figure", "plt", "save", "tidy_axis"]
matplotlib.use("Agg")


def tidy_axis(axis: Any) -> None:
    """Give an axis a faint grid and no frame."""
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def save(figure: plt.Figure, path: Path) -> Path:
    """Write a figure, and close it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plt.close(figure)
    return path


def budget_figure(budget: Budget, path: Path) -> Path:
    """Draw ε over epochs, and what each way of selecting adds to the training noise."""
    priced = [row for row in budget.alternatives if row.problem is None]
    figure, axes = plt.subplots(
        1, 2 if priced else 1, figsize=(11 if priced else 6, 4), layout="constrained", squeeze=False
    )
    left = axes[0][0]
    epochs = [0, *(epoch for epoch, _, _ in budget.curve)]
    left.plot(epochs, [0.0, *(on_d for _, on_d, _ in budget.curve)], marker="o", ms=3, label="training data D")
    if any(on_v for _, _, on_v in budget.curve):
        left.plot(epochs, [0.0, *(v for _, _, v in budget.curve)], marker="o", ms=3, ls="--", label="validation data V")
    left.axhline(budget.plan.privacy.epsilon, color="0.6", lw=1)
    left.set(xlabel="epoch", ylabel="ε charged", ylim=(0, None), title=f"Noise multiplier {budget.plan.sigma:.3g}")
    left.locator_params(axis="x", integer=True)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=2, frameon=False, fontsize=8)
    tidy_axis(left)
    if priced:
        right = axes[0][1]
        right.barh([row.label for row in priced][::-1], [row.sigma for row in priced][::-1], color="#4C72B0")
        right.set(xlabel="noise multiplier of training", title="The same ε with other ways of selecting")
        right.tick_params(labelsize=8)
        tidy_axis(right)
    return save(figure, path)
