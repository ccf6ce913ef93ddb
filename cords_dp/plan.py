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
validation gradient    Gaussian (σ_v), when V is private          C_v (sum over V)             V
=====================  =========================================  ===========================  =======

The pool of `threshold` is not released and costs nothing by itself: see `selection.threshold`.
RandomDP and FullDP choose without looking at the data and pay for training only.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

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
    calibrate,
    epsilon_bound,
    gaussian,
)
from cords_dp.config import PrivacySettings, SelectionSettings
from cords_dp.errors import AccountingError, ConfigError

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
    def secret_pool(self) -> bool:
        """Is the pool secret state of the training mechanism, or was it paid for (or drawn blindly)?"""
        return self.shape.selects and self.selection.mechanism == "threshold"

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
            total_d = epsilon_bound([e.event for e in on_d], self.delta, self.privacy.accountant)
        return Cost(phases, total_d, phases.get(VALIDATION))

    def spent(self, ledger: Ledger) -> Cost:
        return self.cost(ledger.entries)

    def _phase_bound(self, phase: str, events: list[Event]) -> Bound:
        delta = self._phase_delta(phase)
        if phase == SELECTION and any(isinstance(e, ExponentialPicks) for e in events) and self._paper_picks:
            return _paper_bound(events, delta)
        return epsilon_bound(events, delta, self.privacy.accountant)

    @property
    def _paper_picks(self) -> bool:
        return self.selection_composition == "paper"

    def _phase_delta(self, phase: str) -> float:
        if self.privacy.composition != "basic" or not self.shape.rounds or phase == VALIDATION:
            return self.delta
        return self.delta * (1 - self.privacy.split if phase == SELECTION else self.privacy.split)

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


# --- building a plan -----------------------------------------------------------------------------


def epoch_schedule(
    selection: SelectionSettings, *, epochs: int, n: int, k: int, batch: int, whole: bool, selects: bool
) -> tuple[EpochPlan, ...]:
    """CORDS' schedule: warm start on all data, a pause, then the subset with re-selection every L epochs."""
    if whole:
        steps = max(1, math.ceil(selection.compute_fraction * n / batch))
        return (EpochPlan("own", steps, batch / n),) * epochs
    select_after = int(selection.kappa * epochs)
    warm_epochs = math.ceil(select_after * selection.fraction)
    schedule = []
    for epoch in range(1, epochs + 1):
        if epoch <= warm_epochs:
            schedule.append(EpochPlan("all", math.ceil(n / batch), batch / n))
        elif epoch <= select_after:
            schedule.append(EpochPlan("skip", 0, 0.0))
        else:
            due = selects and epoch > 1 and (epoch - 1) % selection.select_every == 0
            schedule.append(EpochPlan("own", math.ceil(k / batch), batch / k, due))
    return tuple(schedule)


@lru_cache(maxsize=256)
def build_plan(
    strategy: str,
    privacy: PrivacySettings,
    selection: SelectionSettings,
    *,
    epochs: int,
    batch_size: int,
    n: int,
    n_validation: int,
    whole: bool,
    selects: bool,
) -> PrivacyPlan:
    """Fix the schedule and calibrate the noise so that the total meets (ε, δ)."""
    k = n if whole else int(n * selection.fraction)
    if batch_size > k:
        raise ConfigError(
            "dataloader.batch_size", batch_size, f"larger than the {k} records to train on; use at most {k}"
        )
    if selects:
        _refuse_unproved(privacy, selection, k)
    schedule = epoch_schedule(selection, epochs=epochs, n=n, k=k, batch=batch_size, whole=whole, selects=selects)
    shape = Shape(strategy, n, n_validation, k, batch_size, schedule, selects)
    delta = _delta(privacy, shape)
    if privacy.noiseless:
        return PrivacyPlan(shape, privacy, selection, delta, sigma=0.0)
    plan = PrivacyPlan(shape, privacy, selection, delta, sigma=1.0)
    if shape.rounds:
        plan = _with_selection_noise(plan)
        if privacy.validation == "private" and plan.validation_is_read:
            plan = replace(plan, sigma_validation=_calibrate_validation(plan))
    return replace(plan, sigma=_calibrate_training(plan))


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
    if not selection.reads_validation:
        return 0
    if selection.mechanism == "exponential":
        return freezes_per_round(selection, k)
    return selection.greedy_rounds if selection.mechanism == "threshold" else 1


def gaussian_releases(selection: SelectionSettings) -> int:
    """Gaussian releases on D in one round: the scores once, or G thresholds and the sums between them.

    The coins' sum comes before the first threshold, so there is one more where a share is drawn by coins.
    """
    if selection.mechanism == "top_k":
        return 1
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


