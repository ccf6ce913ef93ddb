"""Private quantiles: how many scores lie above each of many thresholds, in one Gaussian release.

Adding noise to every cell of a histogram and summing cells makes the error of a tail count grow with the
square root of the number of cells in it. Here the cumulative sum is factored as L·R with L = R the square root of
the lower triangular matrix of ones: noise goes on R·x, and L turns the result into all tail counts at once. The
error of every tail count is about (1 + ln(bins)/π) noise multipliers, whichever tail it is
(Fichtenberger, Henzinger & Upadhyay 2023).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy.linalg import toeplitz


def score_cells(scores: np.ndarray, bins: int) -> np.ndarray:
    """The cell of each score: equal cells on the public range [−1, 1]."""
    return np.clip(((np.asarray(scores, dtype=np.float64) + 1) / 2 * bins).astype(np.int64), 0, bins - 1)


def tail_histogram(scores: np.ndarray, labels: np.ndarray, *, classes: int, bins: int) -> tuple[np.ndarray, float]:
    """R·x for the joint class × score histogram x, and the L2 norm by which one record can move it.

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
    """For each class, the noisy number of scores in cell b or above, b = 0 … bins−1. Post-processing."""
    return (noisy @ _square_root(noisy.shape[1]).T)[:, ::-1]


def tail_noise(noise_multiplier: float, bins: int) -> float:
    """The standard deviation of the noisiest of the tail counts."""
    column = root_column(bins)
    return noise_multiplier * float(column @ column)


def threshold_for(tail_counts: np.ndarray, target: float) -> float:
    """The score above which about ``target`` records lie. Post-processing of noisy tail counts for one class.

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
    """R with R·R = the lower triangular matrix of ones: a Toeplitz matrix."""
    return toeplitz(root_column(size), np.zeros(size))


def root_column(size: int) -> np.ndarray:
    """The first, and longest, column of R: binom(2i, i)/4^i."""
    return np.cumprod(np.concatenate([[1.0], 1 - 0.5 / np.arange(1, size)]))
