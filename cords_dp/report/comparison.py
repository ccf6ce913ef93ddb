"""Sets several runs side by side: what tells them apart, how good they are, how seeds spread, what all cost together.

Reads result.json, config.yaml and privacy.json of each run. Nothing is measured and no record is looked at.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from cords_dp.accounting import Entry, epsilon_bound
from cords_dp.accounting.account import SETTLED, Holding, paid_events
from cords_dp.errors import CordsDPError
from cords_dp.planning.statement import rounded_up
from cords_dp.report.metrics import is_share, metric_numbers, metric_words
from cords_dp.report.pieces import counted, figure_html, read_json, table_html
from cords_dp.report.plots import plt, tidy_axis
from cords_dp.report.tables import WHOLE, mean_std, plain_mean_std

# What tells runs of a folder apart, in this order; others are looked at only where these do not.
_SECTIONS = ("dataset", "model", "dss_args", "privacy")
_OTHERS = ("train_args", "dataloader", "optimizer", "scheduler")
_NO_DIFFERENCE = {
    "dataset.datadir", "dataset.cache", "model.feature_cache", "privacy.account", "train_args.seed",
    "train_args.print_every", "train_args.results_dir", "train_args.device", "train_args.print_args",
}  # fmt: skip
_LONGEST_LABEL = 48
_MOST_DRAWN = 40
_HEADLINES = 3  # metrics in the table that stands first; the others are folded
_BASE_RATE = "base_rate"
_SPENT, _SECONDS, _FOLDER = "ε of a run", "seconds", "folder"  # besides labels and metrics


def gathered(folders: Sequence[Path]) -> tuple[pd.DataFrame, list[str]]:
    """Return a row a run, with its folder and metrics, and the columns by which runs are told apart, seeds aside."""
    results = [read_json(folder / "result.json") for folder in folders]
    labels = differences([_config(folder) for folder in folders])
    for result, label in zip(results, labels, strict=True):
        if result.get("strategy") == WHOLE and "fraction" in label:
            label["fraction"] = ""  # which it does not read
    rows = [
        {
            "strategy": result.get("strategy", ""), **label, "seed": result.get("seed"), **metric_numbers(result),
            _SPENT: result.get("epsilon"), _SECONDS: _seconds(result), _FOLDER: str(folder),
        }
        for result, label, folder in zip(results, labels, folders, strict=True)
    ]  # fmt: skip
    return pd.DataFrame(rows), ["strategy", *(labels[0] if labels else ())]


def differences(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return of each config what it has otherwise than the rest, besides its strategy, its seed and where files lie."""
    flat = [_flat(config) for config in configs]
    found = _differing(flat, _SECTIONS)
    if len(flat) > 1 and not found and len({one.get("dss_args.type") for one in flat}) == 1:
        found = _differing(flat, _OTHERS)  # the same strategy many times: then these were tried out
    return [{short_name(key, found): one.get(key, "") for key in found} for one in flat]


def _differing(flat: Sequence[Mapping[str, Any]], sections: Sequence[str]) -> list[str]:
    keys = dict.fromkeys(key for one in flat for key in one)
    return [
        key
        for section in sections
        for key in keys
        if key.startswith(f"{section}.")
        and key not in _NO_DIFFERENCE
        and key != "dss_args.type"
        and len({str(one.get(key)) for one in flat}) > 1
    ]


def short_name(key: str, among: Sequence[str]) -> str:
    """Return a key without its section, where that is clear."""
    if key == "dss_args.type":
        return "strategy"
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in among) == 1 else key


