"""Matching the validation set: records are drawn so that what is trained on looks like V.

GLISTER wants the subset on which training lowers the validation loss most. Its greedy gains vanish in every direction
once the subset's mean gradient equals the validation set's, so `match` aims there at once instead of picking greedily.
Gradients are taken at the uniform prediction, where a record's last-layer gradient is (1/K − onehot(y)) ⊗ [1; h]: what
is matched are class shares and, in a random projection of h, what the records of each class look like.

With φ_j that gradient at length 1 and ρ = mean_V φ − mean_D φ, records are tilted exponentially along ρ by
e_j = exp(t·⟨φ_j, ρ/‖ρ‖⟩), with t such that the tilted mean of D meets V's along ρ. Every step draws its own subset: a
Poisson draw from all of D at the rate q = c·B/n, in which a record stays with the chance p_j = min(1, κ·e_j), κ such
that about B stay. An epoch of k/B steps computes about k gradients, as with a fixed subset of k records. Where D has
far too few of the records that V asks for, those that are plentiful carry a weight w_j below 1, so that the draw still
matches. Where they are only a little too few the weights stay near 1: a larger batch is worth more than an exact match.

The concentration c says how much more often than in a uniform draw a record may come. At c = 1 matching is by weights
alone, at c = n/k records come as often as those of a fixed subset of k would. Noise grows with c, wasted gradients
fall.

ρ is shrunk towards zero by what its noise explains (James–Stein). Where training and validation data do not differ
measurably nothing is tilted and the draw is a uniform one, at the price of c.

Formal guarantees
-----------------
Unit: one record of D, zero-out. Released, at sensitivity 1 and charged before: on D the sum of the φ_j (‖φ_j‖ ≤ 1) and
the tail counts of the scores ⟨φ_j, ρ/‖ρ‖⟩ (`mechanisms.quantile`), each one Gaussian event; on V the sum of its φ, one
Gaussian event of V's ledger. All else is post-processing.

A training step computes Σ_j b_j·s_j·w_j·clip_C(∇ℓ_j) + noise with fresh coins b_j ~ Bernoulli(q), s_j ~ Bernoulli(p_j).
Write s_j = 1[ξ_j < p_j] with ξ_j uniform: given the released values, record j's part is a function of that record and
of its own randomness, of norm at most C since w_j ∈ [0, 1], and zero for a null record. So the step is dominated by the
Poisson-subsampled Gaussian event (q, σ). It may be drawn as one coin of probability q·p_j. Rate, number of steps and
normaliser come from the public n, k, B and c; chances, weights and batches are secret state.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cords_dp.mechanisms import gaussian_release
from cords_dp.mechanisms.quantile import noisy_tail_counts
from cords_dp.selection.glister import GLISTERDPStrategy
from cords_dp.selection.last_layer import LastLayerGradients

_SHRINKAGE = 2.0  # ρ² below twice what noise explains counts as no difference; its spread is far below twice
_STEEPEST = 12.0  # largest t: e^24 between the best and the worst record
_MASS_MATCHED = 0.75  # share of the tilted mass that is matched exactly; the highest scores may be capped


@dataclass(frozen=True)
class Tilt:
    """What a selection releases, ready to be applied to any one record."""

    direction: Tensor
    strength: float
    log_fill: float  # ln κ for a share 1/c of all records
    log_match: float  # the largest ln κ at which caps at 1 spare most of the tilted mass

    def chances(self, scores: np.ndarray) -> np.ndarray:
        """The probability of each record to stay in a batch that has drawn it."""
        return np.exp(np.minimum(0.0, self.log_fill + self.strength * scores))

    def weights(self, scores: np.ndarray) -> np.ndarray:
        """The weight in [0, 1] of each record that stays."""
        tilted = self.strength * scores
        lower = min(self.log_fill, self.log_match)
        return np.exp(np.minimum(0.0, lower + tilted) - np.minimum(0.0, self.log_fill + tilted))


class MatchStrategy(GLISTERDPStrategy):
    """`select` returns all records with their weights, and leaves each record's chance to be used in ``chances``."""

    released: Tilt | None = None

    def select(self, budget: int, model_params: dict[str, Any]) -> tuple[list[int], Tensor]:
        self._charge_round()
        self._describe(model_params)
        self.released = self._release()
        return self._apply(self.released)

    def _apply(self, tilt: Tilt) -> tuple[list[int], Tensor]:
        scores = self._scores(tilt.direction)
        self.chances = tilt.chances(scores)
        return list(range(len(scores))), torch.from_numpy(tilt.weights(scores)).float()

    # -- what is released -----------------------------------------------------------------------------

    def _release(self) -> Tilt:
        n, sigma = self.N_trn, self.plan.sigma_selection or 0.0
        target = self._noisy_mean(_sum(self._validation), sensitivity=1.0)
        total = gaussian_release(
            _sum(self._gradients).double().cpu().numpy(), sensitivity=1.0, noise_multiplier=sigma, rng=self._rng
        )
        difference = target - torch.from_numpy(total).to(target) / n
        length = float(difference.norm())
        direction = difference / max(length, 1e-12)
        tails = noisy_tail_counts(
            self._scores(direction),
            np.zeros(n, dtype=np.int64),
            classes=1,
            bins=self.plan.selection.bins,
            noise_multiplier=sigma,
            rng=self._rng,
        )[0]
        kept = max(0.0, 1 - _SHRINKAGE * self._explained_by_noise(direction.numel()) / max(length**2, 1e-24))
        counts, scores = score_histogram(tails, noise=tail_noise(sigma, len(tails)))
        wanted = float((target * direction).sum()) - (1 - kept) * length
        strength = tilt_strength(counts, scores, wanted) if kept else 0.0
        fill, match = chance_scales(counts, strength * scores, share=1 / self.plan.concentration)
        return Tilt(direction, strength, fill, match)

    def _explained_by_noise(self, dimension: int) -> float:
        """E‖ρ‖² where D and V have one distribution: the releases' noise and, at most, the sampling's."""
        on_d = (self.plan.sigma_selection or 0.0) / self.N_trn
        on_v = (self.plan.sigma_validation or 0.0) / max(1, self.N_val)
        return dimension * (on_d**2 + on_v**2) + 1 / self.N_trn + 1 / max(1, self.N_val)

    # -- records --------------------------------------------------------------------------------------

    def _describe(self, weights: dict[str, Any]) -> None:
        self._released_weights = weights
        self.update_model(weights)
        self.compute_gradients()

    def _last_layer(self, dataset: Any) -> tuple[LastLayerGradients, Tensor, Tensor]:
        gradients, logits, labels = super()._last_layer(dataset)
        return uniform_gradients(gradients.a, labels, self.num_classes), logits, labels

    @property
    def _projection(self) -> int | None:
        return self.plan.selection.projection

    def _scores(self, direction: Tensor) -> np.ndarray:
        """⟨φ_j, direction⟩ ∈ [−1, 1]."""
        g = self._gradients
        return (g.r * (g.a @ direction.to(g.a).T)).sum(dim=1).double().clamp(-1.0, 1.0).cpu().numpy()

    # -- resuming -------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Released values only: what a checkpoint may hold instead of the members."""
        assert self.released is not None
        return {"weights": self._released_weights, "tilt": {**asdict(self.released)}}

    def members_from(self, state: dict[str, Any]) -> tuple[list[int], Tensor]:
        """What `select` returned, recomputed from a checkpoint. Nothing new is released."""
        self._describe(state["weights"])
        self.released = Tilt(**state["tilt"])
        return self._apply(self.released)


