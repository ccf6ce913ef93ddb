"""One self-contained HTML page about the results in a folder. Reads result files only; needs no network."""

from __future__ import annotations

import base64
import html
import io
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from cords_dp.errors import ResultsError
from cords_dp.report.plots import plt, tidy_axis
from cords_dp.report.tables import aligned, mean_table, study_tables

_HERE = Path(__file__).parent


def write_page(folder: Path, path: Path | None = None) -> Path:
    """Write the page about every experiment, sweep and run found in ``folder``; return its path."""
    sections = [_section(found) for found in _result_folders(folder)]
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
        parts += [*_privacy_parts(folder), "<h3>Result</h3>", _result_table(folder), *_run_parts(folder)]
    return folder.name.replace(" ", "-"), title, "".join(parts)


# --- a sweep ---------------------------------------------------------------------------------------


def _sweep_parts(folder: Path) -> list[str]:
    frame = pd.read_csv(folder / "runs.csv")
    if frame.empty:
        return ["<p>No run has finished.</p>", *_failures(folder)]
    runs, seeds = _counted(len(frame), "run"), _counted(frame["seed"].nunique(), "seed")
    what = "Test accuracy in percent" if "accuracy" in frame else "RMSE (in the target's unit) and R² on the test set"
    parts = [f"<p>{runs}, {seeds}. {what}, mean ± std.</p>"]
    if {"dataset", "method", "budget", "share"} <= set(frame.columns):
        for title, table in study_tables(frame, folder).items():
            parts.append(f"<h3>{html.escape(title)}</h3>{_table(table)}")
        by = ["method"]
    else:
        by = list(frame.columns[: frame.columns.get_loc("seed")])
        parts.append(_table(mean_table(frame, by)))
    if (folder / "comparison.csv").is_file():
        parts.append(f"<h3>Beside the paper</h3>{_table(aligned(pd.read_csv(folder / 'comparison.csv')))}")
    parts += [f"<h3>Time</h3>{_time_figure(frame, by)}", *_failures(folder)]
    shown = _representative(frame)
    run, whose = folder / "runs" / shown["config_hash"], f"{shown.get('method', shown['strategy'])}"
    return _privacy_parts(run, whose) + _all_together(frame) + parts + _run_parts(run, whose)


def _all_together(frame: pd.DataFrame) -> list[str]:
    """Say what several runs on the same private records cost together: the statement above is of one run."""
    private = int((frame["epsilon_allowed"] < math.inf).sum()) if "epsilon_allowed" in frame else 0
    if private < 2:
        return []
    return [
        f"<p class=note>This is the statement of one of {private} private runs. Each has its own, and runs on the same "
        "records add up: publishing all of them costs more than one.</p>"
    ]


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _representative(frame: pd.DataFrame) -> pd.Series:
    """Choose the run whose privacy is shown in full: one that selects, if there is one, at the smallest subset."""
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
    rows = [
        (_words(key), "under 1" if key.endswith("seconds") and value < 1 else value)  # 0 reads as if nothing was done
        for key, value in result.items()
        if value is not None and not isinstance(value, dict) and key != "out"
    ]
    return _table(pd.DataFrame(rows, columns=["result", "value"]), sortable=False)


def _words(key: str) -> str:
    words = {"rmse": "RMSE, in the target's unit", "r2": "R²"}
    return words.get(key) or key.replace("epsilon", "ε").replace("delta", "δ").replace("_", " ")


def _privacy_parts(folder: Path, whose: str = "this run") -> list[str]:
    report = _json(folder / "privacy.json")
    if not report:
        return ["<p class='note open'>No privacy statement: this run is not private.</p>"]
    return [f"<h3>Privacy of {html.escape(whose)}</h3>{_privacy(report)}"]


def _run_parts(folder: Path, whose: str = "this run") -> list[str]:
    """Render everything about one run but its privacy, which stands first."""
    parts = _class_parts(_json(folder / "about.json"))
    if (folder / "metrics.csv").is_file() and (figure := _epsilon_figure(pd.read_csv(folder / "metrics.csv"))):
        parts.append(f"<h3>ε over the epochs</h3>{figure}")
    if (folder / "config.yaml").is_file():
        config = html.escape((folder / "config.yaml").read_text())
        parts.append(
            f"<h3>How to repeat {html.escape(whose)}</h3>{_repeat(folder)}"
            f"<details><summary>config.yaml</summary><pre>{config}</pre></details>"
        )
    return parts


