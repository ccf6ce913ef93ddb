"""Losses of single records."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


def kinds(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Write a record's label and its predicted class as one target, which `LikelihoodLoss` reads."""
    return torch.where(labels < 0, labels, labels + classes * predicted.to(labels))


def trusted(labels: Tensor, classes: int) -> Tensor:
    """Write the label of a record of V as a target: it is right, whatever has become of D's labels."""
    return torch.where(labels < 0, labels, labels + classes * classes)


def labels_of(targets: Tensor, classes: int) -> Tensor:
    """Return the labels in targets made by `kinds` or `trusted`; those of plain targets are the targets themselves."""
    return torch.where(targets < 0, targets, targets % classes)


class LikelihoodLoss(nn.Module):
    """Minus the log likelihood of a record's label, given how D's labels came about (`selection.likelihood`).

    With logits z, label o and predicted class ŷ: log Σ_y exp(z_y)·S[y, ŷ] − log Σ_y exp(z_y)·m[y, o]. A function of
    one record and of tables that are set from released values. Its gradient in the logits is the difference of two
    distributions, so it is at most √2 long, as that of the plain loss. It is the plain loss for records of V, and for
    all until tables are set.
    """

    def __init__(self, classes: int):
        super().__init__()
        self.classes = classes
        self._given: Tensor | None = None
        self._drawn: Tensor | None = None

    def use(self, given: Tensor | None, drawn: Tensor | None) -> None:
        """Take over m[class, label] and S[class, predicted class]; None for the plain loss."""
        self._given, self._drawn = (None if table is None else table.T.log() for table in (given, drawn))

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        labels = labels_of(targets, self.classes)
        if self._given is None or self._drawn is None:
            return F.cross_entropy(logits, labels, reduction="none")
        of_v, known = targets >= self.classes**2, targets.clamp(min=0) % self.classes**2
        given, drawn = self._given.to(logits), self._drawn.to(logits)
        seen = torch.logsumexp(logits + given[known % self.classes], dim=1)
        shown = torch.logsumexp(logits + drawn[torch.div(known, self.classes, rounding_mode="floor")], dim=1)
        likelihood = (shown - seen) * (targets >= 0)
        return torch.where(of_v, F.cross_entropy(logits, labels.clamp(min=0), reduction="none"), likelihood)


# What a checkpoint with CORDS' keys holds besides tensors: its "loss". Nothing else may be unpickled.


CHECKPOINT_CLASSES: list[Any] = [nn.CrossEntropyLoss, nn.MSELoss, RecordMSELoss, set]
