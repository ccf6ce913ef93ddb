"""Makes tables of test accuracy from runs.csv alone, and the figure of an audit: lower bounds against claims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from cords_dp.report.plots import plt, save

__all__ = [
    "WHOLE",
    "accuracy_tables",
    "aligned",
    "audit_figure",
    "frontier_tables",
    "group_tables",
    "mean_interval",
    "mean_std",
    "mean_table",
    "paired_differences",
    "paper_comparison",
    "plain_mean_std",
    "probability_tables",
    "study_tables",
    "to_markdown",
]
WHOLE = "FullDP"  # does not depend on the share: shown in every column


def mean_std(values: pd.Series) -> str:
    """Format an accuracy in percent: mean and, from two runs on, the standard deviation."""
    if not len(values):
        return ""
    spread = f" ± {100 * values.std():.2f}" if len(values) > 1 else ""
    return f"{100 * values.mean():.2f}{spread}"


def plain_mean_std(values: pd.Series) -> str:
    """Format the mean and, from two runs on, the standard deviation, in the values' own unit."""
    return f"{values.mean():.4g}" + (f" ± {values.std():.2g}" if len(values) > 1 else "")


def mean_table(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return a row per cell: mean and deviation over seeds of accuracy (or RMSE and R²), runs, mean seconds."""
    keys = list(by) or ["strategy"]
    grouped = frame.groupby(keys, sort=False, dropna=False)
    shown = {"accuracy": mean_std} if "accuracy" in frame else {"rmse": plain_mean_std, "r2": plain_mean_std}
    table = grouped.agg(**{name: (name, how) for name, how in shown.items()}, runs=("seed", "size")).reset_index()
    seconds = grouped[["train_seconds", "selection_seconds"]].mean().sum(axis=1).round(1)
    return table.assign(seconds=seconds.to_numpy())


def study_tables(frame: pd.DataFrame, folder: Path) -> dict[str, pd.DataFrame]:
    """Return the tables of an experiment; beside published figures (published.csv), where that is its point."""
    published = folder / "published.csv"
    return frontier_tables(frame, pd.read_csv(published)) if published.is_file() else accuracy_tables(frame)


def accuracy_tables(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Tabulate methods × the share of the records (or × split, × scenario), one table for each dataset and budget."""
    across = next(column for column in ("split", "scenario", "share") if column in frame)
    tables = {}
    for title, part in _parts(frame, across):
        columns = list(part.loc[part["method"] != WHOLE, across].unique()) or [1.0]
        columns = columns if across == "scenario" else sorted(columns)
        rows = {}
        for method, runs in part.groupby("method", sort=False):
            cells = {v: runs if method == WHOLE and across == "share" else runs[runs[across] == v] for v in columns}
            rows[method] = {_heading(across, v): mean_std(cell["accuracy"]) for v, cell in cells.items()}
        table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("method").reset_index()
        tables[title] = table
    return tables


def _parts(frame: pd.DataFrame, across: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of each table with its title: by dataset and budget, and by share where there are several."""
    for (dataset, budget), part in frame.groupby(["dataset", "budget"], sort=False):
        title, whole = f"{dataset}, ε = {budget:g}", part["method"] == WHOLE
        shares = sorted(part.loc[~whole, "share"].unique()) if across != "share" and "share" in part else []
        if len(shares) < 2:
            yield title, part
        else:
            yield from ((f"{title}, share {share:g}", part[(part["share"] == share) | whole]) for share in shares)


def frontier_tables(frame: pd.DataFrame, published: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Tabulate methods × ε with the seconds of a run, one table for each dataset, and the published figures below."""
    tables = {}
    for dataset, part in frame.groupby("dataset", sort=False):
        others = published[published["dataset"] == dataset]
        budgets = sorted({*part["budget"], *others["epsilon"]})
        rows = []
        for method, runs in part.groupby("method", sort=False):
            cells = {f"ε = {e:g}": mean_std(runs.loc[runs["budget"] == e, "accuracy"]) for e in budgets}
            rows.append({"method": method, **cells, "seconds": f"{runs['train_seconds'].mean():.0f}"})
        for who, values in others.groupby("who", sort=False):
            at = dict(zip(values["epsilon"], values["accuracy"], strict=True))
            cells = {f"ε = {e:g}": f"{100 * at[e]:.1f}" if e in at else "" for e in budgets}
            rows.append({"method": who, **cells, "seconds": ""})
        tables[str(dataset)] = pd.DataFrame(rows)
    return tables


def group_tables(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Tabulate accuracies of groups of test records (columns ``accuracy_NAME``): methods × scenario and group."""
    groups = [column for column in map(str, frame) if column.startswith("accuracy_")]
    tables = {}
    for (dataset, budget), part in frame.groupby(["dataset", "budget"], sort=False) if groups else ():
        cells = part.groupby(["method", "scenario"], sort=False)[groups].agg(mean_std)
        cells = cells.rename(columns=lambda column: column.removeprefix("accuracy_")).unstack("scenario", sort=False)
        cells.columns = [f"{scenario}: {group}" for group, scenario in cells.columns]
        tables[f"{dataset}, ε = {budget:g}: by group"] = cells.rename_axis("method").reset_index()
    return tables


_OF_PROBABILITIES = {"auc": "AUC", "log_loss": "log loss", "calibration_error": "calibration error"}


def probability_tables(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Tabulate how good probabilities are: methods × scenario and score, means over seeds."""
    known = [name for name in _OF_PROBABILITIES if name in frame]
    tables = {}
    for title, part in _parts(frame, "scenario") if known and "scenario" in frame else ():
        cells = part.groupby(["method", "scenario"], sort=False)[known].mean().map("{:.3f}".format).unstack("scenario")
        cells.columns = [f"{scenario}: {_OF_PROBABILITIES[name]}" for name, scenario in cells.columns]
        tables[f"{title}: probabilities"] = cells.rename_axis("method").reset_index()
    return tables


def paired_differences(frame: pd.DataFrame, reference: str) -> dict[str, pd.DataFrame]:
    """Return the points by which each method exceeds the reference, seed by seed, with a 95 % interval (Student's t).

    Runs with one seed share data and split, so that their difference spreads less than the runs themselves.
    """
    tables = {}
    for title, part in _parts(frame, "scenario"):
        by_seed = part.pivot_table(index=["scenario", "seed"], columns="method", values="accuracy", sort=False)
        if reference not in by_seed:
            continue
        points = 100 * by_seed.drop(columns=reference).sub(by_seed[reference], axis=0)
        cells = points.groupby("scenario", sort=False).agg(mean_interval)
        table = cells.T.rename_axis("method").reset_index()
        tables[f"{title}: points above {reference}"] = table
    return tables


def mean_interval(values: pd.Series) -> str:
    values = values.dropna()
    if not len(values):
        return ""
    half = stats.t.ppf(0.975, len(values) - 1) * values.std() / len(values) ** 0.5 if len(values) > 1 else None
    return f"{values.mean():+.2f}" + (f" ± {half:.2f}" if half is not None else "")


def _heading(across: str, value: object) -> str:
    return str(value) if across == "scenario" else f"{across} = {value:g}"


def paper_comparison(frame: pd.DataFrame, paper: pd.DataFrame) -> pd.DataFrame:
    """Compare each cell that the paper prints with our mean: RANDOM-DP with RandomDP, GLISTER-DP with GLISTERDP."""
    ours = frame[frame["method"].isin(["RandomDP", "GLISTERDP"])]
    means = ours.groupby(["dataset", "method", "budget", "share"], sort=False)["accuracy"].agg(["mean", "std", "size"])
    merged = means.reset_index().merge(
        paper.rename(columns={"strategy": "method", "epsilon": "budget", "fraction": "share"}),
        on=["dataset", "method", "budget", "share"],
    )
    return pd.DataFrame(
        {
            "dataset": merged["dataset"],
            "epsilon": merged["budget"],
            "share": merged["share"],
            "method": merged["method"],
            "paper": (100 * merged["paper_accuracy"]).round(2),
            "ours": (100 * merged["mean"]).round(2),
            "std": (100 * merged["std"]).round(2),
            "runs": merged["size"],
            "difference": (100 * (merged["mean"] - merged["paper_accuracy"])).round(2),
        }
    )


def aligned(table: pd.DataFrame) -> pd.DataFrame:
    """Format the numbers of each column with the same number of digits, at most two after the point."""
    return table.apply(_aligned_column)


def _aligned_column(column: pd.Series) -> pd.Series:
    if not pd.api.types.is_float_dtype(column):
        return column.astype(str)
    short = column.map(lambda value: "" if pd.isna(value) else f"{value:g}")
    longest = short.str.partition(".")[2].str.len().max()
    if longest > 2 or short.str.contains("e").any():
        return short  # small numbers: ε₀, δ
    return column.map(lambda value: "" if pd.isna(value) else f"{value:.{longest}f}")


def to_markdown(table: pd.DataFrame) -> str:
    """Format a GitHub table."""
    cells = [[str(v) for v in row] for row in aligned(table).itertuples(index=False)]
    lines = ["| " + " | ".join(map(str, table.columns)) + " |", "|" + "---|" * len(table.columns)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in cells)])


_SOUND, _BROKEN, _CLAIM = "#4C72B0", "#C44E52", "black"


def audit_figure(rows: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draw bars, the lower bounds on ε at 95 % for the row, and lines, the claims. Other rows are left out."""
    drawn = [row for row in rows if row["bound_95"] is not None]
    budgets = list(dict.fromkeys(row["epsilon"] for row in drawn))
    tallest = max((sum(row["epsilon"] == e for row in drawn) for e in budgets), default=1)
    figure, axes = plt.subplots(
        1, max(1, len(budgets)), figsize=(6.5 * max(1, len(budgets)), 1 + 0.3 * tallest), squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axis, epsilon in zip(axes[0], budgets, strict=False):
        _bars(axis, [row for row in drawn if row["epsilon"] == epsilon], f"ε = {epsilon:g}")
    return save(figure, path)


def _bars(axis: Any, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    places = np.arange(len(rows))[::-1]
    reach = 1.25 * max(row["claimed"] for row in rows)
    lengths = [min(row["bound_95"], reach) for row in rows]
    axis.barh(places, lengths, height=0.6, color=[_SOUND if row["passed"] else _BROKEN for row in rows])
    axis.vlines([row["claimed"] for row in rows], places - 0.4, places + 0.4, color=_CLAIM, lw=1.5)
    axis.set_yticks(places, [f"{row['audited']}, {row['audit'].split(', ')[-1]}" for row in rows], fontsize=7)
    axis.set(xlim=(0, reach), xlabel="ε: bar = lower bound (95 %), line = claim", title=title)
    axis.spines[["top", "right"]].set_visible(False)
