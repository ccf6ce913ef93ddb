"""One self-contained HTML page about the results in a folder. Reads result files only; needs no network."""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from cords_dp.errors import ResultsError
from cords_dp.report.plots import plt, tidy_axis
from cords_dp.report.tables import accuracy_tables, aligned, mean_table

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1.5rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; margin: .5rem 0 1.5rem; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; }
.scroll { overflow-x: auto; } img { max-width: 100%; background: white; border-radius: 4px; }
pre { background: var(--soft); padding: 1rem; overflow-x: auto; font-size: .8rem; }
.note { background: var(--soft); padding: .6rem 1rem; border-left: 3px solid #4C72B0; }
.failed { border-left-color: #C44E52; } nav a { margin-right: 1rem; }
"""


def write_page(folder: Path, path: Path | None = None) -> Path:
    """Write the page about every experiment, sweep and run found in ``folder``; return its path."""
    sections = [_section(found) for found in _result_folders(folder)]
    if not sections:
        raise ResultsError(f"no results in {str(folder)!r}: neither runs.csv nor gains.csv nor result.json")
    path = path or folder / "report.html"
    links = "".join(f'<a href="#{anchor}">{html.escape(title)}</a>' for anchor, title, _ in sections)
    body = "".join(
        f'<section id="{anchor}"><h2>{html.escape(title)}</h2>{text}</section>' for anchor, title, text in sections
    )
    path.write_text(
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>cords_dp: {html.escape(folder.name)}</title><style>{_STYLE}</style>"
        f"<h1>cords_dp results</h1><nav>{links}</nav>{body}</html>\n",
        encoding="utf-8",
    )
    return path


def _result_folders(folder: Path) -> Iterator[Path]:
    """The folder itself if it holds results, otherwise those directly below it."""
    for candidate in (folder, *sorted(p for p in folder.glob("*") if p.is_dir())):
        if any((candidate / name).is_file() for name in ("runs.csv", "gains.csv", "result.json")):
            yield candidate
            if candidate == folder:
                return


def _section(folder: Path) -> tuple[str, str, str]:
    about = _json(folder / "experiment.json")
    title = about.get("title") or folder.name
    parts = []
    if about.get("paper"):
        parts.append(f"<p class=note>The paper says: {html.escape(about['paper'])}</p>")
    parts += [f'<p><img alt="{html.escape(title)}" src="{_embedded(p)}"></p>' for p in sorted(folder.glob("*.svg"))]
    if (folder / "runs.csv").is_file():
        parts += _sweep_parts(folder)
    elif (folder / "result.json").is_file():
        parts += [_result_table(folder), *_run_parts(folder)]
    return folder.name.replace(" ", "-"), title, "".join(parts)


# --- a sweep ---------------------------------------------------------------------------------------


def _sweep_parts(folder: Path) -> list[str]:
    frame = pd.read_csv(folder / "runs.csv")
    if frame.empty:
        return ["<p>No run has finished.</p>", *_failures(folder)]
    parts = [f"<p>{len(frame)} runs, {frame['seed'].nunique()} seeds. Test accuracy in percent, mean ± std.</p>"]
    if {"dataset", "method", "budget", "share"} <= set(frame.columns):
        for title, table in accuracy_tables(frame).items():
            parts.append(f"<h3>{html.escape(title)}</h3>{_table(table)}")
        by = ["method"]
    else:
        by = list(frame.columns[: frame.columns.get_loc("seed")])
        parts.append(_table(mean_table(frame, by)))
    if (folder / "comparison.csv").is_file():
        parts.append(f"<h3>Beside the paper</h3>{_table(aligned(pd.read_csv(folder / 'comparison.csv')))}")
    parts += [f"<h3>Time</h3>{_time_figure(frame, by)}", *_failures(folder)]
    shown = _representative(frame)
    return parts + _run_parts(folder / "runs" / shown["config_hash"], f"{shown.get('method', shown['strategy'])}")


def _representative(frame: pd.DataFrame) -> pd.Series:
    """The run whose privacy is shown in full: one that selects, if there is one, at the smallest subset."""
    selects = frame[frame["strategy"] == "GLISTERDP"]
    return (selects if len(selects) else frame).iloc[0]


def _failures(folder: Path) -> list[str]:
    files = sorted((folder / "failed").glob("*.txt"))
    if not files:
        return []
    last = "".join(f"<li>{html.escape(p.read_text().strip().splitlines()[-1])}</li>" for p in files)
    return [f"<div class='note failed'>{len(files)} runs failed:<ul>{last}</ul></div>"]


def _time_figure(frame: pd.DataFrame, by: list[str]) -> str:
    seconds = frame.groupby(by or ["strategy"], sort=False)[["train_seconds", "selection_seconds"]].mean()
    figure, axis = plt.subplots(figsize=(7, 1.0 + 0.35 * len(seconds)), layout="constrained")
    labels = [" ".join(map(str, i)) if isinstance(i, tuple) else str(i) for i in seconds.index]
    axis.barh(labels, seconds["train_seconds"], color="#4C72B0", label="training")
    left = seconds["train_seconds"]
    axis.barh(labels, seconds["selection_seconds"], left=left, color="#DD8452", label="selection")
    axis.invert_yaxis()
    axis.set_xlabel("seconds per run, mean")
    tidy_axis(axis)
    figure.legend(frameon=False, fontsize=8, loc="outside upper right", ncols=2)
    return _inline(figure, "seconds of training and of selection")


# --- a run -----------------------------------------------------------------------------------------


def _result_table(folder: Path) -> str:
    result = _json(folder / "result.json")
    rows = [(key, value) for key, value in result.items() if not isinstance(value, dict) and key != "out"]
    return _table(pd.DataFrame(rows, columns=["result", "value"]))


def _run_parts(folder: Path, whose: str = "this run") -> list[str]:
    parts = []
    report = _json(folder / "privacy.json")
    if report:
        parts.append(f"<h3>Privacy of {html.escape(whose)}</h3>{_privacy(report)}")
    if (folder / "metrics.csv").is_file():
        parts.append(_epsilon_figure(pd.read_csv(folder / "metrics.csv")))
    if (folder / "config.yaml").is_file():
        config = html.escape((folder / "config.yaml").read_text())
        parts.append(f"<details><summary>Config of {html.escape(whose)}</summary><pre>{config}</pre></details>")
    return parts


def _privacy(report: dict[str, Any]) -> str:
    text = f"<p class=note>{html.escape(report['statement'])}</p>"
    if "mechanisms" not in report:  # no noise at all
        return text
    phases = [(name, b["epsilon"], b["delta"], b["accountant"]) for name, b in report["phases"].items()]
    phases.append(("D in total", report["epsilon_training_data"], report["delta"], report["accountant"]))
    if report["epsilon_validation_data"] is not None:
        phases.append(("V in total", report["epsilon_validation_data"], report["delta"], ""))
    costs = pd.DataFrame(phases, columns=["phase, taken alone", "ε", "δ", "accountant"])
    rest = "".join(f"<li>{html.escape(item)}</li>" for item in report["not_covered"])
    price = f"<p>{html.escape(report['price_of_selection'])}</p>" if report.get("price_of_selection") else ""
    return (
        f"{text}{_table(costs)}{price}{_table(pd.DataFrame(report['mechanisms']))}"
        f"<details><summary>Not covered</summary><ul>{rest}</ul></details>"
    )


def _epsilon_figure(metrics: pd.DataFrame) -> str:
    phases = [name for name in metrics.columns if name.startswith("epsilon")]
    if not phases or len(metrics) < 2 or metrics["epsilon"].isna().all():
        return ""  # only the last epoch was evaluated: the table says it all
    figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
    for name in phases:
        label = "total" if name == "epsilon" else name.removeprefix("epsilon_").replace("_", " ") + ", alone"
        axis.plot(metrics["epoch"], metrics[name], marker="o", ms=3, label=label)
    axis.set(xlabel="epoch", ylabel="ε charged", ylim=(0, None))
    tidy_axis(axis)
    axis.legend(frameon=False, fontsize=8)
    return _inline(figure, "epsilon charged over epochs, by phase")


# --- pieces ----------------------------------------------------------------------------------------


def _table(table: pd.DataFrame) -> str:
    return f"<div class=scroll>{table.to_html(index=False, border=0, na_rep='', float_format='{:.4g}'.format)}</div>"


def _inline(figure: Any, alt: str) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg")
    plt.close(figure)
    return f'<p><img alt="{alt}" src="{_data_address(buffer.getvalue())}"></p>'


def _embedded(path: Path) -> str:
    return _data_address(path.read_bytes())


def _data_address(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}
