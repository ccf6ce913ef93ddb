"""What the runs of some experiments do besides `runs.jobs.execute`: change the finished model, or measure more of it.

`execute_adjusted` is a rival of the likelihood: class shares corrected in the predictions, after training. The
logarithm of V's class shares over D's is added to the logits of the finished model. The ratio is one that the run has
released and paid for, so this is post-processing; `labels.ClassWeights` with a power of 0 is plain training that counts
the labels and does nothing else about them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dotmap import DotMap
from torch import Tensor, nn

from cords_dp import TrainClassifier
from cords_dp.config import to_plain
from cords_dp.extend import RecordSet, category_codes, sequential_batches
from cords_dp.runs.jobs import RESULT, kept_files

_BATCH = 4096


def execute_adjusted(config: Mapping[str, Any]) -> dict[str, bytes]:
    """Do as `jobs.execute` does, with the released class ratios in the finished model's logits before measuring."""

    def measured_again(trainer: TrainClassifier, folder: Path, result: Mapping[str, Any]) -> dict[str, Any]:
        from cords_dp.runs.run import measured_metrics

        assert trainer.model is not None
        ratio = _released_ratio(folder)
        trainer.model = AdjustedLogits(trainer.model, torch.log(ratio.clamp(1e-3, 1e3)).float())
        metrics = measured_metrics(trainer, tuple(result["classes"]))
        return {"accuracy": metrics["accuracy"], "loss": metrics["log_loss"], "metrics": metrics}

    return _executed(config, measured_again)


def execute_by_group(config: Mapping[str, Any], *, column: str) -> dict[str, bytes]:
    """Do as `jobs.execute` does; add ``accuracy_VALUE`` of the test set for each category of the column."""

    def by_group(trainer: TrainClassifier, folder: Path, result: Mapping[str, Any]) -> dict[str, Any]:
        assert trainer.model is not None
        assert trainer.data is not None
        shares = group_accuracies(trainer.model, trainer.data.test, column)
        return {f"accuracy_{name}": share for name, share in shares.items()}

    return _executed(config, by_group)


def _executed(
    config: Mapping[str, Any], measure: Callable[[TrainClassifier, Path, Mapping[str, Any]], dict[str, Any]]
) -> dict[str, bytes]:
    """Run a config; return its files, with what ``measure`` finds added to the result."""
    from cords_dp.runs.run import run_and_hand_over

    with tempfile.TemporaryDirectory(prefix="cords_dp-") as folder:
        trainer, _ = run_and_hand_over(DotMap(to_plain(config)), Path(folder), progress=False)
        files = kept_files(Path(folder))
        result = json.loads(files[RESULT])
        result |= measure(trainer, Path(folder), result)
        return {**files, RESULT: json.dumps(result, indent=2).encode()}


class AdjustedLogits(nn.Module):
    """A model with an offset for each class."""

    def __init__(self, model: nn.Module, offset: Tensor):
        super().__init__()
        self.model = model
        self.register_buffer("offset", offset)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x) + self.offset


def _released_ratio(folder: Path) -> Tensor:
    """Return V's class shares over D's, as the run's only selection has released them."""
    (file,) = folder.rglob("selection-*-[0-9]*.pt")  # a temperature is no selection
    ratio: Tensor = torch.load(file, weights_only=True)["ratio"]
    return ratio


@torch.no_grad()
def group_accuracies(model: nn.Module, dataset: RecordSet, column: str) -> dict[str, float]:
    """Return the share of right predictions for each category of a column that occurs in the (public) test set."""
    model.eval()
    right = np.concatenate([(model(x).argmax(1) == y).numpy() for x, y in sequential_batches(dataset, _BATCH)])
    codes, categories = category_codes(dataset, column)
    return {name: float(right[codes == code].mean()) for code, name in enumerate(categories) if (codes == code).any()}
