"""What a report says about a run beside its metrics: accuracy by class, and which kinds of records it drew.

Privacy: the accuracies are of the test set, which is taken as public, as the statement says. What is told about draws
is read from the files of released values that a selection leaves beside its ledger (`selection.archive`), and only for
mechanisms of this package, whose states are known to hold released values: noisy shares of the labels, and chances that
follow from them. No record is looked at for either, and nothing is charged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from cords_dp.datasets import sequential_batches
from cords_dp.planning.mechanism import Mechanism
from cords_dp.selection.align import Align
from cords_dp.training import TrainClassifier

_BATCH = 1024


def about_run(trainer: TrainClassifier, out: Path, classes: tuple[str, ...]) -> dict[str, Any]:
    """``about.json``. Empty where nothing can be said: a regression, a part of the test set in each process."""
    if trainer.run.regression or trainer.world.size > 1 or trainer.model is None or trainer.data is None:
        return {}
    about: dict[str, Any] = {"classes": _by_class(trainer.model, trainer.data.test, classes, trainer.run.device)}
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
    """How often each class is drawn after the last selection, from released values; empty for other mechanisms."""
    if type(mechanism) is not Align:  # a subclass may keep anything in its state
        return []
    files = sorted(out.rglob(f"selection-{ledger}-*.pt"), key=lambda path: int(path.stem.rpartition("-")[2]))
    if not files:
        return []
    state = torch.load(files[-1], weights_only=True)
    shares, chances = state["shares"], state["chances"]
    if shares.shape != (len(classes),) or chances.shape[0] != len(classes):
        return []
    return [_row(name, float(shares[i]), chances[i], len(classes)) for i, name in enumerate(classes)]


def _row(name: str, share: float, chances: Tensor, classes: int) -> dict[str, Any]:
    """Chances are those of a record that a step has drawn to stay in it, by what the model makes of the record."""
    row: dict[str, Any] = {"class": name, "noisy share of D": share}
    if len(chances) == 2 and classes > 2:
        return row | {"kept if predicted right": float(chances[0]), "kept if predicted wrong": float(chances[1])}
    return row | {"kept, on average": float(chances.mean())}
