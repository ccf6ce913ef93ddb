"""Builds a plan: lays out the schedule, refuses what has no proof, and finds the noise that meets the budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

from cords_dp.accounting import (
    TRAINING_DATA,
    VALIDATION_DATA,
    Event,
    PoissonGaussian,
    calibrate,
    epsilon_bound,
    gaussian,
)
from cords_dp.accounting.composition import GLANCE, ROUGH
from cords_dp.accounting.events import merge
from cords_dp.config.settings import AUTO, HEAD_START, PACE, PrivacySettings, SubsetSettings
from cords_dp.errors import AccountingError, ConfigError, MechanismError
from cords_dp.planning import noise_cache
from cords_dp.planning.mechanism import Mechanism, SelectionNoise, declared_releases, registered_mechanisms
from cords_dp.planning.plan import PrivacyPlan, before_amplification
from cords_dp.planning.schedule import (
    PREPARATION,
    SELECTION,
    TRAINING,
    Branch,
    EpochPlan,
    Preparation,
    Shape,
    Sizes,
    planned_batch_size,
    subset_schedule,
    whole_schedule,
)


@lru_cache(maxsize=256)
def build_plan(
    strategy: str,
    privacy: PrivacySettings,
    subset: SubsetSettings,
    mechanism: Mechanism | None = None,
    *,
    epochs: int,
    batch_size: int | None,
    n: int,
    n_validation: int,
    uses_all: bool = False,
    preparation: Preparation | None = None,
    n_test: int = 0,
) -> PrivacyPlan:
    """Fix the schedule and calibrate the noise so that the total meets (ε, δ).

    ``mechanism``: of a strategy that selects. ``uses_all``: the strategy trains on all of D. ``batch_size`` None lets
    the plan choose. ``preparation``: what is released of D before training. ``n_test``: of T, where it is private.
    """
    sizes = replace(_sizes(subset, mechanism, batch_size, n, n_validation, uses_all=uses_all), n_test=n_test)
    if subset.secret_subset and (strategy != "RandomDP" or subset.kappa):
        raise ConfigError(
            "dss_args.secret_subset", True, "amplifies a run that trains on one uniform subset only: RandomDP, kappa=0"
        )
    if subset.secret_subset and preparation is not None:
        raise ConfigError(
            "dss_args.secret_subset", True, f"does not amplify {preparation.name!r}, which all records take part in"
        )
    if privacy.unit == "owner":
        refuse_without_owners(privacy, subset, mechanism)
    if mechanism is not None:
        mechanism.check(privacy, subset)
        # built anew: a subclass could be charged at one rate and drawn at another
        schedule = tuple(
            EpochPlan(e.pool, e.steps, e.rate, e.selects, e.branched) for e in mechanism.schedule(sizes, subset, epochs)
        )
    else:
        schedule = (whole_schedule if uses_all else subset_schedule)(sizes, subset, epochs)
    shape = Shape(strategy, sizes, schedule)
    delta = _delta(privacy, shape)
    if privacy.noiseless:
        return PrivacyPlan(shape, privacy, subset, mechanism, delta, sigma=0.0, preparation=preparation)
    plan = PrivacyPlan(shape, privacy, subset, mechanism, delta, sigma=1.0, preparation=preparation)
    if n_test:
        plan = replace(plan, sigma_test=_calibrate_test(plan))
    if preparation is not None:
        plan = replace(plan, preparation_noise=_calibrate_preparation(plan, preparation))
    reads = bool(shape.rounds) and privacy.validation == "private" and plan.validation_is_read
    if shape.rounds:
        plan = replace(plan, sigma_validation=1.0 if reads else None)  # until it is known: D needs it not
        plan = replace(plan, selection_noise=_calibrate_selection(plan))
    concentrations = mechanism.concentrations(sizes) if mechanism is not None and shape.branched_steps else ()
    if concentrations:
        plan = _with_branches(plan, concentrations)
    else:
        plan = replace(plan, sigma=_calibrate_training(plan))
    if not reads:
        return plan
    whole = _with_validation(plan)
    if training_events(whole) != training_events(plan):
        name = mechanism.name if mechanism is not None else strategy
        raise MechanismError(f"mechanism {name!r}: what it charges to D must not depend on the noise on V")
    return whole


def refuse_without_owners(privacy: PrivacySettings, subset: SubsetSettings, mechanism: Mechanism | None) -> None:
    """Refuse what is proved for records only, where the unit is an owner."""
    if mechanism is not None and not mechanism.counts_owners:
        others = ", ".join(repr(m.name) for m in registered_mechanisms() if m.counts_owners)
        raise ConfigError(
            "dss_args.mechanism",
            mechanism.name,
            f"is proved for single records, and here the unit is an owner (dataset.owner); use one of {others}",
        )
    if privacy.augmentations > 1:
        fix = "views are averaged within a record; with owners (dataset.owner) leave it at 1"
        raise ConfigError("privacy.augmentations", privacy.augmentations, fix)
    if subset.publish_subset:
        fix = "which records an owner has is private; with owners (dataset.owner) leave it out"
        raise ConfigError("dss_args.publish_subset", True, fix)


def _with_branches(plan: PrivacyPlan, concentrations: tuple[float, ...]) -> PrivacyPlan:
    """Calibrate the noise of each branch: in the proportions that each alone would need, scaled to pay for the choice.

    The proportions need not be exact; what the whole costs is for the run's accountant to say.
    """
    sizes = plan.shape.sizes
    rates = [min(1.0, c * sizes.batch_size / sizes.n) for c in concentrations]
    alone = [_alone(plan, rates[0])]
    for lower, rate in pairwise(rates):  # noise grows with something between the root of the rate and the rate
        alone.append(_alone(plan, rate, first=alone[0], start=alone[-1] * (rate / lower) ** 0.65))

    def scaled(sigma: float) -> PrivacyPlan:
        factor = sigma / alone[0]
        branches = tuple(
            Branch(c, rate, factor * own) for c, rate, own in zip(concentrations, rates, alone, strict=True)
        )
        return replace(plan, sigma=sigma, branches=branches)

    def cost_of(sigma: float, accountant: str) -> float:
        return epsilon_bound(training_events(scaled(sigma)), plan.delta, accountant).epsilon

    problem = ("branches", _besides_steps(plan), rates, plan.shape.epochs, plan.delta)
    return scaled(_calibrated(plan, problem, cost_of, plan.privacy.epsilon, start=1.012 * alone[0]))


def _alone(plan: PrivacyPlan, rate: float, *, first: float | None = None, start: float = 2.0) -> float:
    """Return σ of one branch if there were no choice. ``first``: of the steps before the choice, by default σ."""
    before = [plan.step_event(epoch) for epoch in plan.shape.epochs if epoch.steps and not epoch.branched]
    other = _besides_steps(plan)
    accountant = "rdp" if plan.privacy.accountant == "rdp" else ROUGH

    def cost_of(sigma: float) -> float:
        branch = PoissonGaussian(sigma, rate, plan.shape.branched_steps)
        earlier = [replace(event, sigma=sigma if first is None else first) for event in before]
        return epsilon_bound([*other, *earlier, branch], plan.delta, accountant).epsilon

    return calibrate(cost_of, plan.privacy.epsilon, start=start, rising=False)


def _at_rate(plan: PrivacyPlan, rate: float) -> PrivacyPlan:
    """Return the plan with all branched steps at one rate, as if there were no choice."""
    epochs = tuple(
        replace(epoch, rate=rate, branched=False) if epoch.branched else epoch for epoch in plan.shape.epochs
    )
    return replace(plan, shape=replace(plan.shape, epochs=epochs))


def _sizes(
    subset: SubsetSettings,
    mechanism: Mechanism | None,
    batch_size: int | None,
    n: int,
    n_validation: int,
    *,
    uses_all: bool,
) -> Sizes:
    k = n if uses_all else int(n * subset.fraction)
    if k < 1:
        raise ConfigError("dss_args.fraction", subset.fraction, "selects no record at all; raise it")
    pool = n if uses_all else mechanism.draws_from(n, k) if mechanism else k
    if batch_size is None:
        wanted = math.ceil(subset.compute_fraction * n) if uses_all else k
        batch_size = planned_batch_size(pool, wanted)
    if batch_size > pool:
        raise ConfigError(
            "dataloader.batch_size", batch_size, f"larger than the {pool} records to train on; use at most {pool}"
        )
    return Sizes(n, n_validation, k, batch_size)


def price_of_selection(plan: PrivacyPlan, *, rate: float | None = None) -> float:
    """Return by how much the training noise exceeds that of the same steps without selection: 0.01 is one per cent.

    ``rate``: at which those steps would sample, where selection changes that too; of branches, the first, which is that
    of a uniform draw. Both by the rough accountant, to a ten-thousandth, so that a price of half a per cent means it.
    """
    if plan.noiseless or not plan.shape.rounds:
        return 0.0
    plan = replace(plan, privacy=replace(plan.privacy, accountant=ROUGH))
    plain = _without_selection(plan, rate)
    if plan.branches:  # their proportions are fixed: without selection, as much as they cost together
        target = epsilon_bound(training_events(plan), plan.delta, ROUGH).epsilon
        return plan.sigma / _training_noise(plain, target) - 1
    return _training_noise(plan) / _training_noise(plain) - 1


def _without_selection(plan: PrivacyPlan, rate: float | None) -> PrivacyPlan:
    if plan.branches:
        rate = plan.branches[0].rate if rate is None else rate
        plan = _at_rate(replace(plan, branches=()), rate)
    epochs = tuple(
        replace(epoch, selects=False, rate=epoch.rate if rate is None or epoch.pool != "own" else rate)
        for epoch in plan.shape.epochs
    )
    return replace(plan, shape=replace(plan.shape, epochs=epochs))


def _delta(privacy: PrivacySettings, shape: Shape) -> float:
    read = shape.n_validation if privacy.validation == "private" and shape.rounds else 0
    largest = max(shape.n, read, shape.n_test)
    if privacy.delta is None:
        return min(1e-5, 0.1 / largest)  # n·δ, the records that might be lost whole, is at most a tenth
    if privacy.delta >= 1 / largest:
        raise ConfigError(
            "privacy.delta",
            privacy.delta,
            f"must be below 1/n = {1 / largest:.3g}: a mechanism that publishes one record in full passes otherwise",
        )
    return privacy.delta


def _calibrate_preparation(plan: PrivacyPlan, preparation: Preparation) -> float:
    """Find the noise multiplier at which the release before training costs its share of ε by itself."""
    target = preparation.share * plan.privacy.epsilon

    def cost_of(sigma: float, accountant: str) -> float:
        return _by(plan, accountant).phase_bound(PREPARATION, [gaussian(sigma)]).epsilon

    problem = ("preparation", plan.phase_delta(PREPARATION), plan.inclusion)
    return _calibrated(plan, problem, cost_of, target, start=4 / target)


def _calibrate_test(plan: PrivacyPlan) -> float:
    """Find the noise multiplier at which the one release on T costs (ε, δ)."""

    def cost_of(sigma: float, accountant: str) -> float:
        return epsilon_bound([gaussian(sigma)], plan.delta, accountant).epsilon

    target = plan.privacy.epsilon
    return _calibrated(plan, ("test", plan.delta), cost_of, target, start=4 / target)


def _calibrate_selection(plan: PrivacyPlan) -> float:
    """Find the mechanism's parameter at which selection alone costs (1 − split)·ε."""
    mechanism, rounds = plan.mechanism, plan.shape.rounds
    assert mechanism is not None
    target = (1 - plan.split) * plan.privacy.epsilon

    def events(value: float) -> list[Event]:
        noise = SelectionNoise(value, plan.sigma_validation)
        releases = declared_releases(mechanism, noise, plan.privacy, plan.shape.sizes)
        return [r.event for r in releases if r.event is not None and r.dataset == TRAINING_DATA] * rounds

    def cost_of(value: float, accountant: str) -> float:
        return _by(plan, accountant).phase_bound(SELECTION, events(value)).epsilon

    start = target / math.sqrt(rounds) if mechanism.cost_rises else 4 * math.sqrt(rounds) / target
    problem = ("selection", mechanism, merge(events(start)), plan.privacy, plan.phase_delta(SELECTION))
    return _calibrated(plan, problem, cost_of, target, start=start, rising=mechanism.cost_rises)


