"""`match`: records are drawn so that what is trained on looks like the validation set.

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
the tail counts of the scores ⟨φ_j, ρ/‖ρ‖⟩ (`noise.primitives`), each one Gaussian event; on V the sum of its φ, one
Gaussian event of V's ledger. All else is post-processing.

A training step computes Σ_j b_j·s_j·w_j·clip_C(∇ℓ_j) + noise with fresh coins b_j ~ Bernoulli(q), s_j ~ Bernoulli(p_j).
Write s_j = 1[ξ_j < p_j] with ξ_j uniform: given the released values, record j's part is a function of that record and
of its own randomness, of norm at most C since w_j ∈ [0, 1], and zero for a null record. So the step is dominated by the
Poisson-subsampled Gaussian event (q, σ). It may be drawn as one coin of probability q·p_j. Rate, number of steps and
normaliser come from the public n, k, B and c; chances, weights and batches are secret state.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cords_dp.accounting import TRAINING_DATA, gaussian
from cords_dp.config import Key, PrivacySettings, SubsetSettings, number
from cords_dp.planning import (
    EpochPlan,
    Release,
    SelectionNoise,
    Sizes,
    register_mechanism,
    subset_schedule,
)
from cords_dp.selection import (
    BINS,
    LINEAR_LAYER,
    OWN_SCORE,
    PROJECTION,
    SELECTION_TYPE,
    DrawsFromAll,
    LastLayerGradients,
    Pool,
    Records,
    Releases,
    SelectionContext,
    Selector,
    Weights,
    check_weighing,
    released_of_both,
    tail_noise,
)

_SUM, _TAILS, _VALIDATION = "sum", "tail counts", "validation sum"
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
        """Return the probability of each record to stay in a batch that has drawn it."""
        return np.exp(np.minimum(0.0, self.log_fill + self.strength * scores))

    def weights(self, scores: np.ndarray) -> np.ndarray:
        """Return the weight in [0, 1] of each record that stays."""
        tilted = self.strength * scores
        lower = min(self.log_fill, self.log_match)
        return np.exp(np.minimum(0.0, lower + tilted) - np.minimum(0.0, self.log_fill + tilted))


@register_mechanism
@dataclass(frozen=True, kw_only=True)
class Match(DrawsFromAll):
    """Looks at the records once a run, before training, so ``select_every`` means nothing to it."""

    name: ClassVar[str] = "match"
    summary: ClassVar[str] = (
        "little: every step draws records that together resemble the validation set, inside the training mechanism; "
        "one noisy sum and one noisy histogram are released"
    )
    use_case: ClassVar[str] = "the released model, by features"

    projection: int = PROJECTION.field()
    bins: int = BINS.field()
    concentration: float | None = Key(
        partial(number, low=1, low_included=True),
        None,
        "how many times as often as in a uniform draw a record may come, from 1 to 1/fraction. Noise grows with it, "
        "wasted gradients fall. Left out it is the cube root of n/k",
    ).field()
    score: str = OWN_SCORE.field()
    linear_layer: bool = LINEAR_LAYER.field()
    selection_type: str = SELECTION_TYPE.field()

    def check(self, privacy: PrivacySettings, subset: SubsetSettings) -> None:
        check_weighing(self, "matches gradients and class shares")
        if self.concentration is not None:
            number(
                "dss_args.concentration",
                self.concentration,
                low=1,
                high=(1 + 1e-6) / subset.fraction,  # a fixed subset of k records comes n/k times as often
                low_included=True,
                high_included=True,
            )

    def schedule(self, sizes: Sizes, subset: SubsetSettings, epochs: int) -> tuple[EpochPlan, ...]:
        """Plan one selection, before the pool is first used; every step then draws from all of D."""
        concentration = (sizes.n / sizes.k) ** (1 / 3) if self.concentration is None else self.concentration
        rate = min(1.0, sizes.batch_size / sizes.k, concentration * sizes.batch_size / sizes.n)
        return subset_schedule(sizes, subset, epochs, rate=rate, selects=lambda epoch, first: epoch == first)

    def releases(self, noise: SelectionNoise, privacy: PrivacySettings, sizes: Sizes) -> tuple[Release, ...]:
        words = "tail counts of scores; 1 (one histogram cell)"
        tails = Release(_TAILS, TRAINING_DATA, gaussian(noise.on_training), 1.0, words)
        words = "the sum of unit gradients; 1 (one unit gradient)"
        on_d, on_v = released_of_both(_SUM, _VALIDATION, noise, words)
        return on_d, tails, on_v

    def describe_price(self, price: Callable[[float], float], sizes: Sizes, rate: float) -> str:
        concentration = rate * sizes.n / sizes.batch_size
        uniform, fixed = price(sizes.batch_size / sizes.n), price(min(1.0, sizes.batch_size / sizes.k))
        return (
            f"Since a record may be drawn {concentration:.2f} times as often as in a uniform draw from all records, "
            f"the noise is {_compared(uniform)} that of such a draw; it is {_compared(fixed)} that of a fixed subset "
            f"of {sizes.k} records."
        )

    def build(self, context: SelectionContext) -> Selector:
        return MatchSelector(self, context)


def _compared(excess: float) -> str:
    return f"{100 * abs(excess):.0f} % {'above' if excess >= 0 else 'below'}"


class MatchSelector:
    """Hands over all records with their chances and weights."""

    released: Tilt | None = None

    def __init__(self, mechanism: Match, context: SelectionContext):
        self.mechanism, self.context = mechanism, context

    def select(self, weights: Weights, releases: Releases) -> Pool:
        self.describe(weights)
        self.released = self._release(releases)
        return self._pool(self.released)

    def state(self) -> dict[str, Any]:
        assert self.released is not None
        return {"weights": dict(self._weights), "tilt": asdict(self.released)}

    def restore(self, state: dict[str, Any]) -> Pool:
        self.describe(state["weights"])
        self.released = Tilt(**state["tilt"])
        return self._pool(self.released)

    def _pool(self, tilt: Tilt) -> Pool:
        scores = self.scores(tilt.direction)
        return Pool(np.arange(len(scores)), weights=tilt.weights(scores), chances=tilt.chances(scores))

    # -- records --------------------------------------------------------------------------------------

    def describe(self, weights: Weights) -> None:
        """Compute φ of every record of D and of V."""
        assert self.context.validation is not None
        self._weights = weights
        self.training = self._unit_gradients(self.context.training, weights)
        self.validation = self._unit_gradients(self.context.validation, weights)

    def _unit_gradients(self, records: Records, weights: Weights) -> LastLayerGradients:
        mechanism = self.mechanism
        layer = records.at(weights, linear_layer=mechanism.linear_layer, projection=mechanism.projection)
        return uniform_gradients(layer.gradients.a, layer.labels, self.context.num_classes)

    def scores(self, direction: Tensor) -> np.ndarray:
        """Compute ⟨φ_j, direction⟩ ∈ [−1, 1]."""
        g = self.training
        return (g.r * (g.a @ direction.to(g.a).T)).sum(dim=1).double().clamp(-1.0, 1.0).cpu().numpy()

    # -- what is released -----------------------------------------------------------------------------

    def _release(self, releases: Releases) -> Tilt:
        n, n_validation = self._sizes()
        target = self._noisy_sum(releases, _VALIDATION, self.validation) / n_validation
        difference = target - self._noisy_sum(releases, _SUM, self.training) / n
        length = float(difference.norm())
        direction = difference / max(length, 1e-12)
        bins, labels = self.mechanism.bins, np.zeros(len(self.training), dtype=np.int64)
        scores = np.where(self.training.present.cpu().numpy(), self.scores(direction), np.nan)  # NaN: in no cell
        (tails,) = releases.tail_counts(_TAILS, scores, labels, classes=1, bins=bins)
        explained = self._explained_by_noise(releases, direction.numel())
        kept = max(0.0, 1 - _SHRINKAGE * explained / max(length**2, 1e-24))
        noise = tail_noise(releases.noise_multiplier(_TAILS), bins)
        counts, places = score_histogram(tails, noise=noise)
        wanted = float((target * direction).sum()) - (1 - kept) * length
        strength = tilt_strength(counts, places, wanted) if kept else 0.0
        fill, match = chance_scales(counts, strength * places, share=1 / self.context.plan.concentration)
        return Tilt(direction, strength, fill, match)

    def _sizes(self) -> tuple[int, int]:
        """Return the sizes of D and V, in all processes together: public numbers."""
        shape = self.context.plan.shape
        return shape.n, max(1, shape.n_validation)

    def _noisy_sum(self, releases: Releases, name: str, gradients: LastLayerGradients) -> Tensor:
        total = gradients.r.double().T @ gradients.a.double()  # float32 would lose whole records in a long sum
        return torch.from_numpy(releases.gaussian(name, total.cpu().numpy())).to(gradients.r)

    def _explained_by_noise(self, releases: Releases, dimension: int) -> float:
        """Return E‖ρ‖² where D and V have one distribution: the releases' noise and, at most, the sampling's."""
        n, n_validation = self._sizes()
        on_d, on_v = releases.noise_multiplier(_SUM) / n, releases.noise_multiplier(_VALIDATION) / n_validation
        return dimension * (on_d**2 + on_v**2) + 1 / n + 1 / n_validation


# --- one record at a time --------------------------------------------------------------------------


def uniform_gradients(inputs: Tensor, labels: Tensor, classes: int) -> LastLayerGradients:
    """Compute φ: last-layer gradients at the uniform prediction, at length 1; the leading 1 and h count alike.

    ``inputs`` is [1; h] of each record; zeros, of one that is null or whose h is not finite, give φ = 0.
    """
    r = 1 / classes - F.one_hot(labels.clamp_min(0), classes).to(inputs)
    r = r / r.norm(dim=1, keepdim=True)
    h = inputs[:, 1:]
    unit = h / h.norm(dim=1, keepdim=True).clamp_min(1e-12)
    a = torch.cat([torch.ones_like(inputs[:, :1]), unit], dim=1) / math.sqrt(2.0 if h.shape[1] else 1.0)
    a = inputs[:, :1] * a  # 1 for a record, 0 for none
    return LastLayerGradients(r * (1 - 1e-6), a)  # rounding must not carry a length past 1


# --- post-processing of noisy tail counts ------------------------------------------------------------


def score_histogram(tails: np.ndarray, *, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return counts and mid-points of the score cells. Tails within three deviations of zero are taken as empty:
    a few records that noise has put at the highest scores would outweigh all others once tilted."""
    from_top = np.where(tails[::-1] > 3 * noise, tails[::-1], 0.0)
    counts = np.diff(np.maximum.accumulate(from_top), prepend=0.0)[::-1]
    bins = len(tails)
    return counts, (np.arange(bins) + 0.5) / bins * 2 - 1


def tilt_strength(counts: np.ndarray, scores: np.ndarray, wanted: float) -> float:
    """Find t at which the mean score of the tilted counts is ``wanted``; it grows with t, so bisection finds it."""
    if counts.sum() <= 0:
        return 0.0

    def mean(t: float) -> float:
        tilted = counts * np.exp(t * (scores - 1))
        return float(tilted @ scores / tilted.sum())

    return _bisect(mean, wanted, 0.0, _STEEPEST)


def chance_scales(counts: np.ndarray, tilted: np.ndarray, *, share: float) -> tuple[float, float]:
    """Find (ln κ at which a ``share`` of the records stays, the largest ln κ at which most mass is not capped)."""
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
