"""Null records: what zero-out puts in a record's place.

A null record stays in the index set and contributes nothing to any query. No value of a record does that: a blank image
has a gradient. So the package is handed records of which some say that they are null:

* a training step never draws them: they are taken out of the `Pool`, while n, rate and normaliser stay as they are;
* `NullRecords` gives them no last-layer gradient, no input of the last layer and no prediction; a record without input
  scores 0 and has no cell in a histogram, one without prediction has none in a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from cords_dp.data.record_set import RecordSet
from cords_dp.selection import Pool, Records
from cords_dp.selection.context import Weights
from cords_dp.selection.last_layer import LastLayer
from cords_dp.training.poisson import Batch
from cords_dp.training.private_session import PrivateSession

_NOBODY = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class NullRecords(Records):
    """Records of which those at ``null`` are null. They keep their places, and labels that nothing may count."""

    null: np.ndarray = field(default_factory=lambda: _NOBODY)

    def at(self, weights: Weights, **options: Any) -> LastLayer:
        layer, null = super().at(weights, **options), torch.from_numpy(self.null)
        logits = layer.logits.clone()
        logits[null] = torch.nan
        return LastLayer(layer.gradients.without(null), logits, layer.labels)

    def among(self, indices: np.ndarray) -> Records:
        part, null = super().among(indices), np.flatnonzero(np.isin(indices, self.null))
        return replace(self, dataset=part.dataset, null=null)


def without(pool: Pool, indices: np.ndarray) -> Pool:
    """Return the pool without some records; the others stay as they are."""
    return pool.only(~np.isin(pool.indices, indices))


class NullSession(PrivateSession):
    """A private run in which some records of D are null; everything else is as in any other run."""

    null = _NOBODY

    def records(self, dataset: RecordSet, model: nn.Module) -> Records:
        records = super().records(dataset, model)
        if dataset is not self.data.train:
            return records
        return NullRecords(records.dataset, records.model, records.loss, records.device, null=self.null)

    def drawn(self, pool: Pool, *, rate: float, steps: int) -> Iterator[Batch]:
        return super().drawn(without(pool, self.null), rate=rate, steps=steps)
