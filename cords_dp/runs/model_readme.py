"""Writes ``README.md`` into a run's folder: a model card as model hubs want it, from the facts of the other files.

It holds what ``model.json``, ``result.json`` and ``privacy.json`` hold, in other words; nothing is measured for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cords_dp.files import write_durably
from cords_dp.planning.guarantee import rounded_up
from cords_dp.planning.statement_page import about_rows
from cords_dp.report.metrics import metric_numbers, metric_rows

NAME = "README.md"
_LIBRARY = "cords_dp"


def write_model_readme(
    folder: Path, card: Mapping[str, Any], result: Mapping[str, Any], report: Mapping[str, Any]
) -> None:
    """Write the card, unless a README of somebody else's lies there."""
    if is_ours(folder / NAME):
        write_durably(folder / NAME, model_readme(folder.resolve().name, card, result, report))


def is_ours(path: Path) -> bool:
    """Return whether a file may be replaced: there is none, or a run has written it."""
    if not path.is_file():
        return True
    with path.open(encoding="utf-8", errors="replace") as file:
        return [file.readline().strip() for _ in range(2)] == ["---", f"library_name: {_LIBRARY}"]


def model_readme(name: str, card: Mapping[str, Any], result: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    """Render the card: metadata in YAML, use, results, privacy, limits. ``report`` is empty if there is no privacy."""
    private = bool(report.get("private"))
    kind = "regression" if card["regression"] else "classification"
    statement = report.get("statement") or "This model was trained WITHOUT privacy: it may tell its training records."
    cost = f"ε = {rounded_up(report['epsilon'])}, δ = {report['delta']:.3g}" if private else ""
    lines = [
        "---",
        yaml.safe_dump(_metadata(name, card, result, report), sort_keys=False, allow_unicode=True).strip(),
        "---",
        "",
        f"# {name}",
        "",
        f"A model for {kind}, trained by {_LIBRARY} with the strategy {result['strategy']} on {result['dataset']}"
        + (f", with differential privacy: {cost}." if cost else "."),
        "",
        "## Use",
        "",
        "```python",
        "from cords_dp import load_model",
        "",
        'model = load_model(".")  # this folder',
        f"model.{'predict' if card['regression'] else 'predict_proba'}(records)  # {_records(card)}",
        "```",
        "",
    ]
    classes = list(card["classes"])
    if classes != list(map(str, range(len(classes)))) and len(classes) <= _MOST_CLASSES:
        lines += [f"Classes, in the order of the outputs: {', '.join(f'`{one}`' for one in classes)}.", ""]
    lines += ["## Results on the test set", "", "| | |", "|---|---|"]
    lines += [f"| {words} | {value} |" for words, value in metric_rows(result)]
    if "released" in (result.get("metrics") or {}):
        lines += ["", "Of a private test set: released with noise and charged to it; the intervals hold 95 %."]
    lines += ["", "## Privacy", "", statement, ""]
    if report.get("meaning"):
        lines += [report["meaning"], ""]
    rows = about_rows(report.get("about") or {})
    if rows:
        lines += ["| | |", "|---|---|", *(f"| {words} | {value} |" for words, value in rows), ""]
    for title, key in (("Protected are", "protects"), ("Not protected are", "does_not_protect")):
        if report.get(key):
            lines += [f"{title}", "", *(f"- {item}" for item in report[key]), ""]
    if report.get("mechanisms"):
        lines += ["The whole statement is `privacy.md`; `privacy.html` is the same to print.", ""]
    lines += ["## How it was trained", "", *_training(card, result), ""]
    if report.get("not_covered"):
        lines += ["## Limits", "", "The guarantee does not cover", "", *(f"- {x}" for x in report["not_covered"]), ""]
    return "\n".join(lines)


_MOST_CLASSES = 30


def _metadata(
    name: str, card: Mapping[str, Any], result: Mapping[str, Any], report: Mapping[str, Any]
) -> dict[str, Any]:
    task, numbers = _task(card), metric_numbers(result)
    private = bool(report.get("private"))
    published = not (report.get("about") or {}).get("data", {}).get("files") and card.get("source") is None
    metadata: dict[str, Any] = {
        "library_name": _LIBRARY,
        "pipeline_tag": task,
        "tags": [_LIBRARY, *(["differential-privacy", "dp-sgd"] if private else []), str(result["strategy"])],
    }
    if published:
        metadata["datasets"] = [str(result["dataset"])]
    metadata["metrics"] = list(numbers)
    if private:
        metadata["differential_privacy"] = {
            "epsilon": report["epsilon"],
            "delta": report["delta"],
            "unit": report.get("unit"),
            "neighbouring_relation": "zero-out",
        }
    metadata["model-index"] = [
        {
            "name": name,
            "results": [
                {
                    "task": {"type": task},
                    "dataset": {"name": str(result["dataset"]), "type": str(result["dataset"])},
                    "metrics": [{"type": kind, "value": value} for kind, value in numbers.items()],
                }
            ],
        }
    ]
    return metadata


def _task(card: Mapping[str, Any]) -> str:
    if card["regression"]:
        return "tabular-regression"
    if len(card["shape"]) == 3:
        return "image-classification"
    text = card["dtype"] in ("uint8", "int64")  # rows of bytes or of words
    return "text-classification" if text else "tabular-classification"


def _records(card: Mapping[str, Any]) -> str:
    return f"{card['dtype']}, of shape (n, {', '.join(map(str, card['shape']))}); or predict_file"


def _training(card: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {number}" for name, number in (result.get("versions") or {}).items())
    return [
        f"- model: {card['model'].get('architecture')}",
        f"- strategy: {result['strategy']}, {100 * float(result['fraction']):g} % of the records",
        "- every setting: `config.yaml`",
        *([f"- versions: {versions}"] if versions else []),
    ]
