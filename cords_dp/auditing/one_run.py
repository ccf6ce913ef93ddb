"""From guesses about many canaries of one run to a lower bound on ε.

Steinke, Nasr & Jagielski, "Privacy auditing with one (1) training run" (NeurIPS 2023), Theorem 5.2 and appendix D.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import binom

from cords_dp.errors import AccountingError

_LARGEST = 50.0


def guessing_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """How likely ``correct`` or more right guesses are, at most, if the run is (ε, δ)-DP.

    Formal guarantee: each of m canaries is in the data by its own fair coin. A guesser who sees the output of an
    (ε, δ)-DP run and guesses r coins is right v times or more with probability at most
    P[W ≥ v] + 2·m·δ · max_{1≤i≤v} P[v > W ≥ v−i]/i, where W ~ Binomial(r, e^ε/(1+e^ε)), however much the canaries
    hang together. How many guesses are made must not depend on the coins other than through the output.
    """
    if not 0 <= correct <= guesses <= canaries:
        raise AccountingError(f"{correct} right of {guesses} guesses about {canaries} canaries: impossible")
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise AccountingError(f"no such guarantee: epsilon {epsilon!r}, delta {delta!r}")
    law = binom(guesses, 1 / (1 + np.exp(-epsilon)))
    below = np.cumsum(law.pmf(correct - np.arange(1, correct + 1)))  # P[v > W ≥ v − i], i = 1 … v
    steepest = float((below / np.arange(1, correct + 1)).max()) if correct else 0.0
    return min(1.0, float(law.sf(correct - 1)) + 2 * canaries * delta * steepest)


def epsilon_from_guesses(canaries: int, guesses: int, correct: int, *, delta: float, alpha: float) -> float:
    """A lower bound on ε at ``delta`` that is wrong with probability at most ``alpha``.

    The p-value is not monotone in ε for every input, so the bound is the smallest ε that is not rejected, found
    upwards on a grid and then by bisection: whatever is rejected below it is rejected by the theorem itself.
    """

    def rejected(epsilon: float) -> bool:
        return guessing_p_value(canaries, guesses, correct, epsilon, delta) < alpha

    low, step = 0.0, 0.05
    if not rejected(low):
        return 0.0
    while low < _LARGEST and rejected(low + step):
        low += step
    high = low + step
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def count_right(scores: np.ndarray, included: np.ndarray, guesses: int) -> int:
    """Right guesses if the highest ``guesses/2`` scores are called in, the lowest as many out, the rest left open."""
    order = np.argsort(scores, kind="stable")
    half = guesses // 2
    return int(included[order[len(order) - half :]].sum() + (~included[order[:half]]).sum())
