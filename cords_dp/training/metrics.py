"""Measures loss, accuracy and the errors of a regression after an epoch, by CORDS' names and in its log's format.

A regression has no accuracy: where a config asks for one (``tst_acc``), the root mean squared error and R² are measured
instead (``tst_rmse``, ``tst_r2``), in the target's own unit.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from cords_dp.accounting import TRAINING_DATA
from cords_dp.data.build import evaluation_batches
from cords_dp.data.record_set import RecordSet, category_codes
from cords_dp.files import write_durably
from cords_dp.processes import World

if TYPE_CHECKING:
    from cords_dp.training.log import RowLogger
    from cords_dp.training.session import Session


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    criterion: nn.Module,
    device: str,
    *,
    world: World = World(),  # noqa: B008 - frozen
) -> tuple[float, float]:
    """Return (mean loss, accuracy) over (x, y) batches of all processes; ``criterion`` has reduction="none"."""
    model.eval()
    loss, correct, total = 0.0, 0, 0
    for x, y in batches:
        y = y.to(device)
        outputs = model(x.to(device))
        loss += float(criterion(outputs, y).sum())
        correct += int((outputs.argmax(dim=1) == y).sum())
        total += len(y)
    loss, right, seen = world.total(np.array([loss, correct, total])).tolist()
    return loss / max(seen, 1), right / max(seen, 1)


@torch.no_grad()
def evaluate_regression(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    criterion: nn.Module,
    device: str,
    *,
    in_unit: Callable[[np.ndarray], np.ndarray],
    world: World = World(),  # noqa: B008 - frozen
) -> tuple[float, float, float]:
    """Return (mean loss, root mean squared error, R²) over (x, y) batches, of all processes together.

    The loss is the one that is trained on; the other two are in the unit that ``in_unit`` brings predictions and
    targets to. Of several targets R² is the mean. It is NaN where all targets are equal.
    """
    model.eval()
    loss, pairs = 0.0, [np.zeros((2, 0, 1))] * (world.size > 1)  # a process may have no record
    for x, y in batches:
        y = y.to(device)
        outputs = model(x.to(device)).view_as(y)
        loss += float(criterion(outputs, y).sum())
        pairs.append(torch.stack([outputs, y]).double().reshape(2, len(y), -1).cpu().numpy())
    predicted, true = (in_unit(part) for part in np.concatenate(pairs, axis=1))
    loss, seen, *sums = world.total(np.array([loss, len(true), *true.sum(axis=0)])).tolist()
    around = (true - np.array(sums) / seen) ** 2
    error, spread = world.total(np.array([((predicted - true) ** 2).sum(axis=0), around.sum(axis=0)]))
    explained = 1 - error / np.where(spread > 0, spread, np.nan)
    return loss / seen, float(np.sqrt(error.mean() / seen)), float(explained.mean())


@torch.no_grad()
def predictions(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], device: str, *, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and probabilities of records with a known label; of a regression (0 classes) targets and outputs.

    A record that cannot be read is given the same probability of every class.
    """
    model.eval()
    targets, outputs = [torch.zeros(0)], [torch.zeros(0, max(classes, 1))]
    for x, y in batches:
        found = model(x.to(device)).cpu()
        known = torch.ones(len(y), dtype=torch.bool) if not classes else (y >= 0) & (y < classes)
        if classes:
            found = torch.softmax(found.double(), dim=1)
            found = torch.where(found.isfinite().all(dim=1, keepdim=True), found, 1 / classes)
        targets.append(y.cpu()[known])
        outputs.append(found.reshape(len(y), -1)[known])
    true, given = (torch.cat(parts[1:] or parts).numpy() for parts in (targets, outputs))
    return (true.astype(np.int64), given) if classes else (true.reshape(len(true), -1), given)


def groups_of(dataset: Dataset, column: str | None) -> tuple[np.ndarray, tuple[str, ...]] | None:
    """Return each record's place among the categories of a table's column, and their names; None for other records."""
    if column is None or not isinstance(dataset, RecordSet):
        return None
    inner = dataset.store.innermost()
    readable = hasattr(inner, "category_codes") and len(inner) == len(dataset.store)
    return category_codes(dataset.with_store(inner), column) if readable else None


@dataclass
class History:
    """The measurements after each evaluated epoch."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows if name in row]

    def last(self, name: str, default: Any = None) -> Any:
        column = self.column(name)
        return column[-1] if column else default

    def columns(self) -> dict[str, list[Any]]:
        """Return what was measured, by CORDS' names, and the best test accuracy (or R²) so far, as in checkpoints."""
        measured = {name: self.column(name) for name in ALL_LABELS if self.column(name)}
        for kind in ("acc", "r2"):
            if f"tst_{kind}" in measured:
                measured[f"best_{kind}"] = list(itertools.accumulate(measured[f"tst_{kind}"], max))
        return measured

    def as_cords(self, *, regression: bool) -> tuple[list[float], list[float], list[float], list[float], np.ndarray]:
        """Return what CORDS' ``train`` returns: accuracies (of a regression R²) and seconds."""
        measured, score = self.columns(), scores(regression=regression)[-1]
        trained, validated, tested, best = (measured.get(f"{n}_{score}", []) for n in ("trn", "val", "tst", "best"))
        return trained, validated, tested, best, np.array(self.column("time"))

    def line(self, print_args: list[str], *, best: bool) -> str:
        """Return CORDS' log line for the newest row."""
        row = self.rows[-1]
        parts = [f"Epoch: {row['epoch']}"]
        for name in print_args:
            if name in ALL_LABELS and name in row:
                parts.append(f"{ALL_LABELS[name]}: {row[name]}")
                if name == "tst_acc" and best:
                    parts.append(f"Best Accuracy: {max(self.column('tst_acc'))}")
        return " , ".join(parts)

    def to_csv(self, path: Path) -> None:
        """Write one row per evaluated epoch: epoch, accuracy (or rmse and r2), loss, seconds, epsilon, all else."""
        regression = bool(self.column("tst_r2"))
        shown = {"tst_rmse": "rmse", "tst_r2": "r2"} if regression else {"tst_acc": "accuracy"}
        first = {"epoch": "epoch", **shown, "tst_loss": "loss", "time": "seconds", "epsilon": "epsilon"}
        others = [key for key in dict.fromkeys(k for row in self.rows for k in row) if key not in first]
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*first.values(), *others])
        writer.writerows([row.get(key, "") for key in [*first, *others]] for row in self.rows)
        write_durably(path, text.getvalue())


