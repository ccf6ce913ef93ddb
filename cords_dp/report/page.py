"""One self-contained HTML page about the results in a folder. Reads result files only; needs no network."""

from __future__ import annotations

import html
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from cords_dp.errors import ResultsError
from cords_dp.report.comparison import (
    best_first,
    comparison_html,
    cost_html,
    gathered,
    run_headline,
    run_label,
    short_name,
)
from cords_dp.report.pieces import counted, figure_html, image_html, read_json, table_html
from cords_dp.report.plots import plt, tidy_axis
from cords_dp.report.single_run import run_html
from cords_dp.report.tables import aligned, study_tables

_HERE = Path(__file__).parent
_MOST_RUNS = 40  # a page with more would be heavy, and nobody unfolds them


def write_page(folder: Path, path: Path | None = None) -> Path:
    """Write the page about every experiment, sweep and run found in ``folder``; return its path."""
    sections = _sections(folder)
    if not sections:
        raise ResultsError(f"no results in {str(folder)!r}: neither runs.csv nor gains.csv nor result.json")
    path = path or folder / "report.html"
    links = "".join(f'<a href="#{anchor}">{html.escape(title)}</a>' for anchor, title, _ in sections)
    heading = sections[0][1] if len(sections) == 1 else f"{folder.resolve().name}: results"
    navigation = f"<nav>{links}</nav>" if len(sections) > 1 else ""
    body = "".join(
        f'<section id="{html.escape(anchor)}">{_heading(title, sections)}{text}</section>'
        for anchor, title, text in sections
    )
    path.write_text(
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>cords_dp: {html.escape(folder.name)}</title><style>{(_HERE / 'page.css').read_text()}</style>"
        f"<h1>{html.escape(heading)}</h1>{navigation}{body}"
        f"<script>{(_HERE / 'page.js').read_text()}</script></html>\n",
        encoding="utf-8",
    )
    return path


def _heading(title: str, sections: list[Any]) -> str:
    return f"<h2>{html.escape(title)}</h2>" if len(sections) > 1 else ""


def _result_folders(folder: Path) -> Iterator[Path]:
    """Return the folder itself if it holds results, otherwise those directly below it."""
    for candidate in (folder, *sorted(p for p in folder.glob("*") if p.is_dir())):
        if any((candidate / name).is_file() for name in ("runs.csv", "gains.csv", "result.json")):
            yield candidate
            if candidate == folder:
                return


def _sections(folder: Path) -> list[tuple[str, str, str]]:
    """Return anchor, title and text of each section. Single runs that lie beside each other are one, compared."""
    found = list(_result_folders(folder))
    single = [path for path in found if not (path / "runs.csv").is_file() and (path / "result.json").is_file()]
    if len(single) < 2:
        return [_section(path) for path in found]
    together = (folder.name.replace(" ", "-"), f"{folder.resolve().name}: runs side by side", _compared(single))
    return [together, *(_section(path) for path in found if path not in single)]


def _section(folder: Path) -> tuple[str, str, str]:
    about = read_json(folder / "experiment.json")
    title = about.get("title") or folder.resolve().name
    parts = []
    if about.get("paper"):
        parts.append(f"<p class=note>The paper says: {html.escape(about['paper'])}</p>")
    parts += [image_html(path.read_bytes(), title) for path in sorted(folder.glob("*.svg"))]
    if (folder / "runs.csv").is_file():
        parts += _sweep_parts(folder)
    elif (folder / "result.json").is_file():
        parts.append(run_html(folder, f"run {folder.resolve().name}"))
    return folder.name.replace(" ", "-"), title, "".join(parts)


# --- several runs ----------------------------------------------------------------------------------


def _compared(folders: list[Path]) -> str:
    """Render what a reader of several runs wants first: the comparison, what all cost together; then each, folded."""
    frame, by = gathered(folders)
    return comparison_html(frame, by) + cost_html(folders) + _folded(frame, by)


def _folded(frame: pd.DataFrame, by: list[str]) -> str:
    """Render single runs, each to be unfolded; of very many only the first."""
    shown = best_first(frame, by).head(_MOST_RUNS)
    texts = []
    for row in shown.to_dict("records"):
        name, folder = run_label(row, by), Path(row["folder"])
        text = run_html(folder, f"run {folder.name} ({name})")
        beside = "; ".join(filter(None, [run_headline(row, frame), f"folder {folder.name}"]))
        texts.append(
            f"<details><summary><strong>{html.escape(name)}</strong> ({html.escape(beside)})</summary>{text}</details>"
        )
    rest = len(frame) - len(shown)
    more = f"<p>The files of the other {rest} are beside theirs.</p>" if rest else ""
    return f"<h3>Single runs, each with its statement</h3>{''.join(texts)}{more}"