def _with_validation(plan: PrivacyPlan) -> PrivacyPlan:
    """Calibrate all that a run releases of V, whose part in the steps follows from the noise that D needs.

    Few records give no direction to first steps: without a number, there are none then.
    """
    steps = plan.privacy.head_start
    plan = replace(plan, head_start=HEAD_START if steps == AUTO else int(steps), pace=_pace(plan))
    sigma = _calibrate_validation(plan)
    first = _head_start_noise(plan, sigma)
    if steps == AUTO and first is not None and plan.shape.n_validation < _ENOUGH * first:
        plan, first = replace(plan, head_start=0), None
        sigma = _calibrate_validation(plan)
    return replace(
        plan,
        sigma_validation=sigma,
        sigma_temperature=_temperature_noise(plan, sigma),
        sigma_head_start=first,
    )


def _calibrate_validation(plan: PrivacyPlan) -> float:
    """Find σ_v at which V's releases cost (ε, δ), or take the user's own if it fits."""

    def cost_of(sigma: float, accountant: str = plan.privacy.accountant) -> float:
        return epsilon_bound(validation_events(plan, sigma), plan.delta, accountant).epsilon

    given = plan.privacy.validation_noise
    if given is None:
        problem = ("validation", merge(validation_events(plan, 1.0)), plan.delta)
        return _calibrated(plan, problem, cost_of, plan.privacy.epsilon)
    if cost_of(given) > plan.privacy.epsilon:
        count = sum(event.count for event in validation_events(plan, given))
        fix = f"{count} releases on the validation set would cost ε = {cost_of(given):.3g} on V; raise it"
        raise ConfigError("privacy.validation_noise", given, fix)
    return given


