"""Figures of the studies, each drawn from numbers that were written to files, as PNG and SVG."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cords_dp.report.plots import plt, save, tidy_axis
from cords_dp.report.tables import WHOLE

_COLOURS = ("#4C72B0", "#937860", "#DD8452", "#55A868", "#C44E52", "#8172B3")


def accuracy_curves(curves: Mapping[str, pd.DataFrame], path: Path, *, title: str) -> Path:
    """Draw test accuracy and ε spent over epochs, a line for each run (metrics.csv files): on D solid, on V dashed."""
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
    if any("epsilon_V" in frame for frame in curves.values()):
        right.plot([], [], color="0.3", label="on the right: training data D")
        right.plot([], [], color="0.3", ls="--", label="on the right: validation data V")
    for axis in (left, right):
        axis.locator_params(axis="x", integer=True)
    _legend_below(left.figure, axes, columns=2)


def gains_figure(frame: pd.DataFrame, path: Path, *, title: str) -> Path:
    """Draw true gains of all records against the gains that the mechanism samples.

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
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return save(figure, path)


_STYLES: dict[str, dict[str, Any]] = {
    "GLISTERDP": {"color": "#C44E52", "marker": "o", "lw": 2.2, "zorder": 5},
    "GLISTERDP match": {"color": "#DA8BC3", "marker": ">", "lw": 1.2},
    "GLISTERDP threshold": {"color": "#937860", "marker": "<", "lw": 1.2},
    "GLISTERDP top_k": {"color": "#DD8452", "marker": "v", "lw": 1.2},
    "GLISTERDP frozen": {"color": "#CCB974", "marker": "^", "lw": 1.2},
    "GLISTER-DP, paper": {"color": "#8172B3", "marker": "s", "lw": 1.2},
    "RandomDP": {"color": "#4C72B0", "marker": "D", "lw": 1.5},
    "RandomDP, secret subset": {"color": "#64B5CD", "marker": "D", "lw": 1.2, "ls": ":"},
    "FullDP, equal compute": {"color": "#55A868", "marker": "P", "lw": 1.5},
    WHOLE: {"color": "0.25", "ls": "--", "lw": 1.5},
}


def draw(kind: str, folder: Path, name: str, title: str) -> list[Path]:
    """Draw one kind of figure from ``folder``'s files; returns the paths written."""
    return _KINDS[kind](folder, name, title)


def _over_fraction(folder: Path, name: str, title: str) -> list[Path]:
    frame = pd.read_csv(folder / "runs.csv")
    figure, panels = _panels(frame, title)
    for axis, part in panels:
        for method, runs in part.groupby("method", sort=False):
            style = _STYLES.get(str(method), {})
            if method == WHOLE:
                axis.axhline(100 * runs["accuracy"].mean(), label=method, **style)
            else:
                _mean_line(axis, runs, "share", str(method), style)
        axis.set_xlabel("share of the records per epoch")
    return _finish(figure, folder / name)


def _over_split(folder: Path, name: str, title: str) -> list[Path]:
    frame = pd.read_csv(folder / "runs.csv")
    figure, panels = _panels(frame, title)
    for axis, part in panels:
        for (method, size), runs in part.groupby(["method", "share"], sort=False):
            _mean_line(
                axis,
                runs,
                "split",
                f"{method}, {100 * float(str(size)):g} % of the records",
                _STYLES.get(str(method), {}),
            )
        axis.set_xlabel("share of the budget for training")
    return _finish(figure, folder / name)


def _over_budget(folder: Path, name: str, title: str) -> list[Path]:
    """Draw accuracy over ε: one panel for each dataset, with the published figures (published.csv) as crosses."""
    frame, published = (pd.read_csv(folder / file) for file in ("runs.csv", "published.csv"))
    datasets = list(frame["dataset"].unique())
    figure, axes = plt.subplots(1, len(datasets), figsize=(5.6 * len(datasets), 4.8), squeeze=False)
    figure.set_layout_engine("constrained")
    figure.suptitle(_wrapped(title, len(datasets)))
    for axis, dataset in zip(axes[0], datasets, strict=True):
        part = frame[frame["dataset"] == dataset]
        for method, runs in part.groupby("method", sort=False):
            _mean_line(axis, runs, "budget", str(method), {**_STYLES.get(str(method), {}), "marker": "o", "ls": "-"})
        for who, values in published[published["dataset"] == dataset].groupby("who", sort=False):
            axis.plot(values["epsilon"], 100 * values["accuracy"], "x--", lw=0.8, label=who)
        budgets = sorted(part["budget"].unique())
        axis.set(title=dataset, xlabel="ε (δ = 1e-5)", ylabel="test accuracy, %", xscale="log")
        axis.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
        axis.minorticks_off()
        tidy_axis(axis)
        axis.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    return _finish(figure, folder / name)