def _sweep_parts(folder: Path) -> list[str]:
    frame = pd.read_csv(folder / "runs.csv")
    if frame.empty:
        return ["<p>No run has finished.</p>", *_failures(folder)]
    folders = [folder / "runs" / str(name) for name in frame["config_hash"]]
    there = [path for path in folders if (path / "result.json").is_file()]
    study = {"dataset", "method", "budget", "share"} <= set(frame.columns)
    by = ["method"] if study else list(frame.columns[: frame.columns.get_loc("seed")])
    parts = _study_parts(frame, folder) if study else []
    if (folder / "comparison.csv").is_file():
        parts.append(f"<h3>Beside the paper</h3>{table_html(_beside_paper(folder))}")
    if there:
        runs, columns = _labelled(frame, folders, there, by)
        parts += [] if study else [comparison_html(runs, columns)]
        parts.append(cost_html(there))
    parts += [_time_html(frame, by), *_failures(folder)]
    return [*parts, _folded(runs, columns)] if there else parts


def _beside_paper(folder: Path) -> pd.DataFrame:
    """Read the comparison with the paper's figures; without a deviation where nothing was run twice."""
    return aligned(pd.read_csv(folder / "comparison.csv").dropna(axis=1, how="all"))


def _labelled(
    frame: pd.DataFrame, folders: list[Path], there: list[Path], by: list[str]
) -> tuple[pd.DataFrame, list[str]]:
    """Return the runs by the sweep's own labels, which say what was to be compared."""
    runs, columns = gathered(there)
    if not by or by == ["method"]:
        return runs, columns
    labels = frame.assign(folder=list(map(str, folders)))[["folder", *by]]
    labels = labels.rename(columns={name: short_name(name, by) for name in by})
    names = list(labels.columns[1:])
    kept = runs.drop(columns=[name for name in {*columns, *names} if name in runs])
    merged = labels.merge(kept, on="folder", how="inner")
    return merged[[*names, *kept.columns]], names


def _study_parts(frame: pd.DataFrame, folder: Path) -> list[str]:
    what = "Test accuracy in percent" if "accuracy" in frame else "RMSE (in the target's unit) and R² on the test set"
    seeds = frame["seed"].nunique()
    spread = ", mean ± std" if seeds > 1 else ""
    parts = [f"<p>{counted(len(frame), 'run')}, {counted(seeds, 'seed')}. {what}{spread}.</p>"]
    for title, table in study_tables(frame, folder).items():
        parts.append(f"<h3>{html.escape(title)}</h3>{table_html(table)}")
    return parts


def _failures(folder: Path) -> list[str]:
    files = sorted((folder / "failed").glob("*.txt"))
    if not files:
        return []
    last = "".join(f"<li>{html.escape(p.read_text().strip().splitlines()[-1])}</li>" for p in files)
    return [f"<div class='note failed'>{counted(len(files), 'run')} failed:<ul>{last}</ul></div>"]


def _time_html(frame: pd.DataFrame, by: list[str]) -> str:
    """Draw how long runs took, unless all were done within a second, or no time is told."""
    seconds = frame.groupby(by or ["strategy"], sort=False)[["train_seconds", "selection_seconds"]].mean()
    if seconds.sum(axis=1).max() < 1:
        return ""
    figure, axis = plt.subplots(figsize=(6.5, 1.0 + 0.35 * len(seconds)), layout="constrained")
    labels = [" ".join(map(str, i)) if isinstance(i, tuple) else str(i) for i in seconds.index]
    axis.barh(labels, seconds["train_seconds"], color="#4C72B0", label="training")
    left = seconds["train_seconds"]
    axis.barh(labels, seconds["selection_seconds"], left=left, color="#DD8452", label="selection")
    axis.invert_yaxis()
    axis.set_xlabel("seconds per run, mean")
    tidy_axis(axis)
    figure.legend(frameon=False, fontsize=8, loc="outside upper right", ncols=2)
    return f"<h3>Time</h3>{figure_html(figure, 'seconds of training and of selection')}"