_PACES = (PACE, 0.75, 0.5)
_FOR_STEPS = 0.97  # of ε on V: what its part in the steps may cost by itself
_LESS_FOR_TEMPERATURE = 10
_ENOUGH = 100  # records of V to a deviation of a step's noise, from which on its sum says where to go


def validation_events(plan: PrivacyPlan, sigma: float) -> list[Event]:
    """List what a run would charge to V at this noise multiplier of its selections; the steps' own follow from it."""
    first, last = _head_start_noise(plan, sigma), _temperature_noise(plan, sigma)
    once = [] if first is None else [gaussian(first, plan.head_start)]
    once += [] if last is None else [gaussian(last)]
    return [*_selections_on_validation(plan, sigma), *once, *_steps_on_validation(plan)]


def _steps_on_validation(plan: PrivacyPlan) -> list[Event]:
    """List what V's part in the steps is charged, by the noise that D needs."""
    entries = (entry for _, steps in plan.entries_by_epoch() for entry in steps)
    return [entry.event for entry in entries if entry.dataset == VALIDATION_DATA]


def _pace(plan: PrivacyPlan) -> float:
    """Return the highest pace at which V's part in the steps leaves something of its ε for the rest.

    Where the noise of the rest is given: at which all of it fits.
    """
    given = plan.privacy.validation_noise
    if not plan.privacy.train_on_validation:
        return 0.0
    for pace in _PACES:
        paced = replace(plan, pace=pace)
        events = _steps_on_validation(paced) if given is None else validation_events(paced, given)
        accountant, room = (ROUGH, _FOR_STEPS) if given is None else (plan.privacy.accountant, 1.0)
        if epsilon_bound(events, plan.delta, accountant).epsilon <= room * plan.privacy.epsilon:
            return pace
    return 0.0


