"""Summarises a run: for ``result.json``, for a row of a table, in words for its user; and its facts for the report.

Privacy: metrics are of the test set, which is taken as public, as the statement says. The draws are read from
the files of released values that a selection leaves beside its ledger (`selection.session`), and only for mechanisms of
this package, whose states are known to hold released values: noisy shares of the labels, and chances that follow from
them. No record is looked at for either, and nothing is charged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from cords_dp.data.build import described_rows, evaluation_batches
from cords_dp.data.record_set import sequential_batches
from cords_dp.evaluation.measured import metrics_of, metrics_released
from cords_dp.planning.mechanism import Mechanism
from cords_dp.report.metrics import metric_rows, metric_words
from cords_dp.selection.align import Align
from cords_dp.training.metrics import groups_of, predictions

if TYPE_CHECKING:
    from cords_dp.training.session import Session
    from cords_dp.training.trainer import TrainClassifier


@dataclass(frozen=True)
class RunResult:
    """The summary of a run, one row of a table. A regression has ``rmse`` and ``r2``, and NaN as accuracy."""

    dataset: str
    strategy: str
    fraction: float
    seed: int | None
    accuracy: float
    rmse: float | None = field(default=None, kw_only=True)
    r2: float | None = field(default=None, kw_only=True)
    loss: float
    epsilon: float
    epsilon_allowed: float
    delta: float
    train_seconds: float
    selection_seconds: float
    out: str
    metrics: dict[str, Any] = field(default_factory=dict, kw_only=True)  # `evaluation.measured`

    def facts(self) -> dict[str, Any]:
        """Return the summary for ``result.json``: with an accuracy, or with RMSE and R² in its place."""
        other = ("rmse", "r2") if self.rmse is None else ("accuracy",)
        return {name: value for name, value in asdict(self).items() if name not in other}

    def text(self) -> str:
        """Summarise the run for the user when it ends."""
        lines = (
            [] if math.isnan(self.accuracy) else [f"test accuracy   {100 * self.accuracy:.2f} %{_beside(self.metrics)}"]
        )
        if self.rmse is not None:
            lines = [f"test RMSE       {self.rmse:.4g}, in the target's unit", f"test R²         {self.r2:.4f}"]
        lines += _metric_lines(self.metrics)
        if "released" in self.metrics:
            lines.append("  of the private test set, with noise, released once and charged to it; 95 % intervals")
            lines += _lost_line(self.metrics)
        if math.isinf(self.epsilon_allowed):
            lines.append("privacy         none (not a private run)")
        else:
            lines.append(f"epsilon         {self.epsilon:.4f} of {self.epsilon_allowed:g}")
            lines.append(f"delta           {self.delta:.3g}")
        training, selecting = _describe_seconds(self.train_seconds), _describe_seconds(self.selection_seconds)
        lines.append(f"seconds         {training} training, {selecting} selecting")
        lines.append(f"results in      {self.out}")
        if math.isfinite(self.epsilon_allowed):
            lines.append(f"the guarantee   {Path(self.out) / 'privacy.md'}")
        return "\n".join(lines)


def _describe_seconds(seconds: float) -> str:
    """Describe a duration: of a secret pool in whole seconds, where 0 would read as if nothing had been done."""
    return f"{seconds:.1f}" if seconds >= 1 else "under 1"


_HEADLINES = ("accuracy", "base_rate", "rmse", "r2")  # in the first lines already
_FEW_CLASSES = 10


def _lost_line(metrics: Mapping[str, Any]) -> list[str]:
    """Name the metrics that the noise leaves nothing of: a public value, as all that follows from the release."""
    rows = {name: row for name, row in metrics.items() if isinstance(row, Mapping) and "low" in row}
    lost = [metric_words(name) for name, row in rows.items() if row.get("value") is None]
    return [f"  lost in the noise: {', '.join(lost)}; a larger test set or ε shows them"] if lost else []


def _beside(metrics: Mapping[str, Any]) -> str:
    """Describe what always saying the most frequent class would reach, beside an accuracy."""
    rows = dict(metric_rows({"metrics": {"base_rate": metrics.get("base_rate")}}))
    return "".join(f"; always the most frequent class: {value}" for value in rows.values())


def _metric_lines(metrics: Mapping[str, Any]) -> list[str]:
    """Return the other metrics as a small table, and precision and recall where the classes are few."""
    numbers = {name: value for name, value in metrics.items() if name not in _HEADLINES}
    rows = metric_rows({"metrics": numbers})
    lines = [f"  {words:<20}{value}" for words, value in rows]
    classes = metrics.get("by_class")
    if isinstance(classes, list) and len(classes) <= _FEW_CLASSES:
        lines += _table_lines("class", classes)
    return lines + _table_lines("group", metrics.get("by_group") or [])


def _table_lines(first: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    numbers: dict[str, list[str]] = {first: [str(row[first]) for row in rows]}
    for name in list(rows[0])[1:6]:
        values = [row.get(name, math.nan) for row in rows]
        values = [value["value"] if isinstance(value, Mapping) else value for value in values]
        values = [math.nan if value is None else value for value in values]  # lost in the noise
        numbers[metric_words(name)] = [f"{v:,.0f}" if name == "records" else f"{v:.3f}" for v in values]
    widths = {name: max(len(name), *map(len, values)) for name, values in numbers.items()}
    table = [list(numbers), *zip(*numbers.values(), strict=True)]
    return [
        f"  {row[0]:<{widths[first]}}  "
        + "  ".join(f"{v:>{w}}" for v, w in zip(row[1:], list(widths.values())[1:], strict=True))
        for row in table
    ]


# --- measured when the run has ended ----------------------------------------------------------------------------------

_BATCH = 1024


def measured_metrics(trainer: TrainClassifier, classes: tuple[str, ...]) -> dict[str, Any]:
    """Return what ``result.json`` holds as ``metrics``: what was released of a private test set, or exact values of one
    that is public.

    Empty where nothing may be told, and where each process has a part of a public test set.
    """
    if trainer.session.tested is not None:
        wanted = trainer.run.config["train_args"].get("metrics")
        return metrics_released(trainer.session.tested, classes=classes, wanted=wanted)
    if trainer.world.size > 1 or trainer.model is None or trainer.data is None or not trainer.run.shows_test:
        return {}
    run, test = trainer.run, trainer.data.test
    batches = evaluation_batches(test, run.config, private=trainer.plan is not None)
    targets, outputs = predictions(trainer.model, batches, run.device, classes=len(classes))
    if not len(targets):
        return {}
    if classes:  # a network may have more outputs than the set has classes
        classes = (*classes, *map(str, range(len(classes), outputs.shape[1])))
    if run.regression:
        targets, outputs = trainer.session.in_unit(targets), trainer.session.in_unit(outputs)
    section = run.config["train_args"]
    groups = groups_of(test, section.get("metrics_by"))
    if groups is not None and len(groups[0]) != len(targets):  # labels that are no class, in a set that was handed over
        groups = None
    return metrics_of(targets, outputs, classes=classes, wanted=section.get("metrics"), groups=groups)


def published_rows(session: Session) -> dict[str, Any]:
    """Return ``subset.json``: the last subset by its records' rows in the file or the published set."""
    return described_rows(session.run.config, session.rows_of_train, session.published_subset())


