"""Fill the tables of docs/results.md, results-earlier.md and report.md from kept rows, and draw their picture.

``python -m cords_dp.studies.results_page docs`` puts each table between its marks, so that no figure in a table is
typed by hand, and writes images/results.png. Rows are those that `reproduce` writes to runs.csv.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from cords_dp.report.plots import plt, save, tidy_axis
from cords_dp.report.tables import accuracy_tables, frontier_tables, mean_interval, mean_std, to_markdown
from cords_dp.studies.paper import imbalance_table, published_frontier

PAGES = ("results.md", "results-earlier.md", "report.md")
_MARK = re.compile(r"(<!-- table (?P<name>[a-z-]+) of (?P<files>[^>]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
_NAMES = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "digits": "digits",
    "synthetic": "synthetic",
}
_OURS, _PAPERS, _RIVAL = "#C44E52", "0.45", "#4C72B0"


def fill(page: str, folder: Path) -> str:
    """Return the page with every table made anew from the files that its mark names."""

    def table(found: re.Match[str]) -> str:
        frame = read(folder, found["files"].split(", "))
        return f"{found[1]}\n{TABLES[found['name']](frame)}\n\n{seeds(frame)}\n\n{found[4]}"

    return _MARK.sub(table, page)


def read(folder: Path, names: list[str]) -> pd.DataFrame:
    """Read the kept rows of some files as one frame."""
    return pd.concat([pd.read_csv(folder / f"{name}.csv") for name in names], ignore_index=True)


def seeds(frame: pd.DataFrame) -> str:
    """Say over how many runs a cell's mean is."""
    cells = frame.groupby([c for c in ("dataset", "method", "share", "budget", "scenario", "split") if c in frame])
    counts = sorted(cells.size().unique())
    runs = "one seed" if counts == [1] else f"{' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seeds"
    return f"*{len(frame)} runs, {runs} a cell.*"


def beside_the_paper(frame: pd.DataFrame) -> str:
    """Tabulate the paper's table beside ours: ``paper → ours`` for each share."""
    means = frame.groupby(["dataset", "method", "budget", "share"])["accuracy"].mean()
    rows = []
    for (dataset, epsilon, method), cells in imbalance_table().groupby(["dataset", "epsilon", "strategy"], sort=False):
        row = {"data": _NAMES[str(dataset)], "ε": f"{epsilon:g}", "method": str(method)}
        for share, paper in zip(cells["fraction"].tolist(), cells["paper_accuracy"].tolist(), strict=True):
            ours = means.get((dataset, method, epsilon, share))
            told = "" if ours is None else f" → {100 * ours:.1f}"
            row[f"share {share}"] = f"{100 * paper:.1f}{told}"
        if any("→" in str(value) for value in row.values()):
            rows.append(row)
    return to_markdown(pd.DataFrame(rows))


def by_budget(frame: pd.DataFrame) -> str:
    """Tabulate accuracy over ε beside published figures, a table for each data set."""
    parts = frontier_tables(frame, published_frontier())
    tables = (table.drop(columns="seconds").rename(columns={"method": _NAMES[name]}) for name, table in parts.items())
    return "\n\n".join(to_markdown(table) for table in tables)


def by_column(frame: pd.DataFrame) -> str:
    """Tabulate methods over what the experiment varies, with the data set and ε before the method."""
    parts = [table.assign(data=title) for title, table in accuracy_tables(frame).items()]
    table = pd.concat(parts, ignore_index=True).fillna("")
    return to_markdown(table[["data", *table.columns.drop("data")]])


def equal_gradients(frame: pd.DataFrame) -> str:
    """Tabulate GLISTERDP beside FullDP with as many gradients, and their differences seed by seed, by scenario."""
    tables = []
    for dataset, runs in frame.groupby("dataset", sort=False):
        rows = []
        for share, words in ((0.1, "a tenth"), (1.0, "all")):
            named = runs.replace({"method": {"FullDP, equal compute": "FullDP"}})  # with all gradients it is that
            cells = named[(named["share"] == share) & named["method"].isin(["GLISTERDP", "FullDP"])]
            accuracy = cells.pivot_table(index=["scenario", "seed"], columns="method", values="accuracy", sort=False)
            points = (100 * (accuracy["GLISTERDP"] - accuracy["FullDP"])).groupby(level=0, sort=False)
            for method in ("GLISTERDP", "FullDP"):
                by_scenario = accuracy[method].groupby(level=0, sort=False).agg(mean_std)
                rows.append({"gradients": words, "method": method, **_short(by_scenario)})
            rows.append({"gradients": words, "method": "difference, by seed", **_short(points.agg(mean_interval))})
        heading = f"{_NAMES[str(dataset)]}, ε = {runs['budget'].iloc[0]:g}"
        table = pd.DataFrame(rows).fillna("")
        tables.append(to_markdown(table.rename(columns={"gradients": f"{heading}: gradients"})))
    return "\n\n".join(tables)


def by_scenario(frame: pd.DataFrame) -> str:
    """Tabulate methods over scenarios, with the data set, ε and the share of gradients before the method."""
    rows = []
    for (dataset, budget, share, method), cells in frame.groupby(["dataset", "budget", "share", "method"], sort=False):
        means = cells.groupby("scenario", sort=False)["accuracy"].agg(mean_std)
        data = f"{_NAMES[str(dataset)]}, ε = {budget:g}, {'all' if share == 1 else f'share {share:g}'}"
        rows.append({"data": data, "method": method, **_short(means)})
    return to_markdown(pd.DataFrame(rows).fillna(""))


