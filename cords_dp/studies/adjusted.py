"""A rival of the likelihood: class shares corrected in the predictions, after training.

The logarithm of V's class shares over D's is added to the logits of the finished model. The ratio is one that the run
has released and paid for, so this is post-processing; `class_weights` with a power of 0 is plain training that counts
the labels and does nothing else about them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from dotmap import DotMap
from torch import Tensor, nn

from cords_dp.config import to_plain
from cords_dp.runs.jobs import RESULT, kept_files


class AdjustedLogits(nn.Module):
    """A model with an offset for each class."""

    def __init__(self, model: nn.Module, offset: Tensor):
        super().__init__()
        self.model = model
        self.register_buffer("offset", offset)

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x) + self.offset


def execute_adjusted(config: Mapping[str, Any]) -> dict[str, bytes]:
    """As `jobs.execute`, with the released class ratios in the logits of the finished model before it is measured."""
    from cords_dp.runs.run import measured_metrics, run_and_hand_over

    with tempfile.TemporaryDirectory(prefix="cords_dp-") as folder:
        trainer, _ = run_and_hand_over(DotMap(to_plain(config)), Path(folder), progress=False)
        files = kept_files(Path(folder))
        assert trainer.model is not None
        ratio = _released_ratio(Path(folder))
        trainer.model = AdjustedLogits(trainer.model, torch.log(ratio.clamp(1e-3, 1e3)).float())
        result = json.loads(files[RESULT])
        metrics = measured_metrics(trainer, tuple(result["classes"]))
        result |= {"accuracy": metrics["accuracy"], "loss": metrics["log_loss"], "metrics": metrics}
        return {**files, RESULT: json.dumps(result, indent=2).encode()}


def _released_ratio(folder: Path) -> Tensor:
    """Return V's class shares over D's, as the run's only selection has released them."""
    (file,) = folder.rglob("selection-*.pt")
    ratio: Tensor = torch.load(file, weights_only=True)["ratio"]
    return ratio