def _refuse_unproved(privacy: PrivacySettings, selection: SelectionSettings, k: int) -> None:
    if k < 1:
        raise ConfigError("dss_args.fraction", selection.fraction, "selects no record at all; raise it")
    if selection.mechanism == "exponential":
        _refuse_unproved_picks(privacy, selection)
    elif selection.selection_type == "PerClass" and selection.mechanism == "top_k" and not privacy.labels_public:
        raise ConfigError("dss_args.selection_type", "PerClass", "top_k ranks all records together; use 'Supervised'")
    if selection.selection_type not in ("Supervised", "PerClass"):
        raise ConfigError(
            "dss_args.selection_type",
            selection.selection_type,
            "no sensitivity is proved for it under differential privacy; use 'Supervised'",
        )


def _refuse_unproved_picks(privacy: PrivacySettings, selection: SelectionSettings) -> None:
    composition = selection_composition(privacy, selection)
    if selection.score != "glister" and selection.greedy != "Frozen":
        raise ConfigError(
            "dss_args.greedy", selection.greedy, f"score {selection.score!r} has no greedy step: use 'Frozen'"
        )
    if composition == "freeze" and selection.greedy != "Frozen":
        raise ConfigError(
            "privacy.selection_composition",
            "freeze",
            f"greedy={selection.greedy!r} moves every score between picks, so the freeze bound does not "
            "hold; use dss_args.greedy='Frozen' or selection_composition='bounded_range'",
        )
    if composition == "paper" and privacy.composition == "joint":
        raise ConfigError(
            "privacy.selection_composition",
            "paper",
            "the paper's formula gives (ε, δ) and no divergence to compose jointly; use composition='basic'",
        )
    if selection.selection_type == "PerClass" and not privacy.labels_public:
        raise ConfigError(
            "dss_args.selection_type",
            "PerClass",
            "a class quota reveals who is in the class (with one record in it the pick is certain); use "
            "'Supervised', or declare the labels public with privacy.labels_public=True",
        )


def _delta(privacy: PrivacySettings, shape: Shape) -> float:
    largest = max(shape.n, shape.n_validation if privacy.validation == "private" and shape.rounds else 0)
    if privacy.delta is None:
        return 1e-5 if 1 / largest > 1e-5 else 0.1 / largest
    if privacy.delta >= 1 / largest:
        raise ConfigError(
            "privacy.delta",
            privacy.delta,
            f"must be below 1/n = {1 / largest:.3g}: a mechanism that publishes one record in full passes otherwise",
        )
    return privacy.delta


def _with_selection_noise(plan: PrivacyPlan) -> PrivacyPlan:
    """ε₀, or σ of the Gaussian releases, such that selection alone costs (1−r)·ε."""
    target = (1 - plan.privacy.split) * plan.privacy.epsilon
    picks = plan.selection.mechanism == "exponential"

    def candidate(value: float) -> PrivacyPlan:
        return replace(plan, epsilon0=value) if picks else replace(plan, sigma_selection=value)

    def cost_of(value: float) -> float:
        proposed = candidate(value)
        return proposed._phase_bound(SELECTION, [proposed.selection_event()] * plan.shape.rounds).epsilon

    start = target / math.sqrt(plan.shape.rounds) if picks else 4 * math.sqrt(plan.shape.rounds) / target
    return candidate(calibrate(cost_of, target, start=start, rising=picks))


def _calibrate_validation(plan: PrivacyPlan) -> float:
    """σ_v such that V's releases cost (ε, δ), or the user's own if it fits."""
    count = plan.shape.rounds * validation_releases(plan.selection, plan.shape.k)

    def cost_of(sigma: float, accountant: str = plan.privacy.accountant) -> float:
        return epsilon_bound([gaussian(sigma, count)], plan.delta, accountant).epsilon

    given = plan.privacy.validation_noise
    if given is None:
        return _calibrate_noise(cost_of, plan.privacy.epsilon)
    if cost_of(given) > plan.privacy.epsilon:
        raise ConfigError(
            "privacy.validation_noise",
            given,
            f"{count} releases of the validation gradient would cost ε = {cost_of(given):.3g} on V; raise it",
        )
    return given


def _calibrate_training(plan: PrivacyPlan) -> float:
    """σ such that the total on D meets the budget."""
    basic = plan.privacy.composition == "basic" and plan.shape.rounds > 0
    target = plan.privacy.epsilon * (plan.privacy.split if basic else 1.0)
    delta = plan._phase_delta(TRAINING)

    def cost_of(sigma: float, accountant: str = plan.privacy.accountant) -> float:
        entries = replace(plan, sigma=sigma).entries()
        events = [e.event for e in entries if e.dataset == TRAINING_DATA and not (basic and e.phase == SELECTION)]
        return epsilon_bound(events, delta, accountant).epsilon

    return _calibrate_noise(cost_of, target)


def _calibrate_noise(cost_of: Callable[..., float], target: float) -> float:
    """Start from RDP's answer, which is cheap, then let the accountant of the run decide."""
    try:
        start = calibrate(lambda sigma: cost_of(sigma, "rdp"), target, start=2.0, rising=False)
    except AccountingError:
        start = 2.0
    return calibrate(cost_of, target, start=start, rising=False)