def _temperature_noise(plan: PrivacyPlan, sigma: float) -> float | None:
    """Return the noise multiplier of a temperature's fit: it costs a tenth of what all selections cost on V.

    Costs add up like squares, so the selections' own noise on V grows by five per cent.
    """
    if not plan.privacy.temperature:
        return None
    uses = sum(event.count for event in _selections_on_validation(plan, sigma))
    return sigma * math.sqrt(_LESS_FOR_TEMPERATURE / uses)


def _head_start_noise(plan: PrivacyPlan, sigma: float) -> float | None:
    """Return the noise multiplier of a step on V alone: all of them cost as much as all selections do on V."""
    if not plan.head_start:
        return None
    uses = sum(event.count for event in _selections_on_validation(plan, sigma))
    return sigma * math.sqrt(plan.head_start / uses)


def _selections_on_validation(plan: PrivacyPlan, sigma: float) -> list[Event]:
    assert plan.mechanism is not None
    releases = plan.mechanism.releases(SelectionNoise(1.0, sigma), plan.privacy, plan.shape.sizes)
    on_v = [r.event for r in releases if r.dataset == VALIDATION_DATA and r.event is not None]
    return on_v * plan.shape.rounds


def _calibrate_training(plan: PrivacyPlan) -> float:
    """Find σ at which the total on D meets the budget."""
    problem = ("training", merge(_charged_with_training(plan)), _training_delta(plan))
    return _calibrated(plan, problem, _training_cost(plan), _training_target(plan))


