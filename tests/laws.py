"""Checks of laws, as functions, so that the real code and broken copies of it face the same check."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
from scipy import stats

Sampler = Callable[[np.ndarray, int, np.random.Generator], Sequence[int]]
ALPHA = 1e-6


def sequential_law(logits: np.ndarray, m: int) -> dict[tuple[int, ...], float]:
    """Probability of every ordered outcome of m picks without replacement, P ∝ exp(logit)."""
    weights = np.exp(logits - logits.max())
    law = {}
    for outcome in itertools.permutations(range(len(logits)), m):
        probability, left = 1.0, weights.sum()
        for index in outcome:
            probability *= weights[index] / left
            left -= weights[index]
        law[outcome] = probability
    return law


def pick_law_p_value(
    sampler: Sampler,
    scores: np.ndarray,
    logits: np.ndarray,
    *,
    m: int = 3,
    draws: int = 200_000,
    seed: int = 0,
) -> float:
    """Smallest χ² p-value, over prefixes of 1…m picks, of the sampler against the law of ``logits``."""
    rng = np.random.default_rng(seed)
    outcomes = np.array([sampler(scores, m, rng) for _ in range(draws)])
    n, smallest = len(scores), 1.0
    for length in range(1, m + 1):
        codes = (outcomes[:, :length] * n ** np.arange(length)).sum(axis=1)
        counts = np.bincount(codes, minlength=n**length)
        law = sequential_law(logits, length)
        observed = np.array([counts[sum(i * n**p for p, i in enumerate(o))] for o in law])
        if observed.sum() != draws:
            return 0.0  # an outcome that the law does not know
        expected = draws * np.array(list(law.values()))
        smallest = min(smallest, float(stats.chisquare(observed, expected).pvalue))
    return smallest


def law_holds(sampler: Sampler, scores: np.ndarray, logits: np.ndarray, **options: int) -> bool:
    return pick_law_p_value(sampler, scores, logits, **options) > ALPHA


def max_log_ratio(one: dict, other: dict) -> float:
    """Largest |ln P(o)/P'(o)| over outcomes; infinite where only one law allows an outcome."""
    worst = 0.0
    for outcome in one.keys() | other.keys():
        p, q = one.get(outcome, 0.0), other.get(outcome, 0.0)
        if p == q == 0:
            continue
        if p == 0 or q == 0:
            return float("inf")
        worst = max(worst, abs(np.log(p / q)))
    return worst
