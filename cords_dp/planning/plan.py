"""The privacy plan: every rate, noise and count of a run, fixed before data is read.

The plan is the only place where selection, training and accounting meet. Sampler, optimizer, selector and ledger all
take their numbers from it, so they cannot disagree. It holds public values only.

Released by a run, with its model: each DP-SGD step (a Poisson-subsampled Gaussian (q, σ), sensitivity C,
charged to D), what the mechanism's `releases` list, charged to D or to V, what a source fits on D (`preparation`), and
where V is read the first steps, on V itself (`head_start_releases`), and what a temperature is fitted by when the run
ends (`temperature_releases`), charged to V. Where V takes part in the steps, each of them is an event on V as well.

Where the test set T is private: one Gaussian release when the run ends, charged to T (`test_releases`), from which all
numbers follow that the run tells of it. It reads T and the released model. D, V and T have no record in common, so each
record is read by the releases on one of them, and by steps on D and V as an event on its own set, whatever the other's
part of the sum is; all others depend on it through the outputs of these, as post-processing.
The run is therefore DP for zero-out of one record of D ∪ V ∪ T, with the largest ε and δ of the three.

RandomDP and FullDP choose without looking at the data and pay for training only. With ``secret_subset`` RandomDP's
subset is drawn by secret coins, once, and never released: see `amplified`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from typing import Any

from cords_dp.accounting import (
    TEST_DATA,
    TRAINING_DATA,
    VALIDATION_DATA,
    Bound,
    BranchMaximum,
    Entry,
    Event,
    Ledger,
    PoissonGaussian,
    epsilon_bound,
    gaussian,
    group_epsilons,
)
from cords_dp.config.settings import PUBLIC, PrivacySettings, SubsetSettings
from cords_dp.errors import MechanismError
from cords_dp.planning.mechanism import Mechanism, Release, SelectionNoise, declared_releases
from cords_dp.planning.schedule import (
    EVALUATION,
    SELECTION,
    TRAINING,
    VALIDATION,
    Branch,
    EpochPlan,
    Preparation,
    Shape,
)

# Names of releases, and of their files in the archive of released values.
TEST_RELEASE, TEMPERATURE_RELEASE, HEAD_START = "test", "temperature", "head start"
# Keys of ``privacy`` that change how fast a run is, or where files lie, and nothing about what it releases. Of a
# temperature and of a head start the plan has the noise, of V's part in the steps the pace.
_UNPLANNED = frozenset(
    {
        *("grad_sample_mode", "max_physical_batch_size", "account"),
        *("temperature", "head_start", "train_on_validation"),
    }
)


@dataclass(frozen=True)
class PrivacyPlan:
    """The plan of a run and its cost. Frozen, printable, public.

    selection_noise: the calibrated parameter of the mechanism (a noise multiplier, or ε₀ of a pick); None where nothing
        is selected or no noise is added. sigma_validation: the noise multiplier on V, where V is private and read.
    preparation, preparation_noise: what is released of D before training, and its noise multiplier.
    sigma_test: the noise multiplier of the one release on T, where T is private. sigma_temperature: that of the one
        on V by which a temperature is fitted, where V is private and read. head_start, sigma_head_start: the first
        steps, on V, and the noise multiplier of each, where a run takes such. pace: how often a record of V comes into
        a step, as a share of the rate of D's; 0 where V takes no part in the steps.
    """

    shape: Shape
    privacy: PrivacySettings
    subset: SubsetSettings
    mechanism: Mechanism | None
    delta: float
    sigma: float
    selection_noise: float | None = None
    sigma_validation: float | None = None
    branches: tuple[Branch, ...] = ()
    preparation: Preparation | None = None
    preparation_noise: float | None = None
    sigma_test: float | None = None
    sigma_temperature: float | None = None
    head_start: int = 0
    sigma_head_start: float | None = None
    pace: float = 0.0

    @property
    def fingerprint(self) -> str:
        """Binds ledgers, checkpoints and generators to this plan: another budget or schedule is another run."""
        return hashlib.sha256(json.dumps(self.facts(), sort_keys=True).encode()).hexdigest()[:32]

    def facts(self) -> dict[str, Any]:
        """Return what distinguishes this plan from others: public values under names that never change.

        Keys that only concern speed, or where files lie, are left out. A value that a later version adds is left out
        where it has the meaning that plans had before: a ledger can be continued only if its plan is the same.
        """
        shape, mechanism, preparation = self.shape, self.mechanism, self.preparation
        epochs = [[e.pool, e.steps, e.rate, e.selects, e.branched] for e in shape.epochs]
        privacy = {key: value for key, value in asdict(self.privacy).items() if key not in _UNPLANNED}
        if self.privacy.unit == "record":
            del privacy["records_per_owner"]  # such plans knew no other unit
        sizes = {"n": shape.n, "n_validation": shape.n_validation, "k": shape.k, "batch": shape.batch_size}
        tested = {} if self.sigma_test is None else {"sigma_test": self.sigma_test}
        fitted = {} if self.sigma_temperature is None else {"sigma_temperature": self.sigma_temperature}
        sigma = self.sigma_head_start
        started = {} if sigma is None else {"head_start": self.head_start, "sigma_head_start": sigma}
        started |= {"pace": self.pace} if self.pace else {}
        return {
            "strategy": shape.strategy,
            "sizes": {**sizes, "n_test": shape.n_test} if tested else sizes,
            "epochs": [[epoch, len(list(same))] for epoch, same in groupby(epochs)],
            "delta": self.delta,
            "sigma": self.sigma,
            "selection_noise": self.selection_noise,
            "sigma_validation": self.sigma_validation,
            **tested,
            **fitted,
            **started,
            "branches": [[b.concentration, b.rate, b.sigma] for b in self.branches],
            "preparation": preparation and [preparation.name, preparation.sensitivity, self.preparation_noise],
            "mechanism": mechanism and {"name": mechanism.name, "keys": asdict(mechanism)},
            "privacy": privacy,
            "dss_args": asdict(self.subset),
        }

    @property
    def noiseless(self) -> bool:
        return self.privacy.noiseless

    @property
    def split(self) -> float:
        """The share of the budget for training, where selection takes part of it."""
        if self.privacy.split is not None:
            return self.privacy.split
        return self.mechanism.default_split if self.mechanism else 1.0

    @property
    def validation_is_read(self) -> bool:
        return self.mechanism is not None and self.shape.rounds > 0 and self.mechanism.reads_validation

    @property
    def fits_temperature(self) -> bool:
        """Whether a temperature is fitted on V when the run ends: by a charged release, or on a V that is public."""
        free = self.noiseless or self.privacy.validation == PUBLIC
        return self.sigma_temperature is not None or (free and self.privacy.temperature and self.validation_is_read)

    @property
    def concentration(self) -> float:
        """How many times as often as in a uniform draw of the same size a record can come into a batch."""
        return self.shape.rate * self.shape.n / self.shape.batch_size

    @property
    def secret_pool(self) -> bool:
        """Whether the pool is secret state of the training mechanism; else it was paid for or drawn without looking."""
        return self.subset.secret_subset or (self.mechanism is not None and self.mechanism.secret_pool)

    @property
    def inclusion(self) -> float:
        """γ: the chance of a record to be in a secret uniform subset; 1 where no such subset is drawn."""
        return self.shape.k / self.shape.n if self.subset.secret_subset else 1.0

    # -- events -------------------------------------------------------------------------------

    @property
    def branch_count(self) -> int:
        return len(self.branches)

    def step_event(self, epoch: EpochPlan, pace: float = 1.0) -> PoissonGaussian:
        """Return the event of an epoch's steps, if the epoch is not branched: on D, or at V's pace on V."""
        return PoissonGaussian(sigma=self.sigma, rate=pace * epoch.rate, count=epoch.steps)

    def branch_event(self, pace: float = 1.0) -> BranchMaximum:
        """Return the event of all steps of the branched epochs together, whichever branch they take."""
        steps = self.shape.branched_steps
        return BranchMaximum(tuple((PoissonGaussian(b.sigma, pace * b.rate, steps),) for b in self.branches))

    @property
    def paces(self) -> dict[str, float]:
        """How often records of each set come into a step, as a share of the rate of D's; those that take part."""
        return {TRAINING_DATA: 1.0, VALIDATION_DATA: self.pace} if self.pace else {TRAINING_DATA: 1.0}

    def step_entries(self, epoch: EpochPlan) -> tuple[Entry, ...]:
        """List what the steps of an epoch charge; of branched epochs, what those of all of them charge together."""
        phases = {TRAINING_DATA: epoch.phase, VALIDATION_DATA: VALIDATION}
        event = self.branch_event if epoch.branched else partial(self.step_event, epoch)
        return tuple(Entry(dataset, phases[dataset], event(pace)) for dataset, pace in self.paces.items())

    def entries_by_epoch(self) -> Iterator[tuple[EpochPlan, tuple[Entry, ...]]]:
        """Yield each epoch and what is charged with its first step: branched epochs are charged with the first."""
        chosen = False
        for epoch in self.shape.epochs:
            yield epoch, self.step_entries(epoch) if epoch.steps and not (epoch.branched and chosen) else ()
            chosen = chosen or (epoch.branched and epoch.steps > 0)

    def releases(self) -> tuple[Release, ...]:
        """List what one selection releases."""
        if self.mechanism is None or self.noiseless:
            return ()
        if self.selection_noise is None:
            raise MechanismError(f"the plan has no noise for mechanism {self.mechanism.name!r}")
        noise = SelectionNoise(self.selection_noise, self.sigma_validation)
        return declared_releases(self.mechanism, noise, self.privacy, self.shape.sizes)

    def preparation_releases(self) -> tuple[Release, ...]:
        """List what is released of D once, before training; nothing in most runs."""
        what = self.preparation
        if what is None or self.noiseless:
            return ()
        if self.preparation_noise is None:
            raise MechanismError(f"the plan has no noise for {what.name!r}, which is released before training")
        event = gaussian(self.preparation_noise)
        return (Release(what.name, TRAINING_DATA, event, what.sensitivity, what.description, before_training=True),)

    def preparation_entries(self) -> tuple[Entry, ...]:
        return tuple(Entry(r.dataset, r.phase, r.event) for r in self.preparation_releases() if r.event is not None)

    def test_releases(self) -> tuple[Release, ...]:
        """List what is released of T once, of the model that a run ends with; nothing where T is not private."""
        if self.sigma_test is None:
            return ()
        words = "1 (all blocks of a record's part together: confusion matrix, score histograms, gaps, loss)"
        return (Release(TEST_RELEASE, TEST_DATA, gaussian(self.sigma_test), 1.0, words),)

    def head_start_releases(self) -> tuple[Release, ...]:
        """List what is released of V before the first epoch: a clipped sum of gradients for each step."""
        if self.sigma_head_start is None:
            return ()
        clip, event = self.privacy.max_grad_norm, gaussian(self.sigma_head_start, self.head_start)
        words = f"gradients of the first steps; {clip:g} (clip norm)"
        return (Release(HEAD_START, VALIDATION_DATA, event, clip, words),)

    def temperature_releases(self) -> tuple[Release, ...]:
        """List what is released of V once, at the model that a run ends with; free of charge where V is public."""
        if self.noiseless or not self.fits_temperature:
            return ()
        event = None if self.sigma_temperature is None else gaussian(self.sigma_temperature)
        words = "1 (changes of a record's log loss with the temperature)"
        return (Release(TEMPERATURE_RELEASE, VALIDATION_DATA, event, 1.0, words),)

    def selection_entries(self) -> tuple[Entry, ...]:
        """List what one selection charges, on D and on V."""
        return tuple(Entry(r.dataset, r.phase, r.event) for r in self.releases() if r.event is not None)

    def entries(self) -> tuple[Entry, ...]:
        """List everything that the run may charge. The ledger refuses more."""
        if self.noiseless:
            return ()
        selection = self.selection_entries() if self.shape.rounds else ()
        first = [Entry(r.dataset, r.phase, r.event) for r in self.head_start_releases() if r.event is not None]
        entries: list[Entry] = [*self.preparation_entries(), *first]
        for epoch, steps in self.entries_by_epoch():
            entries += (*(selection if epoch.selects else ()), *steps)
        last = (*self.temperature_releases(), *self.test_releases())
        entries += [Entry(r.dataset, r.phase, r.event) for r in last if r.event is not None]
        return tuple(entries)

    # -- cost ---------------------------------------------------------------------------------

    def cost(self, entries: Sequence[Entry] | None = None, *, quick: bool = False) -> Cost:
        """Return (ε, δ) by phase and in total, for the whole plan or for the entries given.

        ``quick``: where the accountant is left open, ask the one that answers soonest. Its bound holds as well.
        """
        if self.noiseless:
            return Cost({}, Bound(math.inf, 0.0, "none"), None)
        entries = self.entries() if entries is None else entries
        phases = {
            phase: self.phase_bound(phase, [e.event for e in entries if e.phase == phase], quick=quick)
            for phase in dict.fromkeys(e.phase for e in entries)
        }
        on_d = [e for e in entries if e.dataset == TRAINING_DATA]
        if self.privacy.composition == "basic":
            total_d = self._basic_total(on_d, quick=quick)
        else:
            total_d = self._bound([e.event for e in on_d], self.delta, quick=quick)
        return Cost(phases, total_d, phases.get(VALIDATION), phases.get(EVALUATION))

    def epsilon_at(self, events: Sequence[Event], delta: float, inclusion: float) -> float:
        """Bound ε of these events together at another δ; ``inclusion``: of their data set (`inclusion`)."""
        return self._bound(events, delta, quick=True, inclusion=inclusion).epsilon

    def spent(self, ledger: Ledger, *, quick: bool = False) -> Cost:
        return self.cost(ledger.entries, quick=quick)

    def group_cost(self) -> dict[int, float]:
        """Bound ε of the whole plan, at its δ, for 2, 4 and 8 records of one person (`accounting.group`).

        Never less than the plan's ε for one record, whose composition (``basic``) may be the looser one.
        """
        if self.noiseless:
            return {}
        both = Counter(e for _, entries in self.entries_by_epoch() for e in entries) if self.pace else Counter[Entry]()

        def on(side: str, entries: Counter[Entry]) -> list[Event]:
            return [e.event for e in entries.elements() if e.dataset == side]

        alone = Counter(self.entries()) - both
        found = group_epsilons(
            on(TRAINING_DATA, alone),
            on(VALIDATION_DATA, alone),
            self.delta,
            on_test=on(TEST_DATA, alone),
            on_both=(on(TRAINING_DATA, both), on(VALIDATION_DATA, both)),
            inclusion=self.inclusion,
        )
        single = self.cost().epsilon
        return {size: max(epsilon, single) for size, epsilon in found.items()}

    def phase_bound(self, phase: str, events: list[Event], *, quick: bool = False) -> Bound:
        """Bound ε of one phase taken alone, at the share of δ that it has."""
        delta = self.phase_delta(phase)
        own = self.mechanism.bound(events, delta, self.privacy) if self.mechanism and phase == SELECTION else None
        if own is None:
            inclusion = 1.0 if phase in (VALIDATION, EVALUATION) else self.inclusion
            return self._bound(events, delta, quick=quick, inclusion=inclusion)
        ours = self._bound(events, delta, quick=quick)
        return own if own.epsilon >= ours.epsilon and own.delta <= delta else ours

    def phase_delta(self, phase: str) -> float:
        if self.privacy.composition != "basic" or not self.shape.rounds or phase in (VALIDATION, EVALUATION):
            return self.delta
        return self.delta * (1 - self.split if phase == SELECTION else self.split)

    def _bound(
        self, events: Sequence[Event], delta: float, *, quick: bool = False, inclusion: float | None = None
    ) -> Bound:
        inclusion = self.inclusion if inclusion is None else inclusion
        accountant = "quick" if quick and self.privacy.accountant == "auto" else self.privacy.accountant
        inside = epsilon_bound(events, delta / inclusion, accountant)
        if inclusion == 1:
            return inside
        name = f"{inside.accountant}, amplified by a secret subset"
        return Bound(amplified(inside.epsilon, inclusion), delta, name)

    def _basic_total(self, entries: list[Entry], *, quick: bool) -> Bound:
        """Add up the ε and the δ of training and of selection (basic composition)."""
        training = [e.event for e in entries if e.phase != SELECTION]
        picking = [e.event for e in entries if e.phase == SELECTION]
        parts = [self.phase_bound(TRAINING, training, quick=quick)] if training else []
        if picking:
            parts.append(self.phase_bound(SELECTION, picking, quick=quick))
        names = " + ".join(dict.fromkeys(p.accountant for p in parts)) or "none"
        return Bound(sum(p.epsilon for p in parts), sum(p.delta for p in parts), names)