LABELS = {  # what a config may ask for
    "val_loss": "Validation Loss",
    "val_acc": "Validation Accuracy",
    "tst_loss": "Test Loss",
    "tst_acc": "Test Accuracy",
    "trn_loss": "Training Loss",
    "trn_acc": "Training Accuracy",
    "subtrn_loss": "Subset Loss",
    "subtrn_acc": "Subset Accuracy",
    "time": "Timing",
}
_INSTEAD = {"rmse": "RMSE", "r2": "R2"}
ALL_LABELS = LABELS | {
    name.replace("acc", kind): words.replace("Accuracy", word)
    for name, words in LABELS.items()
    if name.endswith("_acc")
    for kind, word in _INSTEAD.items()
}


def scores(*, regression: bool) -> tuple[str, ...]:
    """Return the names of what says how good a model is, beside its loss; the last is the better the higher."""
    return tuple(_INSTEAD) if regression else ("acc",)


def measured_for(wanted: Sequence[str], *, regression: bool) -> list[str]:
    """Return the metrics that a config asks for, with those of a regression in the place of its accuracies."""
    kinds = scores(regression=regression)
    return [name.replace("_acc", f"_{kind}") for name in wanted for kind in (kinds if name.endswith("_acc") else [""])]


@dataclass(frozen=True)
class Measuring:
    """Measures after an epoch and reports to the log, metrics.csv, W&B or TensorBoard, and Ray Tune.

    Nothing is released here: metrics of private records are left out before (`log.allowed_metrics`) unless the user
    asked for them, and ε follows from the ledger.

    shown: the metrics that may be measured and logged. rows: where rows go besides the history.
    """

    session: Session
    history: History
    shown: list[str]
    rows: RowLogger
    best: bool  # does the log show the best accuracy so far, as a checkout of CORDS does?

    def measure(self, epoch: int, subset_metrics: Mapping[str, float]) -> None:
        """Measure after an epoch, all processes together; rank 0 writes the row down."""
        row: dict[str, Any] = {"epoch": epoch, "time": self.session.shown_seconds(), **self._metrics()}
        if self.session.world.main:
            row.update({key: value for key, value in subset_metrics.items() if key in self.shown})
            self._tell({**row, **self.costs(epoch)})

    def _metrics(self) -> dict[str, float]:
        """Measure losses and accuracies (of a regression: RMSE and R²) of the sets that are shown, all processes
        together."""
        found: dict[str, float] = {}
        data, kinds = self.session.data, ("loss", *scores(regression=self.session.run.regression))
        for prefix, dataset in (("trn", data.train), ("val", data.validation), ("tst", data.test)):
            names = [f"{prefix}_{kind}" for kind in kinds]
            if set(names) & set(self.shown):
                found.update(zip(names, self._measured(dataset), strict=True))
        return found

    def _measured(self, dataset: Dataset) -> tuple[float, ...]:
        session, run = self.session, self.session.run
        batches = evaluation_batches(dataset, run.config, private=session.plan is not None)
        model, loss, world = session.released, session.loss, session.world
        if run.regression:
            return evaluate_regression(model, batches, loss, run.device, in_unit=session.in_unit, world=world)
        return evaluate(model, batches, loss, run.device, world=world)

    def costs(self, epoch: int) -> dict[str, float]:
        """Return ε so far: of D, V and T together, of each, and of each phase."""
        plan = self.session.plan
        if plan is None:
            return {}
        cost = plan.spent(self.session.ledger, quick=epoch < self.session.run.epochs)  # the last row is the statement's
        found = {"epsilon": cost.epsilon, "epsilon_D": cost.training_data.epsilon}
        found.update(
            {f"epsilon_{side}": bound.epsilon for side, bound in cost.of_sets.items() if side != TRAINING_DATA}
        )
        found.update({f"epsilon_{phase.replace(' ', '_')}": bound.epsilon for phase, bound in cost.phases.items()})
        return found

    def _tell(self, row: dict[str, Any]) -> None:
        run = self.session.run
        self.history.rows.append(row)
        self.session.logger.info(self.history.line(self.shown, best=self.best))
        self.rows.log(row)
        if run.config.get("report_tune"):
            from ray import tune

            score = scores(regression=run.regression)[-1]
            tune.report({"mean_accuracy": row.get(f"val_{score}", row.get(f"tst_{score}", 0.0))})
