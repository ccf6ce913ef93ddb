"""`top_k`: a subset to publish, at a price that does not depend on its size.

Formal guarantees
-----------------
Unit: one record of D, zero-out. ``v`` is frozen, so zeroing record j changes its own score alone, from u_j ∈ [−1, 1]
to 0: the vector of scores has L2 sensitivity 1. All scores are released once with noise N(0, σ²) each, one Gaussian
event per selection; the k largest, ties by index, are post-processing, whatever k is. The same noise is never looked at
again with other scores. On V, the validation gradient is one Gaussian event of sensitivity C_v.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from cords_dp.accounting import TRAINING_DATA, gaussian
from cords_dp.config.settings import PrivacySettings, SubsetSettings
from cords_dp.errors import ConfigError
from cords_dp.planning.mechanism import Mechanism, Release, SelectionNoise
from cords_dp.planning.schedule import Sizes
from cords_dp.selection.context import SelectionContext, Selector, Weights
from cords_dp.selection.pool import Pool
from cords_dp.selection.releases import Releases
from cords_dp.selection.scores import ScoredRecords, get_score
from cords_dp.selection.shared import (
    LINEAR_LAYER,
    PROJECTION,
    SCORE,
    SELECTION_TYPE,
    ReleasedSubset,
    validation_gradient,
)

_SCORES, _VALIDATION = "scores", "validation gradient"


@dataclass(frozen=True, kw_only=True)
class TopK(Mechanism):
    """The k records with the largest noisy scores."""

    name: ClassVar[str] = "top_k"
    summary: ClassVar[str] = "one Gaussian release per selection, whatever k is"
    use_case: ClassVar[str] = "publishing the subset (`publish_subset=True`)"
    privacy_keys: ClassVar[frozenset[str]] = frozenset({"split", "validation_clip", "validation_noise"})

    score: str = SCORE.field()
    projection: int = PROJECTION.field()
    linear_layer: bool = LINEAR_LAYER.field()
    selection_type: str = SELECTION_TYPE.field()

    @property
    def reads_validation(self) -> bool:
        return get_score(self.score).uses_validation

    def check(self, privacy: PrivacySettings, subset: SubsetSettings) -> None:
        if self.selection_type == "PerClass":
            raise ConfigError(
                "dss_args.selection_type", "PerClass", "top_k ranks all records together; use 'Supervised'"
            )

    def releases(self, noise: SelectionNoise, privacy: PrivacySettings, sizes: Sizes) -> tuple[Release, ...]:
        words = "all scores; 1 (one score in [−1, 1])"
        scores = Release(_SCORES, TRAINING_DATA, gaussian(noise.on_training), 1.0, words)
        if not self.reads_validation:
            return (scores,)
        return scores, validation_gradient(_VALIDATION, noise, privacy)

    def build(self, context: SelectionContext) -> Selector:
        return TopKSelector(self, context)


class TopKSelector(ReleasedSubset):
    """The pool is released and paid for."""

    def __init__(self, mechanism: TopK, context: SelectionContext):
        self.mechanism, self.context = mechanism, context
        self.k = context.plan.shape.k

    def select(self, weights: Weights, releases: Releases) -> Pool:
        scored = ScoredRecords(self.mechanism, self.context, weights)
        noisy = self.noisy_scores(releases, scored, scored.direction(releases, _VALIDATION))
        self._pool = Pool(np.argsort(-noisy, kind="stable")[: self.k])
        return self._pool

    def noisy_scores(self, releases: Releases, scored: ScoredRecords, v: Tensor) -> np.ndarray:
        return releases.gaussian(_SCORES, scored.scores(v))
