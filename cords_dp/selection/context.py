"""What a selector is given, and what it must do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from cords_dp.data.record_set import RecordSet
from cords_dp.models.unchanged import refuse_changes, state_of
from cords_dp.planning.plan import PrivacyPlan
from cords_dp.selection.last_layer import LastLayer, last_layer
from cords_dp.selection.pool import Pool
from cords_dp.selection.releases import Releases

Weights = Mapping[str, "Tensor"]  # a released state_dict


@dataclass(frozen=True)
class Records:
    """The records of one dataset, seen through a copy of the model that nothing else uses."""

    dataset: RecordSet
    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]  # one loss per record
    device: str

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def masses(self) -> np.ndarray:
        """How much each record counts in a table or sum: 1, or its share of its owner, whose records have 1 together.

        Formal guarantee: with these masses an owner's part of a table is a mean of cells, and of a sum a mean of
        vectors: no longer than a record's part would be.
        """
        owners = self.dataset.owners
        return np.ones(len(self)) if owners is None else owners.masses

    def count(self, cells: np.ndarray, *shape: int) -> np.ndarray:
        """Add up the records' masses by cell, −1 for none: a record has 1 in all, and so has an owner with all."""
        some = cells >= 0
        counts = np.bincount(cells[some], weights=self.masses[some], minlength=math.prod(shape))
        return counts.reshape(shape).astype(np.float64)

    def at(self, weights: Weights, *, linear_layer: bool = True, projection: int | None = None) -> LastLayer:
        """Compute last-layer gradients, logits and labels of every record at released weights. Private values."""
        self.model.load_state_dict(weights)
        loaded = state_of(self.model)
        seen = last_layer(
            self.model, self.loss, self.dataset, linear_layer=linear_layer, device=self.device, projection=projection
        )
        refuse_changes(self.model, loaded)  # else one record would change what the next ones look like
        return seen

    def some(self, indices: np.ndarray, weights: Weights, *, linear_layer: bool = True) -> LastLayer:
        """Compute the same of some records, of which alone the model is shown anything."""
        return self.among(indices).at(weights, linear_layer=linear_layer)

    def among(self, indices: np.ndarray) -> Records:
        """Return some of the records."""
        return replace(self, dataset=self.dataset.at(indices))

    def kinds(self, weights: Weights, classes: int) -> tuple[np.ndarray, np.ndarray]:
        """Return label and predicted class of every record; label −1 for one that is null, unknown or not finite."""
        seen = self.at(weights, linear_layer=False)
        labels, predicted = seen.labels.cpu().numpy(), seen.logits.argmax(dim=1).cpu().numpy()
        known = torch.isfinite(seen.logits).all(dim=1).cpu().numpy() & (labels >= 0) & (labels < classes)
        return np.where(known, labels, -1), predicted


@dataclass(frozen=True)
class SelectionContext:
    """Everything a selector may use.

    plan: public. training: D. validation: V, or None where the mechanism declares no release on it.
    coins: randomness for choices that do not look at the records, such as who joins a pool blindly.
    """

    plan: PrivacyPlan
    training: Records
    validation: Records | None
    num_classes: int
    learning_rate: float
    coins: np.random.Generator


class Selector(Protocol):
    """Chooses pools. Noise comes from ``releases`` alone; what it returns holds no value past the mechanism's proof."""

    def select(self, weights: Weights, releases: Releases) -> Pool:
        """Select a pool at released weights."""

    def state(self) -> dict[str, Any]:
        """Return released values only, as tensors and numbers: what a checkpoint may hold instead of the pool."""

    def restore(self, state: dict[str, Any]) -> Pool:
        """Recompute the pool of a checkpoint. Nothing new is released."""
