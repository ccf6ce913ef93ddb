"""The privacy plan: every rate, noise and count of a run, fixed before data is read.

The plan is the only place where selection, training and accounting meet. Sampler, optimizer, strategy
and ledger all take their numbers from it, so they cannot disagree. It holds public values only.

Released by a run, to whoever gets the model:

=====================  =========================================  ===========================  =======
what                   mechanism                                  sensitivity (zero-out)       ledger
=====================  =========================================  ===========================  =======
each DP-SGD step       Poisson-subsampled Gaussian (q, σ)         clip norm C                  D
subset, exponential    exponential mechanism, K = R·k picks       Δ = 2·C_e·C_v, or C_e·C_v     D
                                                                  when v is frozen
subset, top_k          Gaussian (σ_s) on all scores, R rounds     1 (one score)                D
thresholds, threshold  Gaussian (σ_s) on tail counts, R·G         1 cell                       D
sums, threshold        Gaussian (σ_s), R·G (R·(G−1) without       1 (unit gradients)           D
                       coins)
sum and tail counts,   Gaussian (σ_s), one of each a run          1 (unit gradients), 1 cell   D
match
validation gradient    Gaussian (σ_v), when V is private          C_v (sum over V)             V
=====================  =========================================  ===========================  =======

Whom `match` draws and the pool of `threshold` are not released and cost nothing by themselves: see `selection.match`.
RandomDP and FullDP choose without looking at the data and pay for training only. With ``secret_subset``
RandomDP's subset is drawn by secret coins, once, and never released: see `amplified`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from cords_dp.accounting import (
    TRAINING_DATA,
    VALIDATION_DATA,
    Bound,
    Entry,
    Event,
    ExponentialPicks,
    GumbelFreeze,
    Ledger,
    PoissonGaussian,
    advanced_composition,
    epsilon_bound,
    gaussian,
)
from cords_dp.config import SECRET_POOLS, PrivacySettings, SelectionSettings
from cords_dp.errors import AccountingError

WARM_START, TRAINING, SELECTION, VALIDATION = "warm start", "training", "selection", "validation"


@dataclass(frozen=True)
class EpochPlan:
    """One epoch: how many steps, at which rate, on which pool, and whether a selection precedes it."""

    pool: str  # "all" of D, the strategy's "own" pool, or "skip"
    steps: int
    rate: float
    selects: bool = False

    @property
    def phase(self) -> str:
        return WARM_START if self.pool == "all" else TRAINING


@dataclass(frozen=True)
class Shape:
    """The public sizes and schedule of a run, before any noise is chosen."""

    strategy: str
    n: int
    n_validation: int
    k: int
    batch_size: int
    epochs: tuple[EpochPlan, ...]
    selects: bool

    @property
    def rounds(self) -> int:
        return sum(epoch.selects for epoch in self.epochs)

    @property
    def steps(self) -> int:
        return sum(epoch.steps for epoch in self.epochs)

    @property
    def rate(self) -> float:
        """The sampling rate of the strategy's own epochs (a warm start on all of D has another)."""
        return next(epoch.rate for epoch in reversed(self.epochs) if epoch.steps)

    @property
    def steps_in_words(self) -> str:
        """All steps with their sampling rates: "40 steps at sampling rate 0.10772"."""
        rates = dict.fromkeys(epoch.rate for epoch in self.epochs if epoch.steps)
        counts = {rate: sum(e.steps for e in self.epochs if e.rate == rate) for rate in rates}
        return ", ".join(f"{count} steps at sampling rate {rate:.5f}" for rate, count in counts.items())


