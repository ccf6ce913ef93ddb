"""Find the noise (or the per-pick ε₀) that spends a budget: at most 0.5 % below it, never above."""

from __future__ import annotations

import math
from collections.abc import Callable

from cords_dp.errors import AccountingError

_LOWEST_SHARE = 0.995
_AIM = 0.6  # of the way from the lowest share to the whole


def calibrate(
    epsilon_at: Callable[[float], float], target: float, *, start: float, rising: bool, lowest: float = _LOWEST_SHARE
) -> float:
    """Find the positive parameter at which ``epsilon_at`` lies in [lowest, 1]·target, by default [0.995, 1].

    ``epsilon_at`` must be monotone: rising (a per-pick ε₀) or falling (a noise multiplier). The search
    is a secant in log-log coordinates, in which composition is nearly a straight line, kept inside
    a bracket; each evaluation may cost a second, and four or five suffice.
    """
    slope = 1.0 if rising else -1.0
    aim = math.log((lowest + _AIM * (1 - lowest)) * target)
    below: float | None = None  # log-parameters at which ε is under, and over, the target
    above: float | None = None
    previous: tuple[float, float] | None = None
    x = math.log(start)
    for _ in range(60):
        epsilon = epsilon_at(math.exp(x))
        if lowest * target <= epsilon <= target:
            return math.exp(x)
        if epsilon < target:
            below = x
        else:
            above = x
        y = math.log(max(epsilon, 1e-12)) if math.isfinite(epsilon) else math.log(1e6 * target)
        if previous is not None and abs(x - previous[0]) > 1e-12:
            secant = (y - previous[1]) / (x - previous[0])
            if secant * slope > 0.05:
                slope = max(-20.0, min(20.0, secant))
        previous = (x, y)
        step = max(-2.0, min(2.0, (aim - y) / slope))
        x = _inside(x + step, below, above)
    raise AccountingError(f"no parameter gives epsilon within {100 * (1 - lowest):g} % below {target:g}")


def _inside(x: float, below: float | None, above: float | None) -> float:
    """Keep the next guess strictly between the ends that are known; bisect when it falls outside."""
    if below is None or above is None:
        return x
    low, high = min(below, above), max(below, above)
    margin = 0.02 * (high - low)
    return x if low + margin < x < high - margin else (low + high) / 2
