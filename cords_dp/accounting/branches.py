"""A released value chooses between branches that were fixed before data was read: pay for the worst at every ε."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

from cords_dp.accounting.composition import composed_pld, rough_pld
from cords_dp.accounting.events import Event, from_dict, is_count, merge, register_event, to_dict
from cords_dp.accounting.pld import directions, pointwise_maximum
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

    @property
    def uses(self) -> int:
        return self.count * max(sum(event.uses for event in branch) for branch in self.branches)

    def rdp(self, order: float) -> float:
        return max(sum(event.count * event.rdp(order) for event in branch) for branch in self.branches)

    def pld(self) -> PrivacyLossDistribution:
        return worst_of([composed_pld(branch) for branch in self.branches if branch])  # an empty one costs nothing

    def pld_on(self, step: float) -> PrivacyLossDistribution:
        return worst_of([rough_pld(branch, step) for branch in self.branches if branch])

    def parameters(self) -> dict[str, Any]:
        return {"branches": [[to_dict(event) for event in branch] for branch in self.branches], "count": self.count}

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> BranchMaximum:
        fields = dict(parameters)
        branches = tuple(tuple(from_dict(event) for event in branch) for branch in fields.pop("branches"))
        return cls(branches, **fields)


def worst_of(plds: Sequence[PrivacyLossDistribution]) -> PrivacyLossDistribution:
    """Return the pair of each direction whose profile is the largest of these at every ε."""
    present, absent = zip(*map(directions, plds), strict=True)
    if all(one is other for one, other in zip(present, absent, strict=True)):
        return PrivacyLossDistribution(pointwise_maximum(present))
    return PrivacyLossDistribution(pointwise_maximum(present), pointwise_maximum(absent))