def _flat(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            values |= _flat(value, f"{before}{key}.")
        elif value is not None:  # kinds of runs are grouped by these values, which a list does not allow
            values[f"{before}{key}"] = ", ".join(map(str, value)) if isinstance(value, list) else value
    return values


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.yaml"
    return (yaml.safe_load(path.read_text()) or {}) if path.is_file() else {}


def _seconds(result: Mapping[str, Any]) -> float:
    return sum(float(result.get(f"{part}_seconds") or 0.0) for part in ("train", "selection"))


# --- the table and the picture ---------------------------------------------------------------------------------


def comparison_html(frame: pd.DataFrame, by: Sequence[str]) -> str:
    """Render picture and table: a line for each kind of run."""
    measured = _measured(frame)
    if not measured:
        return "<p>No run has measured anything.</p>"
    repeated = _repeated(frame, by)
    spread = ", mean ± standard deviation over seeds" if repeated else ", one run each" if len(frame) > 1 else ""
    seeds = frame["seed"].nunique()
    words = counted(len(frame), "run") + (f", {counted(seeds, 'seed')}" if seeds else "") + ". "
    order = "; the best first" if len(frame) > 1 else ""
    base = _common_base_rate(frame)
    beside = f" Always the most frequent class would reach {100 * base:.2f} %." if base is not None else ""
    head, rest = _split(measured, base)
    return (
        f"<p>{words}On the test set{spread}{order}.{beside}</p>{comparison_figure(frame, by, measured[0])}"
        f"{table_html(comparison_table(frame, by, head))}{_other_metrics(frame, by, measured[0], rest)}"
    )


def _split(measured: Sequence[str], base: float | None) -> tuple[list[str], list[str]]:
    """Return the metrics that stand first, and the others. A base rate that all runs have is said in a sentence."""
    head = [name for name in measured if name != _BASE_RATE][:_HEADLINES]
    return head, [name for name in measured if name not in head and (name != _BASE_RATE or base is None)]


def _common_base_rate(frame: pd.DataFrame) -> float | None:
    """Return the base rate of all runs, if it is the same one."""
    values = frame[_BASE_RATE] if _BASE_RATE in frame else pd.Series(dtype=float)
    return float(values.iloc[0]) if len(values) and values.notna().all() and values.nunique() == 1 else None


def _other_metrics(frame: pd.DataFrame, by: Sequence[str], first: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    table = table_html(comparison_table(frame, by, names, first=first, costs=False))
    return f"<details><summary>Other metrics of the test set</summary>{table}</details>"


def comparison_table(
    frame: pd.DataFrame, by: Sequence[str], measured: Sequence[str], *, first: str | None = None, costs: bool = True
) -> pd.DataFrame:
    """Return a row for each kind of run: means, deviations from two seeds on, ε of one run, seconds; the best first.

    first: the metric that orders them, if it is not the first one shown.
    """
    rows = []
    for values, runs in _ordered(frame, by, first or measured[0]):
        row: dict[str, Any] = {
            _LABELS.get(name, name): _allowed(name, value) for name, value in zip(by, values, strict=True)
        }
        row |= {_heading(name): _mean(name, runs[name].dropna()) for name in measured}
        if costs:
            row |= {_SPENT: _epsilon(runs), _SECONDS: _whole_seconds(runs[_SECONDS].mean())}
            row |= {"runs": len(runs)} if _repeated(frame, by) else {}
        rows.append(row)
    return pd.DataFrame(rows)


def comparison_figure(frame: pd.DataFrame, by: Sequence[str], name: str) -> str:
    """Draw a dot for each run and a bar at each kind's mean; names stand beside the axis and cover nothing."""
    kinds = [
        (_label(by, values), runs[name].dropna() * (100 if is_share(name) else 1))
        for values, runs in _ordered(frame, by, name)
    ]
    kinds = [(label, values) for label, values in kinds if len(values)]
    if not 2 <= len(kinds) <= _MOST_DRAWN:
        return ""
    repeated, base = _repeated(frame, by), _common_base_rate(frame) if name == "accuracy" else None
    figure, axis = plt.subplots(figsize=(8.5, 1.0 + 0.34 * len(kinds)), layout="constrained")
    for place, (_, values) in enumerate(kinds):
        axis.plot(values, np.full(len(values), place), "o", color="#4C72B0", alpha=0.6, ms=6)
        if repeated:
            axis.plot([values.mean()] * 2, [place - 0.28, place + 0.28], color="#C44E52", lw=2.5)
    axis.set_yticks(range(len(kinds)), [_cut(label) for label, _ in kinds])
    axis.set_ylim(len(kinds) - 0.5, -0.5)
    words = f"{_heading(name)}: a dot for each run" + (", a bar at the mean" if repeated else "")
    if base is not None:
        axis.axvline(100 * base, color="0.4", ls="--", lw=1, zorder=0)
        words += "\ndashed: always the most frequent class"
    axis.set_xlabel(words)
    tidy_axis(axis)
    return figure_html(figure, f"{metric_words(name)} of each kind of run")


def _cut(label: str) -> str:
    """Return a label that leaves room for the picture: the table below it has all of the words."""
    return label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 2].rstrip()} …"