@dataclass(frozen=True)
class PrivacyPlan:
    """What the run will do and what it will cost. Frozen, printable, public."""

    shape: Shape
    privacy: PrivacySettings
    selection: SelectionSettings
    delta: float
    sigma: float
    epsilon0: float | None = None
    sigma_selection: float | None = None
    sigma_validation: float | None = None

    @property
    def fingerprint(self) -> str:
        """Binds ledgers, checkpoints and generators to this plan: another budget or schedule is another run."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:32]

    # -- what the mechanisms need -------------------------------------------------------------

    @property
    def split(self) -> float:
        """The share of the budget for training, where selection takes part of it."""
        if self.privacy.split is not None:
            return self.privacy.split
        return 0.9 if self.selection.mechanism == "match" else 0.8

    @property
    def noiseless(self) -> bool:
        return self.privacy.noiseless

    @property
    def frozen(self) -> bool:
        """Does the validation gradient stand still while records are picked?"""
        return self.selection.greedy == "Frozen"

    @property
    def score_sensitivity(self) -> float:
        """Δ of the scores: see `selection.glister` for the proof."""
        unit = self.privacy.selection_clip * self.privacy.validation_clip
        return unit if self.frozen else 2 * unit

    @property
    def selection_composition(self) -> str:
        return selection_composition(self.privacy, self.selection)

    @property
    def validation_is_read(self) -> bool:
        return self.shape.rounds > 0 and validation_releases(self.selection, self.shape.k) > 0

    @property
    def concentration(self) -> float:
        """How many times as often as in a uniform draw of the same size a record can come into a batch."""
        return self.shape.rate * self.shape.n / self.shape.batch_size

    @property
    def secret_pool(self) -> bool:
        """Is the pool secret state of the training mechanism, or was it paid for (or drawn blindly)?"""
        return self.selection.secret_subset or (self.shape.selects and self.selection.mechanism in SECRET_POOLS)

    @property
    def inclusion(self) -> float:
        """γ: the chance of a record to be in a secret uniform subset; 1 where no such subset is drawn."""
        return self.shape.k / self.shape.n if self.selection.secret_subset else 1.0

    # -- events -------------------------------------------------------------------------------

    def step_event(self, epoch: EpochPlan) -> PoissonGaussian:
        return PoissonGaussian(sigma=self.sigma, rate=epoch.rate, count=epoch.steps)

    def selection_event(self) -> Event:
        """The event of one selection round on D."""
        if self.selection.mechanism == "exponential":
            assert self.epsilon0 is not None
            return _round_event(self.epsilon0, self.shape.k, self.privacy, self.selection)
        assert self.sigma_selection is not None
        return gaussian(self.sigma_selection, gaussian_releases(self.selection))

    def validation_event(self) -> Event | None:
        """The event of one selection round on V, or None where V is public."""
        if self.sigma_validation is None:
            return None
        return gaussian(self.sigma_validation, validation_releases(self.selection, self.shape.k))

    def entries(self) -> tuple[Entry, ...]:
        """Everything the run may charge. The ledger refuses more."""
        if self.noiseless:
            return ()
        entries: list[Entry] = []
        for epoch in self.shape.epochs:
            if epoch.selects:
                entries.append(Entry(TRAINING_DATA, SELECTION, self.selection_event()))
                if (event := self.validation_event()) is not None:
                    entries.append(Entry(VALIDATION_DATA, VALIDATION, event))
            if epoch.steps:
                entries.append(Entry(TRAINING_DATA, epoch.phase, self.step_event(epoch)))
        return tuple(entries)

    # -- cost ---------------------------------------------------------------------------------

    def cost(self, entries: Sequence[Entry] | None = None) -> Cost:
        """(ε, δ) by phase and in total, for the whole plan or for the entries given."""
        if self.noiseless:
            return Cost({}, Bound(math.inf, 0.0, "none"), None)
        entries = self.entries() if entries is None else entries
        phases = {
            phase: self._phase_bound(phase, [e.event for e in entries if e.phase == phase])
            for phase in dict.fromkeys(e.phase for e in entries)
        }
        on_d = [e for e in entries if e.dataset == TRAINING_DATA]
        if self.privacy.composition == "basic":
            total_d = self._basic_total(on_d)
        else:
            total_d = self._bound([e.event for e in on_d], self.delta)
        return Cost(phases, total_d, phases.get(VALIDATION))

    def spent(self, ledger: Ledger) -> Cost:
        return self.cost(ledger.entries)

    def _phase_bound(self, phase: str, events: list[Event]) -> Bound:
        delta = self._phase_delta(phase)
        if phase == SELECTION and any(isinstance(e, ExponentialPicks) for e in events) and self._paper_picks:
            return _paper_bound(events, delta)
        return self._bound(events, delta)

    def _bound(self, events: Sequence[Event], delta: float) -> Bound:
        inside = epsilon_bound(events, delta / self.inclusion, self.privacy.accountant)
        if self.inclusion == 1:
            return inside
        name = f"{inside.accountant}, amplified by a secret subset"
        return Bound(amplified(inside.epsilon, self.inclusion), delta, name)

    @property
    def _paper_picks(self) -> bool:
        return self.selection_composition == "paper"

    def _phase_delta(self, phase: str) -> float:
        if self.privacy.composition != "basic" or not self.shape.rounds or phase == VALIDATION:
            return self.delta
        return self.delta * (1 - self.split if phase == SELECTION else self.split)

    def _basic_total(self, entries: list[Entry]) -> Bound:
        """Basic composition: the ε and the δ of training and of selection add up."""
        training = [e.event for e in entries if e.phase != SELECTION]
        picking = [e.event for e in entries if e.phase == SELECTION]
        parts = [self._phase_bound(TRAINING, training)] if training else []
        if picking:
            parts.append(self._phase_bound(SELECTION, picking))
        names = " + ".join(dict.fromkeys(p.accountant for p in parts)) or "none"
        return Bound(sum(p.epsilon for p in parts), sum(p.delta for p in parts), names)


@dataclass(frozen=True)
class Cost:
    """(ε, δ) of each phase taken alone, of D in total, and of V in total (None where V is not charged)."""

    phases: dict[str, Bound]
    training_data: Bound
    validation_data: Bound | None

    @property
    def epsilon(self) -> float:
        """ε for zero-out of one record of D ∪ V: the maximum, since each mechanism reads one of them."""
        return max(b.epsilon for b in (self.training_data, self.validation_data) if b is not None)

    @property
    def delta(self) -> float:
        return max(b.delta for b in (self.training_data, self.validation_data) if b is not None)


def amplified(epsilon: float, inclusion: float) -> float:
    """ε of a mechanism that runs on a secret subset.

    Formal guarantee: let M be (ε, δ)-DP for zero-out, and let every record enter the subset by its own secret coin of
    probability γ, once for the whole run, the subset never being released. Then M on the subset is
    (ln(1 + γ(e^ε − 1)), γδ)-DP (Li, Qardaji & Su 2012; Balle, Barthe & Gaboardi 2018).
    """
    return math.log1p(inclusion * math.expm1(epsilon))


def before_amplification(epsilon: float, inclusion: float) -> float:
    """The inverse of `amplified`: what the mechanism may spend inside the subset."""
    return math.log1p(math.expm1(epsilon) / inclusion)


# --- how rounds and picks are counted ---------------------------------------------------------------


def selection_composition(privacy: PrivacySettings, selection: SelectionSettings) -> str:
    """How picks are composed when the config does not say."""
    if privacy.selection_composition is not None:
        return privacy.selection_composition
    if privacy.composition == "basic":
        return "paper"
    return "freeze" if selection.greedy == "Frozen" else "bounded_range"


def freezes_per_round(selection: SelectionSettings, k: int) -> int:
    """How many stretches of unchanged scores one round of k picks has."""
    return {"Frozen": 1, "RGreedy": min(selection.r, k)}.get(selection.greedy, k)


def validation_releases(selection: SelectionSettings, k: int) -> int:
    """How often one round evaluates the validation gradient."""
    if selection.mechanism == "match":
        return 1  # whatever the score says: it always reads V
    if not selection.reads_validation:
        return 0
    if selection.mechanism == "exponential":
        return freezes_per_round(selection, k)
    return selection.greedy_rounds if selection.mechanism == "threshold" else 1


def gaussian_releases(selection: SelectionSettings) -> int:
    """Gaussian releases on D in one round: a sum and a histogram, or the scores once, or G thresholds and sums.

    The coins' sum comes before the first threshold, so there is one more where a share is drawn by coins.
    """
    if selection.mechanism in ("match", "top_k"):
        return 2 if selection.mechanism == "match" else 1
    return 2 * selection.greedy_rounds - (0 if selection.exploration else 1)


def _round_event(epsilon0: float, k: int, privacy: PrivacySettings, selection: SelectionSettings) -> Event:
    composition = selection_composition(privacy, selection)
    if composition == "freeze":
        return GumbelFreeze(epsilon0)
    if composition == "bounded_range" and selection.greedy == "Frozen":
        # Only the record's own score moves: range ε₀/2.
        return ExponentialPicks(epsilon0 / 2, k)
    return ExponentialPicks(epsilon0, k)


def _paper_bound(events: list[Event], delta: float) -> Bound:
    picks = [e for e in events if isinstance(e, ExponentialPicks)]
    if len(picks) != len(events) or len({p.epsilon0 for p in picks}) != 1:
        raise AccountingError("the paper's composition takes picks of one and the same epsilon0")
    return advanced_composition(ExponentialPicks(picks[0].epsilon0, sum(p.count for p in picks)), delta)