def _training_noise(plan: PrivacyPlan, target: float | None = None) -> float:
    """Find σ by the plan's accountant to a ten-thousandth of ε: to compare plans by, not for runs."""
    cost_of, aim = _training_cost(plan), _training_target(plan) if target is None else target
    return calibrate(lambda sigma: cost_of(sigma, plan.privacy.accountant), aim, start=2.0, rising=False, lowest=0.9999)


def _training_cost(plan: PrivacyPlan) -> Callable[[float, str], float]:
    delta = _training_delta(plan)

    def cost_of(sigma: float, accountant: str) -> float:
        return epsilon_bound(_charged_with_training(replace(plan, sigma=sigma)), delta, accountant).epsilon

    return cost_of


def _training_target(plan: PrivacyPlan) -> float:
    return before_amplification(plan.privacy.epsilon, plan.inclusion) * (plan.split if _apart(plan) else 1.0)


def _training_delta(plan: PrivacyPlan) -> float:
    return plan.phase_delta(TRAINING) / plan.inclusion


def _charged_with_training(plan: PrivacyPlan) -> list[Event]:
    """List what shares a budget with the steps: everything on D, except selections with a budget of their own."""
    entries = [e for e in plan.entries() if e.dataset == TRAINING_DATA]
    return [e.event for e in entries if not (_apart(plan) and e.phase == SELECTION)]


def _apart(plan: PrivacyPlan) -> bool:
    return plan.privacy.composition == "basic" and plan.shape.rounds > 0


def _by(plan: PrivacyPlan, accountant: str) -> PrivacyPlan:
    return replace(plan, privacy=replace(plan.privacy, accountant=accountant))


# --- the search ------------------------------------------------------------------------------------------

# ε by the rough accountant at which the search by the run's own begins: prv adds a quarter of a per cent to be safe.
_ROUGH_AIM, _ROUGH_LOWEST = 0.9968, 0.9992
_FAR = 20.0  # times the target: noise that a glance puts this far off would cost an accountant much memory


def _calibrated(
    plan: PrivacyPlan,
    problem: tuple[Any, ...],
    cost_of: Callable[[float, str], float],
    target: float,
    *,
    start: float = 2.0,
    rising: bool = False,
) -> float:
    """Find the noise at which the run's accountant finds [0.995, 1]·target, from wherever the search begins.

    It begins at the cached answer to the same ``problem`` (`noise_cache`, which is never trusted), or at that of the
    rough accountant, which takes a hundredth of the time.
    """
    accountant = plan.privacy.accountant
    name = noise_cache.digest(problem, accountant, target, rising)
    first = noise_cache.remembered(name)
    if first is not None and not cost_of(first, GLANCE) < _FAR * target:
        first = None
    if first is None:
        first = _rough_start(cost_of, target, accountant, start=start, rising=rising)
    found = calibrate(lambda value: cost_of(value, accountant), target, start=first, rising=rising)
    noise_cache.remember(name, found)
    return found


def _rough_start(
    cost_of: Callable[[float, str], float], target: float, accountant: str, *, start: float, rising: bool
) -> float:
    if accountant in (ROUGH, "rdp"):
        return start
    try:
        return calibrate(
            lambda value: cost_of(value, ROUGH),
            _ROUGH_AIM * target,
            start=start,
            rising=rising,
            lowest=_ROUGH_LOWEST,
        )
    except AccountingError:
        return start


def _besides_steps(plan: PrivacyPlan) -> list[Event]:
    selection = [e.event for e in plan.selection_entries() if e.dataset == TRAINING_DATA]
    return [*selection * plan.shape.rounds, *(e.event for e in plan.preparation_entries())]


def training_events(plan: PrivacyPlan) -> list[Event]:
    """List everything that the run charges to D."""
    return [entry.event for entry in plan.entries() if entry.dataset == TRAINING_DATA]
