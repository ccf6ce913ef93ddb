"""Loss and accuracy, and the metrics of a run in CORDS' format."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cords_dp.distributed import World
from cords_dp.files import write_durably
from cords_dp.training.metrics import LABELS


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    criterion: nn.Module,
    device: str,
    *,
    is_regression: bool = False,
    world: World = World(),  # noqa: B008 - frozen
) -> tuple[float, float]:
    """(mean loss, accuracy) over (x, y) batches, of all processes together; ``criterion`` has reduction="none"."""
    model.eval()
    loss, correct, total = 0.0, 0, 0
    for x, y in batches:
        y = y.to(device)
        outputs = model(x.to(device))
        loss += float(criterion(outputs.view_as(y) if is_regression else outputs, y).sum())
        if not is_regression:
            correct += int((outputs.argmax(dim=1) == y).sum())
        total += len(y)
    loss, right, seen = world.total(np.array([loss, correct, total])).tolist()
    return loss / max(seen, 1), right / max(seen, 1)


@dataclass
class History:
    """What was measured after each evaluated epoch."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def column(self, name: str) -> list[Any]:
        return [row[name] for row in self.rows if name in row]

    def last(self, name: str, default: Any = None) -> Any:
        column = self.column(name)
        return column[-1] if column else default

    def columns(self) -> dict[str, list[Any]]:
        """What was measured, by CORDS' names; with the test accuracy goes the best so far, as in its checkpoints."""
        measured = {name: self.column(name) for name in LABELS if self.column(name)}
        if "tst_acc" in measured:
            measured["best_acc"] = list(itertools.accumulate(measured["tst_acc"], max))
        return measured

    def line(self, print_args: list[str], *, best: bool) -> str:
        """CORDS' log line for the newest row."""
        row = self.rows[-1]
        parts = [f"Epoch: {row['epoch']}"]
        for name in print_args:
            if name in LABELS and name in row:
                parts.append(f"{LABELS[name]}: {row[name]}")
                if name == "tst_acc" and best:
                    parts.append(f"Best Accuracy: {max(self.column('tst_acc'))}")
        return " , ".join(parts)

    def to_csv(self, path: Path) -> None:
        """One row per evaluated epoch: epoch, accuracy, loss, seconds, epsilon, then everything else."""
        first = {
            "epoch": "epoch",
            "tst_acc": "accuracy",
            "tst_loss": "loss",
            "time": "seconds",
            "epsilon": "epsilon",
        }
        others = [key for key in dict.fromkeys(k for row in self.rows for k in row) if key not in first]
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*first.values(), *others])
        writer.writerows([row.get(key, "") for key in [*first, *others]] for row in self.rows)
        write_durably(path, text.getvalue())