def _short(by_scenario: pd.Series) -> dict[str, str]:
    """Key the values of scenarios by one word each."""
    return {_WORDS.get(str(name), str(name)): str(value) for name, value in by_scenario.items()}


_WORDS = {
    "odd classes cut to 5 %": "cut",
    "40 % of labels moved on": "moved",
    "40 % of labels at random": "random",
}

TABLES: dict[str, Callable[[pd.DataFrame], str]] = {
    "beside-the-paper": beside_the_paper,
    "by-budget": by_budget,
    "by-column": by_column,
    "by-scenario": by_scenario,
    "equal-gradients": equal_gradients,
}


# --- the picture -------------------------------------------------------------------------------------------------


def picture(folder: Path, path: Path) -> Path:
    """Draw the paper's table with ours above it, what selection gains at equal gradients, and accuracy over ε."""
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.3), layout="constrained", width_ratios=(1.15, 1, 1))
    _paper_panel(axes[0], read(folder, _IMBALANCE))
    _shift_panel(axes[1], read(folder, ["shift-cifar10"]))
    _budget_panel(axes[2], read(folder, ["frontier"]))
    return save(figure, path)


_IMBALANCE = ["imbalance-mnist", "imbalance-cifar100"]


def _paper_panel(axis: Any, frame: pd.DataFrame) -> None:
    """Draw bars at a tenth of the records: the paper's two methods, then the same two here."""
    cells = frame[(frame["share"] == 0.1) & frame["budget"].isin((3, 8))]
    ours = 100 * cells.groupby(["dataset", "budget", "method"], sort=False)["accuracy"].mean()
    published = imbalance_table().query("fraction == 0.1").set_index(["dataset", "epsilon", "strategy"])
    groups = list(dict.fromkeys((dataset, budget) for dataset, budget, _ in ours.index))
    paper = 100 * published["paper_accuracy"]
    for number, (method, colour) in enumerate((("RandomDP", _RIVAL), ("GLISTERDP", _OURS))):
        for side, (values, who, alpha) in enumerate(((paper, "the paper", 0.35), (ours, "here", 1.0))):
            places = [group + 0.2 * (2 * side + number) - 0.3 for group in range(len(groups))]
            heights = [values.get((*group, method), float("nan")) for group in groups]
            bars = axis.bar(places, heights, 0.18, color=colour, alpha=alpha, label=f"{method}, {who}")
            axis.bar_label(bars, fmt="%.0f", fontsize=7)
    axis.set_xticks(
        range(len(groups)), [f"{_NAMES[dataset]}\nε = {budget:g}" for dataset, budget in groups], fontsize=8
    )
    axis.set(title="The paper's table,\na tenth of the records", ylabel="test accuracy, %", ylim=(0, 1.3 * ours.max()))
    tidy_axis(axis)
    axis.legend(frameon=False, fontsize=8, ncols=2, loc="upper center")


_SCENARIOS = {
    "nothing": "nothing",
    "odd classes cut to 5 %": "classes\ncut",
    "40 % of labels moved on": "labels\nmoved",
    "both": "both",
    "40 % of labels at random": "labels\nrandom",
}


def _shift_panel(axis: Any, frame: pd.DataFrame) -> None:
    few = frame[frame["share"] == 0.1]
    for offset, (method, name, colour) in enumerate(
        (("GLISTERDP", "GLISTERDP", _OURS), ("FullDP, equal compute", "FullDP, as many gradients", _PAPERS))
    ):
        cells = (
            100 * few[few["method"] == method].groupby("scenario")["accuracy"].agg(["mean", "std"]).loc[[*_SCENARIOS]]
        )
        places = [place + 0.4 * offset - 0.2 for place in range(len(cells))]
        axis.bar(places, cells["mean"], 0.38, yerr=cells["std"], color=colour, label=name, capsize=2)
    axis.set_xticks(range(len(_SCENARIOS)), list(_SCENARIOS.values()), fontsize=8)
    axis.set(title="CIFAR-10, ε = 3, a tenth of the gradients,\nby how D differs from V", ylim=(0, 90))
    tidy_axis(axis)
    axis.legend(frameon=False, fontsize=8)


def _budget_panel(axis: Any, frame: pd.DataFrame) -> None:
    ours = 100 * frame[frame["dataset"] == "cifar10"].groupby("budget")["accuracy"].mean()
    axis.plot(ours.index, ours, color=_OURS, marker="o", label="FullDP here, two CPU cores")
    published = published_frontier()
    others = published[published["dataset"] == "cifar10"].groupby("who", sort=False)
    for marker, (who, cells) in zip("xsD^v", others, strict=False):
        axis.plot(cells["epsilon"], 100 * cells["accuracy"], marker=marker, ls=":", ms=5, color=_PAPERS, label=who)
    axis.set(title="CIFAR-10, all records, no public data", xlabel="ε (δ = 1e-5)", xscale="log", ylim=(58, 84))
    axis.set_xticks([1, 2, 3, 4, 8], ["1", "2", "3", "4", "8"])
    axis.minorticks_off()
    tidy_axis(axis)
    axis.legend(frameon=False, fontsize=6.5, loc="upper left")


if __name__ == "__main__":
    docs = Path(sys.argv[1])
    for page in (docs / name for name in PAGES):
        page.write_text(fill(page.read_text(), docs / "results"))
    print(picture(docs / "results", docs / "images" / "results.png"))
