"""Post-processing of noisy tables of D and V: ratios that noise does not explain, and what to draw for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

CONCENTRATIONS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.5)  # the branches that a plan pays for
_LOST = 0.25  # share of V's mass that the cap at 1 may cost
_READABLE = 2.0  # a cell of D counts as read above this many deviations of its noise


def table_ratios(on_d: np.ndarray, on_v: np.ndarray, sigma_d: float, sigma_v: float) -> tuple[np.ndarray, np.ndarray]:
    """Return, for each row of two noisy tables, D's shares and the ratio of V's shares to them, shrunk towards 1.

    Empirical Bayes: a ratio is 1 + e with e of mean 0 and variance ω², measured with an error of known variance. ω² is
    the mean of (ratio − 1)² over the records of D less what noise and sampling explain, and less one deviation of that
    mean where nothing differs; at 0 every ratio is 1.
    """
    groups = on_d.shape[1]
    size_d = np.maximum(on_d.sum(axis=1, keepdims=True), max(1.0, sigma_d * groups**0.5))
    size_v = np.maximum(on_v.sum(axis=1, keepdims=True), max(1.0, sigma_v * groups**0.5))
    seen = np.maximum(on_d, 0.0) / size_d
    floor = max(_READABLE * sigma_d, 1e-9)
    d = np.maximum(on_d, floor) / size_d  # a ratio to a count within noise is capped, not trusted
    v = on_v / size_v
    ratio = v / d
    error_d = (sigma_d / size_d) ** 2 + seen / size_d
    error_v = (sigma_v / size_v) ** 2 + np.maximum(np.maximum(v, seen), 1 / size_v) / size_v
    error = (error_v + ratio**2 * error_d) / d**2
    explained = ((sigma_v / size_v) ** 2 + d / size_v + error_d) / d**2  # E(ratio − 1)² where nothing differs
    readable = np.where(on_d > floor, on_d, 0.0)
    chance = math.sqrt(2 * float(((readable * explained) ** 2).sum()))  # the deviation of a sum of squares of normals
    spread = (float((readable * ((ratio - 1) ** 2 - explained)).sum()) - chance) / max(float(readable.sum()), 1.0)
    shrunk = np.clip(1 + (ratio - 1) * spread / (spread + error), 0.0, None) if spread > 0 else np.ones_like(ratio)
    shares = seen / np.maximum(seen.sum(axis=1, keepdims=True), 1e-9)
    return shares, shrunk / np.maximum((shares * shrunk).sum(axis=1, keepdims=True), 1e-3)


def best_branch(
    shares: np.ndarray, ratio: np.ndarray, branches: Sequence[tuple[float, float]]
) -> tuple[int, np.ndarray]:
    """Return the best of the branches (c, σ_c), ties to the first, and each cell's chance there; Σ shares·ratio = 1.

    A chance is min(1, κ·ratio), κ the smaller of two: at one the cap costs a share of V's mass, at the other a
    share 1/c of D stays, so that a batch has about its expected size. Worth of a branch: the share β times the log of
    signal to noise, less the divergence of what is drawn from V.
    """
    wanted = shares * ratio
    match = 1 / rising(lambda x: float((shares * np.minimum(x, ratio)).sum()), 1 - _LOST)
    reachable = (1 - 1e-9) * float(shares[ratio > 0].sum())
    best, worth = (0, np.ones_like(ratio)), -math.inf
    for number, (c, sigma) in enumerate(branches):
        fill = rising(lambda x: float((shares * np.minimum(1.0, x * ratio)).sum()), min(1 / c, reachable))
        chances = np.minimum(1.0, min(match, fill) * ratio)
        kept, asked = float((shares * chances).sum()), wanted > 0
        value = (_LOST - 1) * math.log(max(kept, 1e-12)) + _LOST * math.log(c / sigma)
        value += float((wanted[asked] * np.log(np.maximum(chances[asked], 1e-12))).sum())
        if value > worth + 1e-9:
            best, worth = (number, chances), value
    return best


def normalised(shares: np.ndarray, ratio: np.ndarray) -> np.ndarray:
    return ratio / max(float((shares * ratio).sum()), 1e-9)


def rising(function: Callable[[float], float], wanted: float) -> float:
    """Find where a rising function reaches a value, by bisection on a logarithmic scale."""
    low, high = 1e-9, 1e9
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if function(middle) < wanted else (low, middle)
    return high
