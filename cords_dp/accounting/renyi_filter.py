"""A privacy filter: bounds what may be spent when each event is chosen by looking at earlier outputs.

Composing the events that happened to be chosen, as `composition` does for a plan, is no theorem here. With two
mechanisms whose privacy profiles cross, an analyst who sees a first output can choose the one that is worse *there*;
the result is worse than either fixed choice, although each passes the test. (Profiles and trade-off curves have no
filter in general; the tests hold an example.) Rényi divergences of a fixed order do have one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cords_dp.accounting.events import Event
from cords_dp.errors import AccountingError

# Best for DP-SGD's curves, which rise faster than the Gaussian's; more orders would cost more than they bring.
_SHARES_OF_GAUSSIAN_ORDER = (0.5, 0.75, 1.0)


@dataclass(frozen=True)
class RenyiFilter:
    """Admits events as long as the whole interaction stays (ε, δ)-DP.

    Formal guarantee. Orders α₁…α_K are functions of (ε, δ), fixed before anything is released. Let B_k be the largest
    Rényi divergence of order α_k that implies (ε, δ/K)-DP. Events may be chosen, run and stopped in any way that
    depends on earlier outputs, provided that whenever one begins, *some* k has Σ ≤ B_k, the sum being taken over the
    order-α_k divergences of all events that have begun or may still begin without being asked for again. Then the
    whole interaction is (ε, δ)-DP.

    Proof. Let M_k be the interaction that is stopped before the first event with which Σ would exceed B_k. It is
    (α_k, B_k)-RDP (Rényi filter of a fixed order: Feldman & Zrnic 2021, Lécuyer 2021; interleaved runs: Haney et al.
    2023), hence (ε, δ/K)-DP. Sums only grow, so at the end of a transcript some k satisfies Σ ≤ B_k and has done so
    throughout; let k(h) be the smallest. A transcript h with k(h) = k has the same probability under M and M_k. So for
    every set S of transcripts and S_k = {h ∈ S: k(h) = k},
    P[M(D) ∈ S] = Σ_k P[M_k(D) ∈ S_k] ≤ Σ_k (e^ε·P[M_k(D′) ∈ S_k] + δ/K) = e^ε·P[M(D′) ∈ S] + δ, and conversely.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        if not (0 < self.epsilon < math.inf and 0 < self.delta < 1):
            raise AccountingError(f"not a total of privacy: epsilon = {self.epsilon!r}, delta = {self.delta!r}")

    @property
    def orders(self) -> tuple[int, ...]:
        """Around the order that is best for Gaussian noise of this ε and δ. Integers: their divergences are exact."""
        log = math.log(1 / self.delta)
        above_one = math.sqrt(log) / (math.sqrt(log + self.epsilon) - math.sqrt(log))
        return tuple(sorted({max(2, round(1 + share * above_one)) for share in _SHARES_OF_GAUSSIAN_ORDER}))

    @property
    def budgets(self) -> dict[int, float]:
        """B_k by order: the divergence that implies (ε, δ/K)-DP (Canonne, Kamath & Steinke 2020, Prop. 12)."""
        delta = self.delta / len(self.orders)
        return {a: self.epsilon - math.log1p(-1 / a) + math.log(delta * a) / (a - 1) for a in self.orders}

    def share(self, events: Sequence[Event]) -> float:
        """Return the share of the budget that ``events`` take: they are admitted where it is at most 1.

        A gauge without a guarantee: where runs may stop at any time, what holds is the filter's (ε, δ).
        """
        return self.share_of_sums({a: sum(event.count * event.rdp(float(a)) for event in events) for a in self.orders})

    def share_of_sums(self, sums: Mapping[int, float]) -> float:
        """Return the same, from the sum of all divergences at each order."""
        if not any(sums.values()):
            return 0.0
        return min((sums[a] / budget for a, budget in self.budgets.items() if budget > 0), default=math.inf)

    def admits(self, events: Sequence[Event]) -> bool:
        return self.share(events) <= 1
