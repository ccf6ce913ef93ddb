"""What a run may release of D before it trains: values that a source fits on the records."""

from __future__ import annotations

from dataclasses import dataclass

PREPARATION = "preparation"  # the phase of its charge, and its name in the archive of released values


@dataclass(frozen=True)
class Preparation:
    """One Gaussian release of a sum over all records of D, made once, before the first step.

    sensitivity: the L2 norm that no record's part of the sum exceeds; a null record's part is zero. words: what the
    sensitivity means, for the privacy statement. share: of ε that the release costs by itself; the noise of training is
    calibrated so that the whole run keeps the budget.
    """

    name: str
    sensitivity: float
    words: str
    share: float = 0.1  # costs add up like squares: training then needs about 0.6 % more noise
