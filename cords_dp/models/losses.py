"""Losses of single records."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from cords_dp.errors import DataError


class RecordMSELoss(nn.MSELoss):
    """The squared error of each record, averaged over the numbers that it predicts: one loss a record.

    torch's own would broadcast n×1 outputs against n targets to n×n errors, of every record with every other: a record
    would then contribute to the gradients of all. Here outputs and targets are matched row by row or refused.
    """

    def __init__(self) -> None:
        super().__init__(reduction="none")

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if outputs.numel() != targets.numel() or len(outputs) != len(targets):
            raise DataError("a regression needs as many outputs of the model as numbers in a record's target")
        errors = super().forward(outputs.reshape(targets.shape), targets)
        return errors.flatten(1).mean(dim=1) if errors.dim() > 1 else errors


# What a checkpoint with CORDS' keys holds besides tensors: its "loss". Nothing else may be unpickled.


CHECKPOINT_CLASSES: list[Any] = [nn.CrossEntropyLoss, nn.MSELoss, RecordMSELoss, set]