# --- one record at a time --------------------------------------------------------------------------


def uniform_gradients(inputs: Tensor, labels: Tensor, classes: int) -> LastLayerGradients:
    """φ: last-layer gradients at the uniform prediction, at length 1; the leading 1 and h count alike.

    ``inputs`` is [1; h] of each record. A record whose h is not finite was made zero before and keeps its class only.
    """
    r = 1 / classes - F.one_hot(labels, classes).to(inputs)
    r = r / r.norm(dim=1, keepdim=True)
    h = inputs[:, 1:]
    unit = h / h.norm(dim=1, keepdim=True).clamp_min(1e-12)
    a = torch.cat([torch.ones_like(inputs[:, :1]), unit], dim=1) / math.sqrt(2.0 if h.shape[1] else 1.0)
    return LastLayerGradients(r * (1 - 1e-6), a)  # rounding must not carry a length past 1


def _sum(gradients: LastLayerGradients) -> Tensor:
    return gradients.r.double().T @ gradients.a.double()  # float32 would lose whole records in a long sum


# --- post-processing of noisy tail counts ------------------------------------------------------------


def tail_noise(sigma: float, bins: int) -> float:
    """The standard deviation of the noisiest of `noisy_tail_counts`."""
    column = np.cumprod(np.concatenate([[1.0], 1 - 0.5 / np.arange(1, bins)]))
    return sigma * float(column @ column)


def score_histogram(tails: np.ndarray, *, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Counts and mid-points of the score cells. Tails within three deviations of zero are taken as empty:
    a few records that noise has put at the highest scores would outweigh all others once tilted."""
    from_top = np.where(tails[::-1] > 3 * noise, tails[::-1], 0.0)
    counts = np.diff(np.maximum.accumulate(from_top), prepend=0.0)[::-1]
    bins = len(tails)
    return counts, (np.arange(bins) + 0.5) / bins * 2 - 1


def tilt_strength(counts: np.ndarray, scores: np.ndarray, wanted: float) -> float:
    """t at which the mean score of the tilted counts is ``wanted``; it grows with t, so bisection finds it."""
    if counts.sum() <= 0:
        return 0.0

    def mean(t: float) -> float:
        tilted = counts * np.exp(t * (scores - 1))
        return float(tilted @ scores / tilted.sum())

    return _bisect(mean, wanted, 0.0, _STEEPEST)


def chance_scales(counts: np.ndarray, tilted: np.ndarray, *, share: float) -> tuple[float, float]:
    """(ln κ at which a ``share`` of the records stays, the largest ln κ at which most of the mass is not capped)."""
    if counts.sum() <= 0 or not tilted.any():
        return math.log(share), 0.0
    shares = counts / counts.sum()
    low, high = -float(tilted.max()) - 30.0, -float(tilted.min())
    fill = _bisect(lambda c: float(shares @ np.exp(np.minimum(0.0, c + tilted))), share, low, high)
    order = np.argsort(tilted)
    mass = np.cumsum((shares * np.exp(tilted - tilted.max()))[order])
    top = order[min(len(order) - 1, int(np.searchsorted(mass, _MASS_MATCHED * mass[-1])))]
    return fill, -float(tilted[top])


def _bisect(rising: Any, wanted: float, low: float, high: float) -> float:
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return low