def about_run(trainer: TrainClassifier, out: Path, classes: tuple[str, ...]) -> dict[str, Any]:
    """Return what ``about.json`` holds; empty for a regression and where each process has a part of the test set."""
    if trainer.run.regression or trainer.world.size > 1 or trainer.model is None or trainer.data is None:
        return {}
    about: dict[str, Any] = {}
    if trainer.run.shows_test:
        about["classes"] = _by_class(trainer.model, trainer.data.test, classes, trainer.run.device)
    if draws := released_draws(trainer.run.mechanism, out, trainer.ledger.id, classes):
        about["draws"] = draws
    return about


@torch.no_grad()
def _by_class(model: nn.Module, dataset: Dataset, classes: tuple[str, ...], device: str) -> list[dict[str, Any]]:
    model.eval()
    right, total = torch.zeros(len(classes)), torch.zeros(len(classes))
    for x, y in sequential_batches(dataset, _BATCH):
        known = (y >= 0) & (y < len(classes))
        hits = (model(x.to(device)).argmax(dim=1).cpu() == y).float()
        total += torch.bincount(y[known], minlength=len(classes))
        right += torch.bincount(y[known], weights=hits[known], minlength=len(classes))
    return [
        {"class": name, "test records": int(n), "accuracy": float(r / n)}
        for name, r, n in zip(classes, right, total, strict=True)
        if n
    ]


def released_draws(
    mechanism: Mechanism | None, out: Path, ledger: str, classes: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return how often each class is drawn after the last selection, by released values; empty if not known."""
    if type(mechanism) is not Align:  # a subclass may keep anything in its state
        return []
    found = ((path, path.stem.rpartition("-")[2]) for path in out.rglob(f"selection-{ledger}-*.pt"))
    files = [path for path, name in sorted(found, key=lambda one: one[1].zfill(9)) if name.isdecimal()]
    if not files:
        return []
    state = torch.load(files[-1], weights_only=True)
    shares, chances = state["shares"], state["chances"]
    if shares.shape != (len(classes),) or chances.shape[0] != len(classes):
        return []
    return [_row(name, float(shares[i]), chances[i], len(classes)) for i, name in enumerate(classes)]


def _row(name: str, share: float, chances: Tensor, classes: int) -> dict[str, Any]:
    """Describe one class. Chances are those of a drawn record to stay in a step, by what the model makes of it."""
    row: dict[str, Any] = {"class": name, "noisy share of D": share}
    if len(chances) == 2 and classes > 2:
        return row | {"kept if predicted right": float(chances[0]), "kept if predicted wrong": float(chances[1])}
    return row | {"kept, on average": float(chances.mean())}
