"""A released value chooses between branches that were fixed before data was read: pay for the worst at every ε."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf, PLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import signal

from cords_dp.accounting.composition import composed_pld
from cords_dp.accounting.events import PLD_STEP, Event, from_dict, is_count, merge, register_event, to_dict
from cords_dp.errors import AccountingError


@register_event
@dataclass(frozen=True)
class BranchMaximum(Event):
    """One of several lists of events is carried out, chosen by a released value that is an event of its own.

    Formal guarantee. For one direction of zero-out let branch i be dominated by the pair (Pᵢ, Qᵢ) with profile
    δᵢ(ε) = H_{e^ε}(Pᵢ‖Qᵢ), and let Δ = maxᵢ δᵢ. As a function of x = e^ε each δᵢ is convex and non-increasing, with
    δᵢ = 1 at x = 0 and δᵢ ≥ max(0, 1 − x); a pointwise maximum keeps all of these, and a function that has them is the
    profile of some pair (P, Q) (Zhu, Dong & Wang 2022). Given any transcript h of what was released before, the
    branch i(h) is a constant, its mechanism M_h has H_x(M_h(D)‖M_h(D′)) ≤ δ_{i(h)}(ε) ≤ Δ(ε), so (P, Q) dominates M_h
    whatever h is. That is the premise of adaptive composition (ibid., Thm. 10): (P, Q) composes with the events before
    and after it, with itself ``count`` times, and the release that chooses is an event of its own. The same holds
    for the other direction with pairs of its own. Rényi: D_α of the composition is at most the sum of the suprema over
    h, so the maximum over branches of the sums of their events' divergences serves.

    Assumes: the branches are public before data is read, and the branch depends on released values only.
    """

    kind: ClassVar[str] = "branch_maximum"
    branches: tuple[tuple[Event, ...], ...]
    count: int = 1

    def __post_init__(self) -> None:
        # Counted together, so that branches which differ in grouping only are one event to ledgers and caches.
        object.__setattr__(self, "branches", tuple(merge(branch) for branch in self.branches))
        if not any(self.branches) or not is_count(self.count):
            raise AccountingError(f"not a choice between branches of events: {self}")

    def rdp(self, order: float) -> float:
        return max(sum(event.count * event.rdp(order) for event in branch) for branch in self.branches)

    def pld(self) -> PrivacyLossDistribution:
        plds = [composed_pld(branch) for branch in self.branches if branch]  # an empty branch costs nothing
        both = [(pld._pmf_remove, pld._pmf_add) for pld in plds]
        remove = pointwise_maximum([pmf for pmf, _ in both])
        if all(one is other for one, other in both):
            return PrivacyLossDistribution(remove)
        return PrivacyLossDistribution(remove, pointwise_maximum([pmf for _, pmf in both]))

    def parameters(self) -> dict[str, Any]:
        return {"branches": [[to_dict(event) for event in branch] for branch in self.branches], "count": self.count}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> BranchMaximum:
        fields = dict(parameters)
        branches = tuple(tuple(from_dict(event) for event in branch) for branch in fields.pop("branches"))
        return cls(branches, **fields)


def pointwise_maximum(pmfs: Sequence[PLDPmf]) -> DensePLDPmf:
    """The pessimistic PLD whose profile lies on or above the profile of each of ``pmfs``, at every ε.

    Formal guarantee: the profiles are piecewise linear in x = e^ε with knots on the grid. Their maximum is convex,
    so the chords between its values at the knots (and 1 at x = 0) lie on or above it: connect the dots (Doroshenko et
    al. 2022). With T = Δ − Δ(∞) and step h, the mass above knot k is (T_k − e^{−h}·T_{k+1})/(1 − e^{−h}).
    Negative FFT residues count as 0 and the mass above a knot never falls below that of the next, both upwards; what is
    left is the rounding of float64 sums, some 1e-12 of δ.
    """
    dense = [pmf.to_dense_pmf() for pmf in pmfs]
    lower = min(pmf._lower_loss for pmf in dense)
    upper = max(pmf._lower_loss + pmf.size - 1 for pmf in dense)
    infinity = max(pmf._infinity_mass for pmf in dense)
    profile = np.max([_profile(pmf, lower, upper) for pmf in dense], axis=0) - infinity
    decay, gain = math.exp(-PLD_STEP), -math.expm1(-PLD_STEP)
    profile = np.maximum(profile, 0.0)
    above = np.append((profile[:-1] - decay * profile[1:]) / gain, 0.0)
    above = np.maximum.accumulate(above[::-1])[::-1]
    above = np.clip(above, 0.0, 1.0 - infinity)
    probabilities = np.append(1.0 - infinity - above[0], above[:-1] - above[1:])
    return DensePLDPmf(PLD_STEP, lower, probabilities, infinity, True)


def _profile(pmf: DensePLDPmf, lower: int, upper: int) -> np.ndarray:
    """δ at the grid points ``lower … upper``, by a recursion in which nothing cancels.

    T_k = Σ_{j>k} p_j·(1 − e^{(k−j)h}) obeys T_k = e^{−h}·T_{k+1} + (1 − e^{−h})·Σ_{j>k} p_j.
    """
    masses = np.zeros(upper - lower + 1)
    start = pmf._lower_loss - lower
    masses[start : start + pmf.size] = np.maximum(pmf._probs, 0.0)
    from_above = np.cumsum(masses[::-1])
    above = np.append(0.0, from_above[:-1])  # strictly above each knot, from the top down
    decay, gain = math.exp(-PLD_STEP), -math.expm1(-PLD_STEP)
    return pmf._infinity_mass + signal.lfilter([gain], [1.0, -decay], above)[::-1]
