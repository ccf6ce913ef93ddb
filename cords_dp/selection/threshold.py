"""`threshold`: selection inside the training mechanism: the subset never leaves it, so it is not paid for.

A selection releases a short list of pairs (v_g, τ_g), g = 1 … G. A record is a member of the pool if its own coin
says so, or if for some g its score ⟨ĝ_j, v_g⟩ reaches τ_g. Training then draws Poisson batches from the members.

Formal guarantees
-----------------
Unit: one record of D, zero-out. Membership is a function of one record, of its own coin and of released values. A
DP-SGD step therefore computes Σ_j m(z_j, ξ_j)·clip_C(∇ℓ_j) over fresh Bernoulli(q) coins, a sum in which a record's
part has norm at most C and a null record's is zero: an ordinary event (q, σ), whatever the pool's size. Rate, number of
steps and normaliser come from the public target k, never from the pool. The pool is secret state: it is not logged, not
stored, and recomputed from (θ, v, τ) when a run resumes.

Paid for, in the ledger of D, G thresholds and the sums before them, each one Gaussian event with the same σ:

* τ_g: noisy tail counts of the scores of records that are not members yet (`noise.primitives`);
* the sum of the newest members' unit gradients, each of norm below 1, along which v moves: GLISTER's greedy step. The
  first is the sum over the records that the coins chose, if any, so that the thresholds complete what they brought.

Paid for, in the ledger of V: each v_g (sensitivity C_v).

Scores and sums use a public random projection of the last layer's input, because the noise of a release grows with its
dimension.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from cords_dp.accounting import TRAINING_DATA, gaussian
from cords_dp.config.settings import PrivacySettings
from cords_dp.config.values import Key, number, whole
from cords_dp.noise.primitives import threshold_for
from cords_dp.planning.mechanism import Mechanism, Release, SelectionNoise
from cords_dp.planning.schedule import Sizes
from cords_dp.selection.context import SelectionContext, Selector, Weights
from cords_dp.selection.pool import Pool
from cords_dp.selection.releases import Releases
from cords_dp.selection.scores import ScoredRecords, get_score
from cords_dp.selection.shared import BINS, LINEAR_LAYER, PROJECTION, SCORE, SELECTION_TYPE, validation_gradient

_BLIND_SHARE = 0.9
_THRESHOLDS, _SUMS, _VALIDATION = "thresholds", "sums", "validation gradient"
Released = list[tuple["Tensor", np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class Threshold(Mechanism):
    """A secret pool of the highest scores. Defaults were chosen on MNIST with five classes cut to 10 %."""

    name: ClassVar[str] = "threshold"
    summary: ClassVar[str] = "little: a few noisy thresholds and sums; for any score (`dss_args.score`)"
    use_case: ClassVar[str] = "custom scores, and labels that can be trusted"
    secret_pool: ClassVar[bool] = True
    sharded: ClassVar[bool] = True
    privacy_keys: ClassVar[frozenset[str]] = frozenset({"split", "validation_clip", "validation_noise"})

    score: str = SCORE.field()
    greedy_rounds: int = Key(
        whole, 3, "how often a selection moves the validation gradient along the records chosen so far"
    ).field()
    greedy_step: float = Key(
        partial(number, low=0, low_included=True), 200.0, "how far, in logits, the whole pool would move it"
    ).field()
    exploration: float = Key(
        partial(number, low=0, high=1, low_included=True),
        0.3,
        "the share of the pool drawn by coins, without looking: selection then cannot hurt much. Raised to 0.9 where "
        "the data are so few that the releases would be mostly noise; 0 switches coins off",
    ).field()
    projection: int = PROJECTION.field()
    bins: int = BINS.field()
    linear_layer: bool = LINEAR_LAYER.field()
    selection_type: str = replace(
        SELECTION_TYPE, doc="as in CORDS' GLISTER; `PerClass` has a threshold for each class"
    ).field()

    @classmethod
    def suits(cls, keys: Mapping[str, Any]) -> bool:
        return True

    @property
    def reads_validation(self) -> bool:
        return get_score(self.score).uses_validation

    @property
    def sums(self) -> int:
        """Sums in one selection: one before each threshold but the first, whose sum is over what coins chose."""
        return self.greedy_rounds - (0 if self.exploration else 1)

    def releases(self, noise: SelectionNoise, privacy: PrivacySettings, sizes: Sizes) -> tuple[Release, ...]:
        def on_d(name: str, count: int, words: str) -> Release:
            return Release(name, TRAINING_DATA, gaussian(noise.on_training, count), 1.0, words)

        releases = [on_d(_THRESHOLDS, self.greedy_rounds, "tail counts of scores; 1 (one histogram cell)")]
        if self.sums:
            releases.append(on_d(_SUMS, self.sums, "sums of unit gradients; 1 (one unit gradient)"))
        if self.reads_validation:
            releases.append(validation_gradient(_VALIDATION, noise, privacy, self.greedy_rounds))
        return tuple(releases)

    def build(self, context: SelectionContext) -> Selector:
        return ThresholdSelector(self, context)


class ThresholdSelector:
    """Hands over the members of a secret pool of about k records."""

    def __init__(self, mechanism: Threshold, context: SelectionContext):
        self.mechanism, self.context, self.released = mechanism, context, Released()
        self.n, self.k = context.plan.shape.n, context.plan.shape.k

    def select(self, weights: Weights, releases: Releases) -> Pool:
        self.describe(weights)
        coins = self._coins(self.exploration(releases.noise_multiplier(_THRESHOLDS)))
        self.released = self._release(releases, coins)
        return Pool(np.flatnonzero(self.membership(self.released, coins)))

    def state(self) -> dict[str, Any]:
        return {
            "weights": dict(self._weights),
            "directions": [v for v, _ in self.released],
            "thresholds": [torch.from_numpy(t) for _, t in self.released],
        }

    def restore(self, state: dict[str, Any]) -> Pool:
        """Recompute the pool, with fresh coins."""
        self.describe(state["weights"])
        self.released = [(v, t.numpy()) for v, t in zip(state["directions"], state["thresholds"], strict=True)]
        coins = self._coins(self.exploration(self.context.plan.selection_noise or 0.0))  # None: a run without noise
        return Pool(np.flatnonzero(self.membership(self.released, coins)))

    def describe(self, weights: Weights) -> None:
        self._weights = weights
        self.scored = ScoredRecords(self.mechanism, self.context, weights)

    def membership(self, released: Released, coins: np.ndarray) -> np.ndarray:
        """Return who is in the pool: a function of each record, its coin and released values."""
        member = coins.copy()
        labels = self.scored.labels
        for v, thresholds in released:
            member |= self.scored.scores(v) >= thresholds[labels if len(thresholds) > 1 else np.zeros_like(labels)]
        return member

    # -- what is released -----------------------------------------------------------------------------

    def _release(self, releases: Releases, coins: np.ndarray) -> Released:
        mechanism = self.mechanism
        share = 1 - self.exploration(releases.noise_multiplier(_THRESHOLDS))
        target = self.k * share / mechanism.greedy_rounds
        released: Released = []
        taken, new = coins.copy(), coins
        moved = self.scored.zeros()
        for greedy_round in range(mechanism.greedy_rounds):
            if greedy_round or mechanism.exploration:  # counted by Threshold.sums
                moved = moved + self._noisy_sum(releases, new)
            v = self.scored.direction(releases, _VALIDATION, move=mechanism.greedy_step / self.k * moved)
            # records already taken have no cell, and neither has one that is null
            scores = np.where(taken | ~self.scored.present, np.nan, self.scored.scores(v))
            released.append((v, self._thresholds(releases, scores, target)))
            new = self.membership(released[-1:], np.zeros_like(taken)) & ~taken
            taken |= new
        return released

    def _thresholds(self, releases: Releases, scores: np.ndarray, target: float) -> np.ndarray:
        """Release τ for all records, or one for each class."""
        per_class = self.mechanism.selection_type == "PerClass"
        labels = self.scored.labels if per_class else np.zeros(len(scores), dtype=np.int64)
        classes = self.context.num_classes if per_class else 1
        tails = releases.tail_counts(_THRESHOLDS, scores, labels, classes=classes, bins=self.mechanism.bins)
        sizes = np.maximum(tails[:, 0], 0.0)  # noisy class sizes
        shares = sizes / sizes.sum() if per_class and sizes.sum() > 0 else np.full(len(tails), 1 / len(tails))
        return np.array([threshold_for(t, target * share) for t, share in zip(tails, shares, strict=True)])

    def _noisy_sum(self, releases: Releases, members: np.ndarray) -> Tensor:
        """Release Σ of the members' unit gradients. A record's part has norm below 1."""
        total = self.scored.unit_sum(members)
        return torch.from_numpy(releases.gaussian(_SUMS, total.cpu().numpy())).to(self.scored.zeros())

    # -- coins ----------------------------------------------------------------------------------------

    def exploration(self, sigma: float) -> float:
        """Return the share of the pool that coins draw: the configured one, or most of it where scores would be noise.

        A sum of k/G unit gradients has norm k/G at most, its noise about σ·√dimension. Where the noise is the longer,
        the data are too few for informed selection at this budget. A rule on public values.
        """
        share = self.mechanism.exploration
        too_few = sigma * math.sqrt(self.scored.zeros().numel()) > self.k / self.mechanism.greedy_rounds
        return max(share, _BLIND_SHARE) if share and too_few else share

    def _coins(self, share: float) -> np.ndarray:
        """Draw the share of the pool that is chosen without looking at the records."""
        return np.asarray(self.context.coins.random(len(self.context.training)) < share * self.k / self.n)
