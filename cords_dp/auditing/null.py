"""Null records: what zero-out puts in a record's place, in the package's own machinery.

A null record stays in the index set and contributes nothing to any query. No value of a record does that (a blank
image has a gradient, a record that is not finite still has a class), so inside `nulled` the package itself is told:

* a training step never draws it: it is taken out of the `Pool`, while n, rate and normaliser stay as they are;
* its last-layer gradient and the input of its last layer are zero, and so is its unit gradient in `match`;
* it has no cell in a histogram of scores or a table of predictions: its score and its logits there are NaN, which the
  package leaves out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cords_dp.data.record_set import RecordSet
from cords_dp.selection import Pool, Records, match
from cords_dp.selection.last_layer import LastLayer, LastLayerGradients
from cords_dp.selection.releases import Releases
from cords_dp.training import session as epochs


@contextmanager
def nulled(dataset: RecordSet, indices: np.ndarray) -> Iterator[None]:
    """Inside, the records of ``dataset`` (the very object) at ``indices`` are null."""
    indices = np.asarray(indices, dtype=np.int64)
    with ExitStack() as patches:
        for owner, name, build in (
            (epochs, "poisson_batches", _batches_without),
            (Records, "at", _zero_rows),
            (match, "uniform_gradients", _zero_unit_gradients),
            (Releases, "tail_counts", _no_cells),
        ):
            patches.enter_context(_replaced(owner, name, build(getattr(owner, name), dataset, indices)))
        yield


def _same(records: RecordSet, dataset: RecordSet) -> bool:
    """Is it the set, whatever the trainer has said of its targets since?"""
    return records.store is dataset.store and np.array_equal(records.rows, dataset.rows)


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def without(pool: Pool, indices: np.ndarray) -> Pool:
    """The pool without some records; the others keep their weights and chances."""
    kept = ~np.isin(pool.indices, indices)

    def rest(values: np.ndarray | None) -> np.ndarray | None:
        return None if values is None else values[kept]

    return Pool(pool.indices[kept], weights=rest(pool.weights), chances=rest(pool.chances))


def _batches_without(real: Callable[..., Any], dataset: RecordSet, indices: np.ndarray) -> Callable[..., Any]:
    def batches(records: RecordSet, pool: Pool, **rest: Any) -> Any:
        return real(records, without(pool, indices) if _same(records, dataset) else pool, **rest)

    return batches


def _zero_rows(real: Callable[..., LastLayer], dataset: RecordSet, indices: np.ndarray) -> Callable[..., LastLayer]:
    def at(self: Records, *args: Any, **kwargs: Any) -> LastLayer:
        layer = real(self, *args, **kwargs)
        if not _same(self.dataset, dataset):
            return layer
        gradients = layer.gradients.without(torch.from_numpy(indices))
        logits = layer.logits.clone()
        logits[torch.from_numpy(indices)] = torch.nan  # no prediction, hence no cell in a table of `align`
        return LastLayer(gradients, logits, layer.labels)

    return at


def _zero_unit_gradients(
    real: Callable[..., LastLayerGradients], dataset: RecordSet, indices: np.ndarray
) -> Callable[..., LastLayerGradients]:
    def uniform_gradients(inputs: Tensor, labels: Tensor, classes: int) -> LastLayerGradients:
        found = real(inputs, labels, classes)
        if len(inputs) != len(dataset):  # the other of D and V
            return found
        # a real record's input begins with 1, also where the rest of it is not finite and was made zero
        there = _marked(inputs, indices)
        return LastLayerGradients(torch.where(there, found.r, 0.0), torch.where(there, found.a, 0.0))

    return uniform_gradients


def _marked(inputs: Tensor, indices: np.ndarray) -> Tensor:
    """False in the rows that `_zero_rows` has emptied."""
    null = torch.zeros(len(inputs), dtype=torch.bool)
    null[torch.from_numpy(indices[indices < len(inputs)])] = True
    return ~(null & (inputs == 0).all(dim=1))[:, None]


def _no_cells(real: Callable[..., np.ndarray], dataset: RecordSet, indices: np.ndarray) -> Callable[..., np.ndarray]:
    def tail_counts(self: Releases, name: str, scores: np.ndarray, labels: np.ndarray, **rest: Any) -> np.ndarray:
        release = self._declared.get(name)
        # only D and V have histograms; which of the two is nulled shows by the release's own dataset
        if release is not None and release.dataset == getattr(dataset.store, "audited_as", release.dataset):
            scores = np.array(scores, dtype=np.float64)
            scores[indices] = np.nan
        return real(self, name, scores, labels, **rest)

    return tail_counts
