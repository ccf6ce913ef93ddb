"""Scores by name: how much a record is wanted, as a function of that record and released values alone.

A score is written for **one** record and applied to many by `torch.vmap`, which runs it on each record apart: it
cannot look at the others, and code that tries (sorting, means over the batch, branching on values) does not run.
The result is made finite and brought into [−1, 1], the range that every mechanism's sensitivity rests on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from cords_dp.errors import ConfigError, MechanismError
from cords_dp.noise.clipping import finite_or_zero, keep_rows
from cords_dp.selection.context import Records, SelectionContext, Weights
from cords_dp.selection.last_layer import LastLayer, LastLayerGradients, moved_sum, to_norm
from cords_dp.selection.releases import Releases

# (loss gradient at the logits, unit input of the last layer, released direction or zeros) → score
RecordScore = Callable[["Tensor", "Tensor", "Tensor"], "Tensor"]
_CHUNK = 65_536


@dataclass(frozen=True)
class Score:
    """A named score. ``uses_validation``: it needs the validation gradient, which is then released and charged."""

    name: str
    of_record: RecordScore
    uses_validation: bool


_SCORES: dict[str, Score] = {}


def register_score(name: str, of_record: RecordScore, *, uses_validation: bool = False, force: bool = False) -> Score:
    """Make ``dss_args.score = name`` select by ``of_record(r, a, v)``.

    ``r``: the gradient of the record's loss at the logits (softmax − one-hot for cross-entropy); ``a``: the input of
    the last layer with a leading 1, scaled to norm 1; ``v``: the released validation gradient of norm 1, classes ×
    len(a), or zeros where ``uses_validation`` is false. Return a number; it is clamped to [−1, 1].
    """
    if name in _SCORES and not force:
        raise MechanismError(f"there is a score {name!r} already; pass force=True to replace it")
    _SCORES[name] = Score(name, of_record, uses_validation)
    return _SCORES[name]


def get_score(name: str) -> Score:
    if name not in _SCORES:
        raise ConfigError("dss_args.score", name, f"unknown score; known are {', '.join(sorted(_SCORES))}")
    return _SCORES[name]


def score_records(score: Score, gradients: LastLayerGradients, v: Tensor) -> Tensor:
    """Return the scores of all records, in [−1, 1]; a record that is null or not finite scores 0."""
    if not len(gradients):
        return gradients.r.new_zeros(0)
    apply = torch.vmap(score.of_record, in_dims=(0, 0, None))
    parts = [
        apply(gradients.r[start : start + _CHUNK], gradients.a[start : start + _CHUNK], v)
        for start in range(0, len(gradients), _CHUNK)
    ]
    scores = finite_or_zero(torch.cat(parts).reshape(-1, 1))[:, 0].clamp(-1.0, 1.0)
    return keep_rows(scores, gradients.present)  # any function may be non-zero where there is no record


def unit_gradient(r: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of a record's gradient at length below 1, as automatic clipping leaves it in DP-SGD."""
    return r / (r.norm() + 0.01), a


class ScoringKeys(Protocol):
    """The keys of a mechanism that scores records."""

    @property
    def score(self) -> str: ...
    @property
    def projection(self) -> int: ...
    @property
    def linear_layer(self) -> bool: ...
    @property
    def selection_type(self) -> str: ...


class ScoredRecords:
    """D and V at released weights, through a projected last layer with inputs of norm 1."""

    def __init__(self, keys: ScoringKeys, context: SelectionContext, weights: Weights):
        self.score, self.context = get_score(keys.score), context
        self._scored: tuple[Tensor, np.ndarray] | None = None

        def seen(records: Records) -> LastLayer:
            layer = records.at(weights, linear_layer=keys.linear_layer, projection=keys.projection)
            return LastLayer(layer.gradients.with_unit_inputs(), layer.logits, layer.labels)

        self.training = seen(context.training)
        self.validation = None if context.validation is None else seen(context.validation)

    @property
    def labels(self) -> np.ndarray:
        return self.training.labels.clamp_min(0).cpu().numpy()

    @property
    def present(self) -> np.ndarray:
        """Which records have a cell in a histogram of scores."""
        return self.training.gradients.present.cpu().numpy()

    def zeros(self) -> Tensor:
        gradients = self.training.gradients
        return gradients.r.new_zeros(gradients.r.shape[1], gradients.width)

    def scores(self, v: Tensor) -> np.ndarray:
        if self._scored is None or self._scored[0] is not v:  # a threshold and its members ask for the same scores
            self._scored = v, score_records(self.score, self.training.gradients, v).double().cpu().numpy()
        return self._scored[1].copy()

    def direction(self, releases: Releases, name: str, move: Tensor | None = None) -> Tensor:
        """Return v of norm 1 at weights moved by ``−move``; zeros for a score that does not read V."""
        if self.validation is None or not self.score.uses_validation:
            return self.zeros()
        clip = self.context.plan.privacy.validation_clip
        total = moved_sum(self.validation, self.context.training.loss, clip, move)
        noisy = releases.gaussian(name, total.cpu().numpy())
        return to_norm(torch.from_numpy(noisy).to(self.zeros()), 1.0)

    def unit_sum(self, members: np.ndarray) -> Tensor:
        """Return Σ of the members' gradients at length below 1, in float64."""
        rows = self.training.gradients.rows(torch.from_numpy(np.flatnonzero(members)))
        direction, inputs = unit_gradient_rows(rows)
        return direction.double().T @ inputs.double()


def unit_gradient_rows(gradients: LastLayerGradients) -> tuple[Tensor, Tensor]:
    """Return `unit_gradient` of many records, with room for rounding."""
    return gradients.r * ((1 - 1e-6) / (gradients.r.norm(dim=1, keepdim=True) + 0.01)), gradients.a


def _glister(r: Tensor, a: Tensor, v: Tensor) -> Tensor:
    direction, a = unit_gradient(r, a)
    return torch.dot(direction, v @ a)


def _el2n(r: Tensor, a: Tensor, v: Tensor) -> Tensor:
    """Return the error's length, softmax − one-hot, over its largest value √2 (Paul et al. 2021)."""
    return r.norm() / 2**0.5


def _gradient_norm(r: Tensor, a: Tensor, v: Tensor) -> Tensor:
    """Return half the squared length of the error, which is the last layer's gradient at unit input."""
    return (r * r).sum() / 2


register_score("glister", _glister, uses_validation=True)
register_score("el2n", _el2n)
register_score("grad_norm", _gradient_norm)
