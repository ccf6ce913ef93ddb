"""Renders one run: its privacy first, its results, what was drawn, ε over the epochs, and how to repeat it."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from cords_dp.planning.guarantee import measure_lines
from cords_dp.planning.statement_page import about_rows, other_totals, trade_off_figure
from cords_dp.report.metrics import metric_numbers, metric_rows, metric_tables
from cords_dp.report.pieces import figure_html, read_json, table_html
from cords_dp.report.plots import plt, tidy_axis


def run_html(folder: Path, whose: str = "this run") -> str:
    """Render everything about a run."""
    return "".join([*privacy_parts(folder, whose), "<h3>Result</h3>", result_html(folder), *run_parts(folder, whose)])


def result_html(folder: Path) -> str:
    """Render the summary, all metrics that there are, and tables of those that are more than a number."""
    result = read_json(folder / "result.json")
    rows: list[tuple[str, Any]] = list(metric_rows(result))
    left_out = {"out", *metric_numbers(result), *(["loss"] if "log loss" in dict(rows) else [])}  # the same number
    rows += [
        (_words(key), "under 1" if key.endswith("seconds") and value < 1 else value)  # 0 reads as if nothing was done
        for key, value in result.items()
        if value is not None and not isinstance(value, (dict, list)) and key not in left_out
    ]
    text = table_html(pd.DataFrame(rows, columns=["result", "value"]), sortable=False)
    if "released" in (result.get("metrics") or {}):
        text += (
            "<p class=small>The test set is private: its numbers were released once, with noise, and charged to it. "
            "Intervals hold 95 %, the noise and the draw of the test records included.</p>"
        )
    for title, table in metric_tables(result).items():
        text += f"<h4>Test set: {html.escape(title)}</h4>{table_html(table.round(4))}"
    return text


def _words(key: str) -> str:
    return key.replace("epsilon", "ε").replace("delta", "δ").replace("_", " ")


def privacy_parts(folder: Path, whose: str = "this run") -> list[str]:
    report = read_json(folder / "privacy.json")
    if not report:
        return ["<p class='note open'>No privacy statement: this run is not private.</p>"]
    return [f"<h3>Privacy of {html.escape(whose)}</h3>{_privacy(report, whose)}"]


def run_parts(folder: Path, whose: str = "this run") -> list[str]:
    """Render everything about one run but its privacy, which stands first."""
    measured = read_json(folder / "result.json").get("metrics") or {}
    parts = _class_parts(read_json(folder / "about.json"), recall_shown="by_class" in measured)
    if (folder / "metrics.csv").is_file() and (figure := _epsilon_figure(pd.read_csv(folder / "metrics.csv"))):
        parts.append(f"<h3>ε over the epochs</h3>{figure}")
    if (folder / "config.yaml").is_file():
        config = html.escape((folder / "config.yaml").read_text())
        parts.append(
            f"<h3>How to repeat {html.escape(whose)}</h3>{_repeat(folder)}"
            f"<details><summary>config.yaml</summary><pre>{config}</pre></details>"
        )
    return parts


def _class_parts(about: dict[str, Any], *, recall_shown: bool) -> list[str]:
    """Render accuracies by class, of the public test set, and the draws of each class, from released values."""
    parts = []
    if about.get("classes") and not recall_shown:  # which is the same
        table = pd.DataFrame(about["classes"])
        table["accuracy"] = (100 * table["accuracy"]).map("{:.1f} %".format)
        parts.append(f"<h3>Accuracy by class, on the test set</h3>{table_html(table)}")
    if about.get("draws"):
        parts.append(
            f"<h3>Which kinds of records were drawn</h3>{table_html(pd.DataFrame(about['draws']).round(3))}"
            "<p class=small>After the last selection, from values that were released with noise and paid for. "
            "“Kept” is the chance of a record that a step has drawn to stay in it; 1 for all means a uniform draw. "
            "No file says which records they were.</p>"
        )
    return parts


def _repeat(folder: Path) -> str:
    versions = read_json(folder / "result.json").get("versions") or {}
    found = ", ".join(f"{html.escape(name)} {html.escape(str(number))}" for name, number in versions.items())
    return (
        "<pre>cords-dp run --config config.yaml --out again</pre>"
        "<p class=small>The config is the resolved one, below. A second run costs its budget again, and its noise is "
        f"its own, so results differ by chance.{f' Made with {found}.' if found else ''}</p>"
    )


def _privacy(report: dict[str, Any], whose: str) -> str:
    kind = "statement" if report.get("private") else "open"
    text = (
        f"<p class='note {kind}'><strong>Statement of {html.escape(whose)}.</strong> "
        f"{html.escape(report['statement'])}</p>"
    )
    if "mechanisms" not in report:  # no noise at all
        return text
    text += f"<p>{html.escape(report.get('meaning') or '')}</p>"
    if rows := about_rows(report.get("about") or {}):
        facts = table_html(pd.DataFrame(rows, columns=["which run", ""]), sortable=False)
        text += f"<details><summary>Data, day, model, account and versions</summary>{facts}</details>"
    phases = [(name, b["epsilon"], b["delta"], b["accountant"]) for name, b in report["phases"].items()]
    phases.append(("D in total", report["epsilon_training_data"], report["delta"], report["accountant"]))
    phases += [(f"{name} in total", epsilon, report["delta"], "") for name, epsilon in other_totals(report).items()]
    costs = pd.DataFrame(phases, columns=["phase, taken alone", "ε", "δ", "accountant"])
    rest = "".join(f"<li>{html.escape(item)}</li>" for item in report["not_covered"])
    price = f"<p>{html.escape(report['price_of_selection'])}</p>" if report.get("price_of_selection") else ""
    for title, key in (("Protected are", "protects"), ("Not protected are", "does_not_protect")):
        if report.get(key):
            text += f"<p>{title}: {html.escape('; '.join(report[key]))}.</p>"
    text += measures_part(report)
    return (
        f"{text}<h4>What it cost, by phase</h4>{table_html(costs)}{price}"
        f"<h4>What was released</h4>{table_html(pd.DataFrame(report['mechanisms']))}"
        f"<details><summary>Not covered</summary><ul>{rest}</ul></details>"
    )


def measures_part(report: Mapping[str, Any]) -> str:
    """Render the trade-off curves, with μ and ε at other δ; nothing where an older statement has no measures."""
    measures = report.get("measures") or ()
    if not measures:
        return ""
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in measure_lines(measures))
    return f"<h4>What an attacker can tell</h4>{trade_off_figure(measures)}<ul class=small>{lines}</ul>"


def _epsilon_figure(metrics: pd.DataFrame) -> str:
    phases = [name for name in metrics.columns if name.startswith("epsilon")]
    if not phases or len(metrics) < 2 or metrics["epsilon"].isna().all():
        return ""  # only the last epoch was evaluated: the table says it all
    if "epsilon_D" in phases:  # then the total, which is the larger of D's and V's, and V's only phase say nothing new
        phases = [name for name in phases if name not in ("epsilon", "epsilon_validation", "epsilon_evaluation")]
    figure, axis = plt.subplots(figsize=(7, 3.2), layout="constrained")
    totals = {"epsilon": "total", "epsilon_D": "D in total", "epsilon_V": "V in total", "epsilon_T": "T in total"}
    for name in phases:
        label = totals.get(name) or name.removeprefix("epsilon_").replace("_", " ") + ", alone"
        axis.plot(metrics["epoch"], metrics[name], marker="o", ms=3, label=label)
    axis.set(xlabel="epoch", ylabel="ε charged", ylim=(0, None))
    axis.locator_params(axis="x", integer=True)
    tidy_axis(axis)
    figure.legend(frameon=False, fontsize=8, loc="outside right upper")  # beside the lines, not on them
    return figure_html(figure, "epsilon charged over epochs, by phase")
