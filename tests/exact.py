"""Exact divergences to compare accountants with."""

from __future__ import annotations

import math

from scipy import stats

from cords_dp.accounting import PoissonGaussian

# rare and loud against frequent and quiet: the profiles cross
RARE, QUIET = PoissonGaussian(0.6, 0.05), PoissonGaussian(4.0, 1.0)


def hockey_stick(event, epsilon, *, removed):
    """Exact δ(ε) of one Poisson-subsampled Gaussian, by Φ; ``removed`` is the direction."""
    q, s, x = event.rate, event.sigma, math.exp(epsilon)
    threshold = math.expm1(epsilon if removed else -epsilon) + q  # q·e^{(t − ½)/σ²} where the loss is ε
    cut = 0.5 + s**2 * math.log(threshold / q) if threshold > 0 else -math.inf
    base = stats.norm.sf(cut, 0, s)
    mixture = (1 - q) * base + q * stats.norm.sf(cut, 1, s)
    return mixture - x * base if removed else max(0.0, (1 - base) - x * (1 - mixture))
