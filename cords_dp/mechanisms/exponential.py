"""The exponential mechanism for picking records by score.

One pick takes record ``e`` with probability proportional to ``exp(ε₀ · u_e / 2Δ)``. Several picks
without replacement while the scores stand still have the law of one *Gumbel-top-m* draw: add
independent Gumbel noise to ``ε₀ u / 2Δ`` and keep the m largest. That identity ends as soon as a
score changes, and `ScoreFreeze` holds the caller to it. `proposed_picks` has the same law and reads few scores.

Formal guarantees
-----------------
Unit: one record, zero-out (the null record stays in the index set with score 0).

* If zeroing one record moves **every** score by at most Δ, one pick is ε₀-DP and its log-likelihood
  ratio has range ε₀ (bounded range), hence ε₀²/8-zCDP [Cesar & Rogers 2021, Lemma 3.4].
* If it moves **only that record's own** score, by at most Δ, one pick is ε₀/2-DP, and a whole freeze
  of m picks is post-processing of the noisy score vector, of which a single coordinate is shifted by
  at most ε₀/2: its cost does not depend on m. See `accounting.events.GumbelFreeze`.

All arithmetic is in float64. Scores that are not finite count as 0 before anything else. The generator that callers
hand over is a cryptographic one (`seeding.Streams.numpy`); numpy's Gumbel noise, from 53-bit uniforms, reaches from
−3.6 to 36.7, beyond which the law has 2·10⁻¹⁶ a record. Floating point side channels of it are not covered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral

import numpy as np
from numpy.typing import ArrayLike

from cords_dp.errors import MechanismError

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
    """Scores in [−bound, bound]. One that is not finite is 0, a null record's: clipped first, infinity would win."""
    return np.clip(_finite_or_zero(np.asarray(scores, dtype=np.float64)), -bound, bound)


def pick_probabilities(scores: ArrayLike, *, epsilon0: float, sensitivity: float) -> np.ndarray:
    """The law of one pick: probabilities proportional to ``exp(ε₀ u / 2Δ)``."""
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
    """Proposals that give the last ``missing`` of m picks of n but with a chance of `_SECOND_ROUND`, whatever the
    scores are. With ``missing`` = m a public number.

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
    """Refuse what is no number of distinct records."""
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