def _class_parts(about: dict[str, Any]) -> list[str]:
    """Render accuracies by class, of the public test set, and the draws of each class, from released values."""
    parts = []
    if about.get("classes"):
        table = pd.DataFrame(about["classes"])
        table["accuracy"] = (100 * table["accuracy"]).map("{:.1f} %".format)
        parts.append(f"<h3>Accuracy by class, on the test set</h3>{_table(table)}")
    if about.get("draws"):
        parts.append(
            f"<h3>Which kinds of records were drawn</h3>{_table(pd.DataFrame(about['draws']).round(3))}"
            "<p class=small>After the last selection, from values that were released with noise and paid for. "
            "“Kept” is the chance of a record that a step has drawn to stay in it; 1 for all means a uniform draw. "
            "No file says which records they were.</p>"
        )
    return parts


def _repeat(folder: Path) -> str:
    versions = _json(folder / "result.json").get("versions") or {}
    found = ", ".join(f"{html.escape(name)} {html.escape(str(number))}" for name, number in versions.items())
    return (
        "<pre>cords-dp run --config config.yaml --out again</pre>"
        "<p class=small>The config is the resolved one, below. A second run costs its budget again, and its noise is "
        f"its own, so results differ by chance.{f' Made with {found}.' if found else ''}</p>"
    )


def _privacy(report: dict[str, Any]) -> str:
    kind = "statement" if report.get("private") else "open"
    text = f"<p class='note {kind}'>{html.escape(report['statement'])}</p>"
    if "mechanisms" not in report:  # no noise at all
        return text
    text += f"<p>{html.escape(report.get('meaning') or '')}</p>"
    phases = [(name, b["epsilon"], b["delta"], b["accountant"]) for name, b in report["phases"].items()]
    phases.append(("D in total", report["epsilon_training_data"], report["delta"], report["accountant"]))
    if report["epsilon_validation_data"] is not None:
        phases.append(("V in total", report["epsilon_validation_data"], report["delta"], ""))
    costs = pd.DataFrame(phases, columns=["phase, taken alone", "ε", "δ", "accountant"])
    rest = "".join(f"<li>{html.escape(item)}</li>" for item in report["not_covered"])
    price = f"<p>{html.escape(report['price_of_selection'])}</p>" if report.get("price_of_selection") else ""
    return (
        f"{text}<h4>What it cost, by phase</h4>{_table(costs)}{price}"
        f"<h4>What was released</h4>{_table(pd.DataFrame(report['mechanisms']))}"
        f"<details><summary>Not covered</summary><ul>{rest}</ul></details>"
    )


def _epsilon_figure(metrics: pd.DataFrame) -> str:
    phases = [name for name in metrics.columns if name.startswith("epsilon")]
    if not phases or len(metrics) < 2 or metrics["epsilon"].isna().all():
        return ""  # only the last epoch was evaluated: the table says it all
    if "epsilon_D" in phases:  # then the total, which is the larger of D's and V's, and V's only phase say nothing new
        phases = [name for name in phases if name not in ("epsilon", "epsilon_validation")]
    figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
    totals = {"epsilon": "total", "epsilon_D": "D in total", "epsilon_V": "V in total"}
    for name in phases:
        label = totals.get(name) or name.removeprefix("epsilon_").replace("_", " ") + ", alone"
        axis.plot(metrics["epoch"], metrics[name], marker="o", ms=3, label=label)
    axis.set(xlabel="epoch", ylabel="ε charged", ylim=(0, None))
    tidy_axis(axis)
    axis.legend(frameon=False, fontsize=8)
    return _inline(figure, "epsilon charged over epochs, by phase")


# --- pieces ----------------------------------------------------------------------------------------


_LONG = 24  # characters; a cell of more is a sentence, which may be broken into lines


def _table(table: pd.DataFrame, *, sortable: bool = True) -> str:
    """Render a table that a click on a heading sorts (page.js), in a box of its own that scrolls on a narrow screen."""
    right = [place > 0 and _numeric(table[name]) for place, name in enumerate(table)]  # the first names the row
    head = "".join(_cell("th", str(name), number) for name, number in zip(table.columns, right, strict=True))
    lines = [
        "".join(_cell("td", _shown(value), number) for value, number in zip(row, right, strict=True))
        for row in table.itertuples(index=False)
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    kind = " class=sortable" if sortable else ""
    return f"<div class=scroll><table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _numeric(column: pd.Series) -> bool:
    """Return whether every cell begins as a number does; such a column stands on the right."""
    return all(re.match(r"[-+−]?[\d.]|$|nan|None", str(value)) for value in column)


def _cell(tag: str, text: str, number: bool) -> str:
    kinds = " ".join([*(["number"] if number else []), *(["words"] if len(text) > _LONG else [])])
    return f"<{tag}{f' class={kinds!r}' if kinds else ''}>{html.escape(text)}</{tag}>"


def _shown(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


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