def best_first(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return the runs in the order of the table."""
    measured = _measured(frame)
    return pd.concat([runs for _, runs in _ordered(frame, by, measured[0])]) if measured else frame


def _repeated(frame: pd.DataFrame, by: Sequence[str]) -> bool:
    """Return whether some kind of run was done more than once."""
    return int(frame.groupby(list(by), sort=False, dropna=False).size().max()) > 1


def _ordered(frame: pd.DataFrame, by: Sequence[str], name: str) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Return the runs of each kind, the best mean first."""
    kinds = [(values, runs) for values, runs in frame.groupby(list(by), sort=False, dropna=False)]
    sign = 1 if name in _LOWER else -1
    return sorted(kinds, key=lambda kind: (math.isnan(mean := kind[1][name].mean()), sign * mean))


_LOWER = {"rmse", "mae", "log_loss", "loss", "calibration_error", "ece"}  # the lower, the better


def _measured(frame: pd.DataFrame) -> list[str]:
    after = list(frame.columns)[list(frame.columns).index("seed") + 1 :]
    return [name for name in after if name not in (_SPENT, _SECONDS, _FOLDER) and frame[name].notna().any()]


def _heading(name: str) -> str:
    return f"{metric_words(name)}, %" if is_share(name) else metric_words(name)


def _mean(name: str, values: pd.Series) -> str:
    if not len(values):
        return ""
    return mean_std(values) if is_share(name) else plain_mean_std(values)


_LABELS = {"epsilon": "ε allowed"}


def _label(by: Sequence[str], values: Sequence[Any]) -> str:
    """Name a kind of run: words as they are, numbers with what they are of."""
    parts = []
    for name, value in zip(by, values, strict=True):
        if name == "epsilon" and _infinite(value):
            parts.append("not private")
        elif isinstance(value, (bool, int, float, np.number)):
            parts.append(f"{_LABELS.get(name, name)} {value if isinstance(value, bool) else f'{value:g}'}")
        elif value not in ("", None):
            parts.append(str(value))
    return ", ".join(parts)


def _allowed(name: str, value: Any) -> Any:
    return "no limit" if name == "epsilon" and _infinite(value) else value


def _infinite(value: Any) -> bool:
    try:
        return math.isinf(float(value))
    except (TypeError, ValueError):
        return False


def _epsilon(runs: pd.DataFrame) -> str:
    values = pd.to_numeric(runs[_SPENT], errors="coerce")
    return "none" if not np.isfinite(values).any() else rounded_up(values[np.isfinite(values)].max())


def _whole_seconds(value: float) -> str:
    return "under 1" if value < 1 else f"{value:.0f}"  # where a pool is secret, no time is told


def run_headline(row: Mapping[str, Any], frame: pd.DataFrame) -> str:
    """Return what a run is compared by, in words; nothing if it has not been measured."""
    name = next(iter(_measured(frame)), "")
    if not name or pd.isna(row[name]):
        return ""
    return f"{metric_words(name)} " + (f"{100 * row[name]:.2f} %" if is_share(name) else f"{row[name]:.4g}")


def run_label(row: Mapping[str, Any], by: Sequence[str]) -> str:
    """Name one run: what tells its kind apart, and its seed."""
    seed = row.get("seed")
    known = "" if seed is None or pd.isna(seed) else f", seed {int(seed)}"
    return f"{_label(by, [row[name] for name in by])}{known}"


# --- what all runs cost together ----------------------------------------------------------------------------------


def cost_together(folders: Sequence[Path]) -> list[str]:
    """Say what all runs on the same data cost a record, or an owner, together: composed, and simply added up.

    Each run splits the data anew, so a record may be in D once and in V another time: it pays the larger side of each.
    What a run promises an owner is no bound for one of its records (`statement.other_relations`): units stay apart.
    """
    reports = [(folder, read_json(folder / "privacy.json")) for folder in folders]
    private = [(folder, report) for folder, report in reports if report.get("private")]
    sentences = []
    kinds = dict.fromkeys((_data(*one), _unit(one[1])) for one in private)
    for data, unit in kinds:
        own = [one for one in private if (_data(*one), _unit(one[1])) == (data, unit)]
        if len(own) > 1:
            sentences.append(_together(data, unit, own))
    for data in dict.fromkeys(data for data, _ in kinds if {(data, "a record"), (data, "an owner")} <= kinds.keys()):
        sentences.append(
            f"Of the runs on {data} some protect a record and some an owner with all of its records: "
            "the two do not add up to a bound for either."
        )
    if private and len(private) < len(reports):
        open_runs = counted(len(reports) - len(private), "run")
        sentences.append(f"{open_runs} without privacy: nothing bounds what is told about a record.")
    return sentences


def _together(data: str, unit: str, runs: Sequence[tuple[Path, Mapping[str, Any]]]) -> str:
    added = sum(report["epsilon"] for _, report in runs), sum(report["delta"] for _, report in runs)
    delta = max(report["delta"] for _, report in runs)
    simply = f"ε = {rounded_up(added[0])} at δ = {added[1]:.3g}"
    about = f"What all runs cost together: {unit} that each of the {len(runs)} private runs on {data} has read pays"
    try:
        bound = epsilon_bound(paid_events([_holding(*one) for one in runs]), delta, "quick")
    except (CordsDPError, KeyError, TypeError, ValueError):  # statements of an earlier or a foreign version
        return f"{about} {simply}, simply added up."
    if bound.epsilon >= added[0]:
        return f"{about} {simply}, simply added up."
    return (
        f"{about} at most ε = {rounded_up(bound.epsilon)} at δ = {delta:.3g}, all charges composed. "
        f"This holds if no run was planned by looking at another's results. Simply added up, they cost {simply}."
    )


def _unit(report: Mapping[str, Any]) -> str:
    return "an owner" if str(report.get("unit")).startswith("one owner") else "a record"


def _holding(folder: Path, report: Mapping[str, Any]) -> Holding:
    entries = tuple(map(Entry.from_dict, report["ledger"]["entries"]))
    return Holding(str(folder), "", "", SETTLED, False, entries)


def _data(folder: Path, report: Mapping[str, Any]) -> str:
    """Name the data of a run. Files of one name count as the same data, which overstates the cost if they are not."""
    data = (report.get("about") or {}).get("data") or {}
    files = ", ".join(file["file"] for file in data.get("files") or ())
    return files or str(data.get("name") or read_json(folder / "result.json").get("dataset") or "the same data")


def cost_html(folders: Sequence[Path]) -> str:
    """Render what all runs cost, as a box."""
    return "".join(f"<p class=note>{html.escape(sentence)}</p>" for sentence in cost_together(folders))
