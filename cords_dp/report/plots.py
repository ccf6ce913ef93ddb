"""Figures. Each is drawn from numbers that were written to files, never from live objects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

_COLOURS = ("#4C72B0", "#937860", "#DD8452", "#55A868", "#C44E52", "#8172B3")


def accuracy_curves(curves: Mapping[str, pd.DataFrame], path: Path, *, title: str) -> Path:
    """Test accuracy and ε spent over epochs, a line for each run (metrics.csv files): on D solid, on V dashed."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
    draw_curves(axes, curves, title=title)
    return save(figure, path)


def draw_curves(axes: Any, curves: Mapping[str, pd.DataFrame], *, title: str) -> None:
    left, right = axes
    for (label, frame), colour in zip(curves.items(), _COLOURS, strict=False):
        left.plot(frame["epoch"], 100 * frame["accuracy"], label=label, color=colour)
        right.plot(frame["epoch"], frame["epsilon_D" if "epsilon_D" in frame else "epsilon"], color=colour)
        if "epsilon_V" in frame:
            right.plot(frame["epoch"], frame["epsilon_V"], color=colour, ls="--")
    left.set(xlabel="epoch", ylabel="test accuracy, %", title=title)
    right.set(xlabel="epoch", ylabel="ε spent", title="Privacy spent", ylim=(0, None))
    for axis in (left, right):
        tidy_axis(axis)
    left.figure.legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False, fontsize=8
    )
    if any("epsilon_V" in frame for frame in curves.values()):
        right.plot([], [], color="0.3", label="training data D")
        right.plot([], [], color="0.3", ls="--", label="validation data V")
        right.legend(frameon=False, fontsize=8, loc="lower right")


def gains_figure(frame: pd.DataFrame, path: Path, *, title: str) -> Path:
    """True gains of all records against the gains that the mechanism samples.

    ``frame`` has the columns gain, top_k (is it among the k largest?) and one column of probabilities per mechanism.
    """
    figure, axis = plt.subplots(figsize=(6.5, 4), layout="constrained")
    gains = frame["gain"].to_numpy()
    bins = np.linspace(gains.min(), gains.max(), 61).tolist()
    top = frame["top_k"].to_numpy(dtype=bool)
    axis.hist(gains, bins=bins, density=True, color="0.85", label="all records (uniform)")
    axis.hist(gains[top], bins=bins, density=True, histtype="step", color="black", lw=1.5, label="noise-free top k")
    for (name, column), colour in zip(frame.drop(columns=["gain", "top_k"]).items(), _COLOURS, strict=False):
        axis.hist(
            gains,
            bins=bins,
            weights=column.to_numpy(),
            density=True,
            histtype="step",
            lw=1.8,
            color=colour,
            label=name,
        )
    axis.set(xlabel="gain of a record, in units of its bound", ylabel="density of a pick", title=title)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8)
    return save(figure, path)


def tidy_axis(axis: Any) -> None:
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)


def save(figure: plt.Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plt.close(figure)
    return path
