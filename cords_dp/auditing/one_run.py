"""From guesses about many canaries of one run to a lower bound on ε, or on its whole trade-off curve (f-DP).

On ε: Steinke, Nasr & Jagielski, "Privacy auditing with one (1) training run" (NeurIPS 2023), Theorem 5.2, appendix D.
On the curve: Mahloujifar, Melis & Chaudhuri, "Auditing f-differential privacy in one run" (2024). A single (ε, δ)
allows far more right guesses than the curve of a Gaussian with that (ε, δ) does, so this bound is the tighter one.

The claim about the curve: for neighbours M(u) and M(u′) and every event S, P[M(u) ∈ S] ≤ F(P[M(u′) ∈ S]), with F
concave and rising; of μ-GDP F(x) = Φ(Φ⁻¹(x) + μ). Each of m canaries is in by its own fair coin u_i, the guesser sees
M(u) and guesses g of the coins, C of them right. Let p_j = P[C = j].

Lemma. For i ≥ 1 let r_i = Σ_{j≥i} j·p_j / m and h_i = Σ_{j≥i} (g−j)·p_j / m. Then r_i ≤ F(h_{i−1}).
    For a canary k and the other coins fixed, let S_b be the outputs at which the guess about k is b and at least i−1 of
    the other guesses are right; the coin u_k plays no part in S_b. The events "k is guessed rightly and C ≥ i" and
    "k is guessed wrongly and C ≥ i−1" are M ∈ S_b for u_k = b and for u_k = 1−b, and the coin is fair. So the claim
    bounds the one by F of the other, for these coins and this b; by Jensen also on the average over all coins, b and k.
    Counting the rightly guessed k gives r_i on the left, the wrongly guessed ones give h_{i−1} on the right.

Theorem. P[C ≥ c] = τ is possible only if the recursion in `_refuted` ends with at most all of the probability.
    Moving mass from j to j−1 lowers r and raises h, so it breaks no inequality below, and for j > c leaves τ as it is.
    Hence all of τ may be taken to lie at c; and p_{c−1}, p_{c−2}, … one after the other as small as the lemma allows
    (what is more may be moved down to 0). That is the recursion: h_{i−1} = max(h_i, F⁻¹(r_i)), and r grows by
    (i−1)/(g−i+1) of what h does. If r_0 + h_0 then exceeds g/m, the probabilities would exceed 1.

Canaries may hang together in any way, and the guesser may choose which coins to guess, not how many. With fewer than
all constraints (upper sets alone) the result is still a bound; it is never below the truth.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from cords_dp.accounting.trade_off import SLACK
from cords_dp.errors import AccountingError

Least = Callable[[float], float]  # F⁻¹: the least probability under a neighbour of what has this one
_LARGEST_EPSILON = 50.0
_LARGEST_MU = 20.0  # of μ
_ROUNDING = 1e-9


def count_right(scores: np.ndarray, included: np.ndarray, guesses: int) -> int:
    """Count right guesses: the highest ``guesses/2`` scores are called in, the lowest as many out, the rest open."""
    order = np.argsort(scores, kind="stable")
    half = guesses // 2
    return int(included[order[len(order) - half :]].sum() + (~included[order[:half]]).sum())


# --- a bound on ε ----------------------------------------------------------------------------------------------------


def guessing_p_value(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Return how likely ``correct`` or more right guesses are, at most, if the run is (ε, δ)-DP.

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
    """Return a lower bound on ε at ``delta`` that is wrong with probability at most ``alpha``.

    The p-value is not monotone in ε for every input, so the bound is the smallest ε that is not rejected, found
    upwards on a grid and then by bisection: whatever is rejected below it is rejected by the theorem itself.
    """

    def rejected(epsilon: float) -> bool:
        return guessing_p_value(canaries, guesses, correct, epsilon, delta) < alpha

    low, step = 0.0, 0.05
    if not rejected(low):
        return 0.0
    while low < _LARGEST_EPSILON and rejected(low + step):
        low += step
    high = low + step
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


# --- a bound on the curve --------------------------------------------------------------------------------------------


def gaussian_curve(mu: float, slack: float = SLACK) -> Least:
    """Return F⁻¹ of μ-GDP. ``slack``: added to F, as in the claim that `accounting.trade_off` makes."""
    return lambda p: float(ndtr(ndtri(p - slack) - mu)) if p > slack else 0.0


def mu_from_guesses(canaries: int, guesses: int, correct: int, *, alpha: float, slack: float = SLACK) -> float:
    """Return a lower bound on μ of Gaussian DP, wrong with probability at most ``alpha``.

    Formal guarantee: of a run that is μ-GDP (and ``slack``) the result exceeds μ with probability at most ``alpha``:
    it is a μ that was refuted, or 0, and a larger μ allows every number of right guesses that a smaller one does.
    """
    _check(canaries, guesses, correct)

    def refuted(mu: float) -> bool:
        return _refuted(canaries, guesses, correct, alpha, gaussian_curve(mu, slack))

    low, high = 0.0, _LARGEST_MU
    if not refuted(low):
        return 0.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _refuted(canaries: int, guesses: int, correct: int, tail: float, least: Least) -> bool:
    """Say whether it is impossible that ``correct`` or more guesses are right with the probability ``tail``."""
    whole = guesses / canaries * (1 + _ROUNDING)
    right, wrong = tail * correct / canaries, tail * (guesses - correct) / canaries
    for i in range(correct, 0, -1):
        needed = least(right)
        if needed > wrong:
            right += (i - 1) / (guesses - i + 1) * (needed - wrong)
            wrong = needed
        if right + wrong > whole:
            return True
    return False


def _check(canaries: int, guesses: int, correct: int) -> None:
    if not 0 <= correct <= guesses <= canaries or not guesses:
        raise AccountingError(f"{correct} right of {guesses} guesses about {canaries} canaries: impossible")
