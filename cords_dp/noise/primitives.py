"""The Gaussian mechanism, private quantiles and the exponential mechanism.

Private quantiles count how many scores lie above each of many thresholds, in one Gaussian release. Adding noise to
every cell of a histogram and summing cells makes the error of a tail count grow with the square root of the number of
cells in it. Here the cumulative sum is factored as L·R with L = R the square root of the lower triangular matrix of
ones: noise goes on R·x, and L turns the result into all tail counts at once. The error of every tail count is about
(1 + ln(bins)/π) noise multipliers, whichever tail it is (Fichtenberger, Henzinger & Upadhyay 2023).

The exponential mechanism picks records by score. One pick takes record ``e`` with probability proportional to
``exp(ε₀ · u_e / 2Δ)``. Several picks without replacement while the scores stand still have the law of one
*Gumbel-top-m* draw: add independent Gumbel noise to ``ε₀ u / 2Δ`` and keep the m largest. That identity ends as soon as
a score changes, and `ScoreFreeze` holds the caller to it. `proposed_picks` has the same law and reads few scores.

Formal guarantees
-----------------
Unit: one record, zero-out (the null record stays in the index set with score 0).

* If zeroing one record moves **every** score by at most Δ, one pick is ε₀-DP and its log-likelihood
  ratio has range ε₀ (bounded range), hence ε₀²/8-zCDP [Cesar & Rogers 2021, Lemma 3.4].
* If it moves **only that record's own** score, by at most Δ, one pick is ε₀/2-DP, and a whole freeze
  of m picks is post-processing of the noisy score vector, of which a single coordinate is shifted by
  at most ε₀/2: its cost does not depend on m. See `accounting.picks.GumbelFreeze`.

All arithmetic is in float64. Scores that are not finite count as 0 before anything else. The generator that callers
hand over is a cryptographic one (`generators.Streams.numpy`); numpy's Gumbel noise, from 53-bit uniforms, reaches from
−3.6 to 36.7, beyond which the law has 2·10⁻¹⁶ a record. Floating point side channels of it are not covered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from numbers import Integral

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import toeplitz

from cords_dp.errors import MechanismError
from cords_dp.noise.generators import standard_normal


def gaussian_release(
    total: np.ndarray,
    *,
    sensitivity: float,
    noise_multiplier: float | None,
    rng: np.random.Generator,
    secure: bool = False,
    noiseless: bool = False,
) -> np.ndarray:
    """Release ``total`` with noise N(0, (noise_multiplier · sensitivity)²) on every coordinate.

    ``secure`` draws the noise so that floating-point attacks on it fail (`generators.standard_normal`). ``noiseless``
    releases the total as it is, for runs without privacy; it has to be said, for a noise multiplier that went missing
    says nothing.

    Formal guarantees
    -----------------
    Unit: one record, zero-out. If ``total`` is a sum over records in which one record's part has L2
    norm at most ``sensitivity`` and a null record's part is zero, the release is one Gaussian event
    with the given noise multiplier, whatever the dimension. The caller bounds the parts and charges
    the event before calling. With ``noiseless`` there is no guarantee.
    """
    if not (np.isfinite(sensitivity) and sensitivity > 0):
        raise MechanismError(f"sensitivity must be positive and finite, not {sensitivity!r}")
    total = finite_sum(total)
    if noiseless:
        if noise_multiplier:
            raise MechanismError(f"a noiseless release with noise multiplier {noise_multiplier!r}: which of the two?")
        return total.copy()
    if noise_multiplier is None or not (math.isfinite(noise_multiplier) and noise_multiplier > 0):
        raise MechanismError(f"a release needs a positive, finite noise multiplier, not {noise_multiplier!r}")
    return total + standard_normal(rng, total.shape, secure) * (noise_multiplier * sensitivity)


def finite_sum(total: np.ndarray) -> np.ndarray:
    """Return a sum in float64; refuse one that is not finite: one record would then show through any noise."""
    total = np.asarray(total, dtype=np.float64)
    if not np.isfinite(total).all():
        raise MechanismError("a sum to be released holds NaN or infinity; bound every record's part first")
    return total


def score_cells(scores: np.ndarray, bins: int) -> np.ndarray:
    """Return the cell of each score: equal cells on the public range [−1, 1]."""
    return np.clip(((np.asarray(scores, dtype=np.float64) + 1) / 2 * bins).astype(np.int64), 0, bins - 1)


def tail_histogram(scores: np.ndarray, labels: np.ndarray, *, classes: int, bins: int) -> tuple[np.ndarray, float]:
    """Return R·x for the joint class × score histogram x, and the L2 norm by which one record can move it.

    Formal guarantees
    -----------------
    Unit: one record, zero-out. A record with a finite score lies in exactly one cell of x, any other record (a null one
    included) in none, so zeroing it changes one entry of x by 1 and R·x by one column of R, whose L2 norm is at most
    that of the first. Released with Gaussian noise in proportion to it, this is one Gaussian event, for any number of
    classes and thresholds.
    """
    scores = np.asarray(scores, dtype=np.float64)
    counted = np.isfinite(scores)
    cells = score_cells(np.where(counted, scores, 0.0), bins)[counted]
    places = np.asarray(labels)[counted] * bins + bins - 1 - cells  # highest scores first
    histogram = np.bincount(places, minlength=classes * bins).astype(np.float64).reshape(classes, bins)
    return histogram @ _square_root(bins).T, float(np.linalg.norm(root_column(bins)))


def tails_from(noisy: np.ndarray) -> np.ndarray:
    """Return, for each class, the noisy number of scores in cell b or above, b = 0 … bins−1. Post-processing."""
    return (noisy @ _square_root(noisy.shape[1]).T)[:, ::-1]


def tail_noise(noise_multiplier: float, bins: int) -> float:
    """Return the standard deviation of the noisiest of the tail counts."""
    column = root_column(bins)
    return noise_multiplier * float(column @ column)


def threshold_for(tail_counts: np.ndarray, target: float) -> float:
    """Find the score above which about ``target`` records lie. Post-processing of noisy tail counts for one class.

    Noisy counts need not fall monotonically; the running maximum from the top does. Inside a cell the scores are
    taken as evenly spread. 1 if no record is wanted, −1 if all are.
    """
    bins = len(tail_counts)
    edges = np.linspace(-1, 1, bins + 1)
    counts = np.maximum.accumulate(np.concatenate([[0.0], tail_counts[::-1]]))  # from score 1 downwards
    if target <= 0:
        return float(np.nextafter(1.0, 2.0))
    if counts[-1] <= target:
        return -1.0
    cell = int(np.searchsorted(counts, target))
    share = (target - counts[cell - 1]) / (counts[cell] - counts[cell - 1])
    return float(edges[bins - cell + 1] - share * (edges[1] - edges[0]))


@lru_cache(maxsize=16)
def _square_root(size: int) -> np.ndarray:
    """Return R with R·R = the lower triangular matrix of ones: a Toeplitz matrix."""
    return toeplitz(root_column(size), np.zeros(size))


def root_column(size: int) -> np.ndarray:
    """Return the first, and longest, column of R: binom(2i, i)/4^i."""
    return np.cumprod(np.concatenate([[1.0], 1 - 0.5 / np.arange(1, size)]))


_SECOND_ROUND = 1e-9  # the chance, at most, that proposals do not suffice


def _logits(scores: ArrayLike, epsilon0: float, sensitivity: float) -> np.ndarray:
    if not (np.isfinite(sensitivity) and sensitivity > 0):
        raise MechanismError(f"score sensitivity must be positive and finite, not {sensitivity!r}")
    if not epsilon0 >= 0:
        raise MechanismError(f"a pick needs epsilon0 >= 0, got {epsilon0!r}")
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim != 1:
        raise MechanismError(f"scores must be a vector, got shape {scores.shape}")
    return _finite_or_zero(scores) * (epsilon0 / (2.0 * sensitivity))


def _finite_or_zero(scores: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(scores), scores, 0.0)


def bounded_scores(scores: ArrayLike, bound: float) -> np.ndarray:
    """Bring scores into [−bound, bound]. One that is not finite becomes 0 first: clipped, infinity would win."""
    return np.clip(_finite_or_zero(np.asarray(scores, dtype=np.float64)), -bound, bound)


def pick_probabilities(scores: ArrayLike, *, epsilon0: float, sensitivity: float) -> np.ndarray:
    """Return the law of one pick: probabilities proportional to ``exp(ε₀ u / 2Δ)``."""
    logits = _logits(scores, epsilon0, sensitivity)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def gumbel_top_m(
    scores: ArrayLike, m: int, *, epsilon0: float, sensitivity: float, rng: np.random.Generator
) -> np.ndarray:
    """Pick m distinct indices, in the order that sequential picks would give them."""
    logits = _logits(scores, epsilon0, sensitivity)
    check_size(m, logits.size)
    noisy = logits + rng.gumbel(size=logits.size)
    if m < logits.size:
        top = np.argpartition(noisy, logits.size - m)[logits.size - m :]
    else:
        top = np.arange(logits.size)
    return top[np.argsort(-noisy[top], kind="stable")]


def proposed_picks(
    score_of: Callable[[np.ndarray], np.ndarray],
    n: int,
    m: int,
    *,
    bound: float,
    epsilon0: float,
    sensitivity: float,
    rng: np.random.Generator,
) -> np.ndarray:
    """Pick m distinct indices below n as `gumbel_top_m` does, by the scores of those that are proposed alone.

    ``score_of(indices)``: scores of some records, which stand still and are brought into [−bound, bound].

    Proof that the law is that of sequential picks: proposals are independent and uniform, and each is accepted with
    chance exp(ε₀(u − bound)/2Δ) ≤ 1, whatever was proposed before. So the first accepted proposal outside of a set of
    records is record e with probability proportional to exp(ε₀ u_e/2Δ) among the others: the next pick. A coin of 53
    bits moves a chance by 2⁻⁵³.

    How many scores are read follows from public numbers and coins (`enough_proposals`), unless these do not suffice,
    with a chance of at most 10⁻⁹ at the worst scores. Then more are proposed: the law stays what it is.
    """
    check_size(m, n)
    if not (math.isfinite(bound) and bound >= 0):
        raise MechanismError(f"scores need a finite bound of at least 0, not {bound!r}")
    (highest,) = _logits([bound], epsilon0, sensitivity)
    picked = np.zeros(0, dtype=np.int64)
    while len(picked) < m:
        missing = m - len(picked)
        proposed = rng.integers(0, n, size=enough_proposals(n, m, missing, bound, epsilon0, sensitivity))
        records, places = np.unique(proposed, return_inverse=True)
        scores = bounded_scores(score_of(records), bound)
        if scores.shape != records.shape:
            raise MechanismError(f"scores of {len(records)} records were asked for, and have shape {scores.shape}")
        chances = np.exp(_logits(scores, epsilon0, sensitivity) - highest)[places]
        accepted = np.concatenate([picked, proposed[rng.random(len(proposed)) < chances]])
        _, first = np.unique(accepted, return_index=True)
        picked = accepted[np.sort(first)][:m]
    return picked


def enough_proposals(n: int, m: int, missing: int, bound: float, epsilon0: float, sensitivity: float) -> int:
    """Return how many proposals give the last ``missing`` of m picks of n, whatever the scores are.

    They do not suffice with a chance of `_SECOND_ROUND` at most. With ``missing`` = m a public number.

    Proof: a proposal is accepted with chance exp(−ε₀·bound/Δ) at least, and is not among the fewer than m that were
    picked with chance (n − m + 1)/n at least: together p. By Bernstein's inequality T proposals give fewer than Tp − t
    picks with a chance of at most exp(−t²/2(Tp(1 − p) + t/3)), which is what is asked for at Tp = missing + t below.
    """
    p = math.exp(-min(epsilon0 * bound / sensitivity, 600.0)) * (n - m + 1) / n
    log_chance = -math.log(_SECOND_ROUND)
    half = log_chance * (4 / 3 - p)
    t = half + math.sqrt(half**2 + 2 * log_chance * missing * (1 - p))
    return math.ceil((missing + t) / p)


def check_size(size: int, records: int) -> None:
    """Refuse a size that is no number of distinct records."""
    if not (isinstance(size, Integral) and not isinstance(size, bool) and 0 <= size <= records):
        raise MechanismError(f"cannot pick {size!r} of {records} records without replacement")


class ScoreFreeze:
    """A stretch of picks during which no score changes. Draws once, then is spent.

    It keeps the array it was given, not a copy, and remembers what it held: drawing after the
    scores were updated, or a second time (the same freeze would need the same noise), is refused.
    """

    def __init__(self, scores: np.ndarray, *, epsilon0: float, sensitivity: float):
        self._scores = np.asarray(scores, dtype=np.float64)
        self._at_start = self._scores.copy()
        self._epsilon0, self._sensitivity = epsilon0, sensitivity
        self._spent = False

    def draw(self, m: int, rng: np.random.Generator) -> np.ndarray:
        if self._spent:
            raise MechanismError("this score freeze has been drawn from; start a new one for more picks")
        if not np.array_equal(self._scores, self._at_start, equal_nan=True):
            raise MechanismError(
                "the scores changed inside a freeze: one Gumbel draw no longer has the law of the picks. "
                "Start a new ScoreFreeze after every score update."
            )
        self._spent = True
        return gumbel_top_m(self._scores, m, epsilon0=self._epsilon0, sensitivity=self._sensitivity, rng=rng)