@dataclass(frozen=True)
class Cost:
    """(ε, δ) of each phase taken alone, and of D, of V and of T in total (None where V or T is not charged)."""

    phases: dict[str, Bound]
    training_data: Bound
    validation_data: Bound | None
    test_data: Bound | None = None

    @property
    def of_sets(self) -> dict[str, Bound]:
        """The totals by data set, of those that are charged; D's in any case."""
        found = {TRAINING_DATA: self.training_data, VALIDATION_DATA: self.validation_data, TEST_DATA: self.test_data}
        return {name: bound for name, bound in found.items() if bound is not None}

    @property
    def epsilon(self) -> float:
        """ε for zero-out of one record of D ∪ V ∪ T: the maximum, since no record is in two of them."""
        return max(bound.epsilon for bound in self.of_sets.values())

    @property
    def delta(self) -> float:
        return max(bound.delta for bound in self.of_sets.values())

    def __str__(self) -> str:
        alone = ", ".join(f"{phase} {bound.epsilon:.4f}" for phase, bound in self.phases.items())
        return f"epsilon {self.epsilon:.4f} at delta {self.delta:.3g} (phases, taken alone: {alone})"


def amplified(epsilon: float, inclusion: float) -> float:
    """Return ε of a mechanism that runs on a secret subset.

    Formal guarantee: let M be (ε, δ)-DP for zero-out, and let every record enter the subset by its own secret coin of
    probability γ, once for the whole run, the subset never being released. Then M on the subset is
    (ln(1 + γ(e^ε − 1)), γδ)-DP (Li, Qardaji & Su 2012; Balle, Barthe & Gaboardi 2018).
    """
    return math.log1p(inclusion * math.expm1(epsilon))


def before_amplification(epsilon: float, inclusion: float) -> float:
    """Invert `amplified`: return what the mechanism may spend inside the subset."""
    return math.log1p(math.expm1(epsilon) / inclusion)