def _over_time(folder: Path, name: str, title: str) -> list[Path]:
    """Draw accuracy over seconds: one panel for each k, FullDP in all of them."""
    frame = pd.read_csv(folder / "curves.csv")
    sizes = sorted(frame.loc[frame["method"] != WHOLE, "share"].unique())
    figure, axes = plt.subplots(1, len(sizes), figsize=(4.2 * len(sizes), 3.8), squeeze=False, layout="constrained")
    figure.suptitle(_wrapped(title, len(sizes)))
    for axis, share in zip(axes[0], sizes, strict=True):
        for method, runs in frame[(frame["share"] == share) | (frame["method"] == WHOLE)].groupby("method", sort=False):
            means = runs.groupby("epoch")[["seconds", "accuracy"]].mean()
            style = {key: value for key, value in _STYLES.get(str(method), {}).items() if key != "marker"}
            axis.plot(means["seconds"], 100 * means["accuracy"], label=method, **style)
        axis.set(
            title=f"{100 * share:g} % of the records",
            xlabel="seconds of training and selection",
            ylabel="test accuracy, %",
        )
        tidy_axis(axis)
    _legend_below(figure, axes[0])
    return _finish(figure, folder / name)


def _over_scenario(folder: Path, name: str, title: str) -> list[Path]:
    """Draw a group of bars per scenario, one bar per method."""
    frame = pd.read_csv(folder / "runs.csv")
    figure, panels = _panels(frame, title)
    for axis, part in panels:
        cells = 100 * part.groupby(["scenario", "method"], sort=False)["accuracy"].agg(["mean", "std"])
        means, spread = cells["mean"].unstack(sort=False), cells["std"].unstack(sort=False)
        colours = [_STYLES.get(str(method), {}).get("color", "0.5") for method in means.columns]
        means.plot.bar(ax=axis, yerr=spread, color=colours, width=0.8, rot=20, legend=False, capsize=1)
        low = max(0.0, float(means.min().min()) - 5)
        axis.set(ylim=(low, float(means.max().max()) + 2), xlabel="")
    return _finish(figure, folder / name)


def _gains(folder: Path, name: str, title: str) -> list[Path]:
    frame = pd.read_csv(folder / "gains.csv")
    return [gains_figure(frame, folder / f"{name}.{suffix}", title=title) for suffix in ("png", "svg")]


_KINDS: dict[str, Callable[[Path, str, str], list[Path]]] = {
    "over_fraction": _over_fraction,
    "over_split": _over_split,
    "over_scenario": _over_scenario,
    "over_budget": _over_budget,
    "over_time": _over_time,
    "gains": _gains,
}


def _panels(frame: pd.DataFrame, title: str) -> tuple[Any, Iterator[tuple[Any, pd.DataFrame]]]:
    """Make a row of axes for each dataset, one axis per budget."""
    datasets, budgets = list(frame["dataset"].unique()), sorted(frame["budget"].unique())
    size = (4.6 * len(budgets), 3.6 * len(datasets) + 0.3)
    figure, axes = plt.subplots(len(datasets), len(budgets), figsize=size, squeeze=False, layout="constrained")
    figure.suptitle(_wrapped(title, len(budgets)))

    def each() -> Iterator[tuple[Any, pd.DataFrame]]:
        for row, dataset in zip(axes, datasets, strict=True):
            for axis, budget in zip(row, budgets, strict=True):
                yield axis, frame[(frame["dataset"] == dataset) & (frame["budget"] == budget)]
                axis.set(title=f"{dataset}, ε = {budget:g}", ylabel="test accuracy, %")
                tidy_axis(axis)
        _legend_below(figure, axes.flat)

    return figure, each()


def _legend_below(figure: Any, axes: Iterable[Any], *, columns: int = 4) -> None:
    """Name every line of all panels once, below them: inside of a panel the names would lie on its lines."""
    found = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def _wrapped(title: str, panels: int) -> str:
    return textwrap.fill(title, 48 * panels)


def _mean_line(axis: Any, runs: pd.DataFrame, across: str, label: str, style: dict[str, Any]) -> None:
    cells = 100 * runs.groupby(across)["accuracy"].agg(["mean", "std"])
    axis.errorbar(cells.index, cells["mean"], yerr=cells["std"], label=label, capsize=2, ms=5, **style)


def _finish(figure: Any, stem: Path) -> list[Path]:
    paths = [stem.with_suffix(f".{suffix}") for suffix in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=140)
    plt.close(figure)
    return paths
