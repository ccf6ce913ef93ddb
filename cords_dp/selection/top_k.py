"""A subset to publish, at a price that does not depend on its size.

Formal guarantees
-----------------
Unit: one record of D, zero-out. ``v`` is frozen, so zeroing record j changes its own score alone, from u_j ∈ [−1, 1]
to 0: the vector of scores has L2 sensitivity 1. All scores are released once with noise N(0, σ²) each, one Gaussian
event a selection; the k largest, ties by index, are post-processing, whatever k is. The same noise is never looked at
again with other scores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from cords_dp.mechanisms import gaussian_release
from cords_dp.selection.threshold import ThresholdStrategy


class TopKStrategy(ThresholdStrategy):
    """`select` returns the k records whose noisy scores are largest."""

    def select(self, budget: int, model_params: dict[str, Any]) -> tuple[list[int], Tensor]:
        self._charge_round()
        self._score_model(model_params)
        moved = self._gradients.r.new_zeros(self._gradients.r.shape[1], self._gradients.a.shape[1])
        noisy = self.noisy_scores(self._direction(moved))
        return np.argsort(-noisy, kind="stable")[:budget].tolist(), torch.ones(budget)

    def noisy_scores(self, v: Tensor) -> np.ndarray:
        return gaussian_release(
            self._scores(v), sensitivity=1.0, noise_multiplier=self.plan.sigma_selection or 0.0, rng=self._rng
        )
