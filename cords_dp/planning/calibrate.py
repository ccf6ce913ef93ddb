"""Making a plan: the schedule, what is refused, and the noise that meets the budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from cords_dp.accounting import (
    TRAINING_DATA,
    VALIDATION_DATA,
    Event,
    PoissonGaussian,
    calibrate,
    epsilon_bound,
    gaussian,
    rough_epsilon,
)
from cords_dp.config.settings import PrivacySettings, SubsetSettings
from cords_dp.errors import AccountingError, ConfigError
from cords_dp.planning.mechanism import Mechanism, SelectionNoise, declared_releases
from cords_dp.planning.plan import PrivacyPlan, before_amplification
from cords_dp.planning.preparation import PREPARATION, Preparation
from cords_dp.planning.schedule import (
    SELECTION,
    TRAINING,
    Branch,
    EpochPlan,
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
) -> PrivacyPlan:
    """Fix the schedule and calibrate the noise so that the total meets (ε, δ).

    ``mechanism``: of a strategy that selects. ``uses_all``: the strategy trains on all of D. ``batch_size`` None lets
    the plan choose. ``preparation``: what is released of D before training.
    """
    sizes = _sizes(subset, mechanism, batch_size, n, n_validation, uses_all=uses_all)
    if subset.secret_subset and (strategy != "RandomDP" or subset.kappa):
        raise ConfigError(
            "dss_args.secret_subset", True, "amplifies a run that trains on one uniform subset only: RandomDP, kappa=0"
        )
    if subset.secret_subset and preparation is not None:
        raise ConfigError(
            "dss_args.secret_subset", True, f"does not amplify {preparation.name!r}, which all records take part in"
        )
    if mechanism is not None:
        mechanism.check(privacy, subset)
        schedule = mechanism.schedule(sizes, subset, epochs)
    else:
        schedule = (whole_schedule if uses_all else subset_schedule)(sizes, subset, epochs)
    shape = Shape(strategy, sizes, schedule)
    delta = _delta(privacy, shape)
    if privacy.noiseless:
        return PrivacyPlan(shape, privacy, subset, mechanism, delta, sigma=0.0, preparation=preparation)
    plan = PrivacyPlan(shape, privacy, subset, mechanism, delta, sigma=1.0, preparation=preparation)
    if preparation is not None:
        plan = replace(plan, preparation_noise=_calibrate_preparation(plan, preparation))
    if shape.rounds:
        if privacy.validation == "private" and plan.validation_is_read:
            plan = replace(plan, sigma_validation=_calibrate_validation(plan))
        plan = replace(plan, selection_noise=_calibrate_selection(plan))
    concentrations = mechanism.concentrations(sizes) if mechanism is not None and shape.branched_steps else ()
    if concentrations:
        return _with_branches(plan, concentrations)
    return replace(plan, sigma=_calibrate_training(plan))


def _with_branches(plan: PrivacyPlan, concentrations: tuple[float, ...]) -> PrivacyPlan:
    """Noise for each branch: in the proportions that each alone would need, and together as much as the choice costs.

    The proportions need not be exact; what the whole costs is for the run's accountant to say.
    """
    sizes = plan.shape.sizes
    rates = [min(1.0, c * sizes.batch_size / sizes.n) for c in concentrations]
    alone = [_alone(plan, rates[0])]
    for rate in rates[1:]:
        alone.append(_alone(plan, rate, first=alone[0], start=alone[-1]))

    def scaled(sigma: float) -> PrivacyPlan:
        factor = sigma / alone[0]
        branches = tuple(
            Branch(c, rate, factor * own) for c, rate, own in zip(concentrations, rates, alone, strict=True)
        )
        return replace(plan, sigma=sigma, branches=branches)

    def cost_of(sigma: float, accountant: str = plan.privacy.accountant) -> float:
        events = [e.event for e in scaled(sigma).entries() if e.dataset == TRAINING_DATA]
        return epsilon_bound(events, plan.delta, accountant).epsilon

    return scaled(calibrate(cost_of, plan.privacy.epsilon, start=1.012 * alone[0], rising=False))


def _alone(plan: PrivacyPlan, rate: float, *, first: float | None = None, start: float = 2.0) -> float:
    """σ of one branch if there were no choice; ``first``: of the steps before the choice, by default the same."""
    before = [plan.step_event(epoch) for epoch in plan.shape.epochs if epoch.steps and not epoch.branched]
    rounds = plan.shape.rounds
    selection = [e.event for e in plan.selection_entries() if e.dataset == TRAINING_DATA] * rounds
    selection += [e.event for e in plan.preparation_entries()]

    def cost_of(sigma: float) -> float:
        branch = PoissonGaussian(sigma, rate, plan.shape.branched_steps)
        earlier = [replace(event, sigma=sigma if first is None else first) for event in before]
        events = [*selection, *earlier, branch]
        return (rough_epsilon if plan.privacy.accountant != "rdp" else _rdp_epsilon)(events, plan.delta)

    return calibrate(cost_of, plan.privacy.epsilon, start=start, rising=False)


def _rdp_epsilon(events: Sequence[Event], delta: float) -> float:
    return epsilon_bound(events, delta, "rdp").epsilon


def _at_rate(plan: PrivacyPlan, rate: float) -> PrivacyPlan:
    """The plan with all branched steps at one rate, as if there were no choice."""
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
    if batch_size is None:
        pool = n if uses_all else mechanism.draws_from(n, k) if mechanism else k
        wanted = math.ceil(subset.compute_fraction * n) if uses_all else k
        batch_size = planned_batch_size(pool, wanted)
    if batch_size > k:
        raise ConfigError(
            "dataloader.batch_size", batch_size, f"larger than the {k} records to train on; use at most {k}"
        )
    return Sizes(n, n_validation, k, batch_size)


def price_of_selection(plan: PrivacyPlan, *, rate: float | None = None) -> float:
    """By how much the training noise exceeds that of the same steps without selection: 0.01 is one per cent.

    ``rate``: at which those steps would sample, where selection changes that too. Both plans by RDP, which is quick.
    """
    if plan.noiseless or not plan.shape.rounds:
        return 0.0
    if plan.branches:  # of the first branch, which is that of a uniform draw; only this accountant knows the choice's
        plain = _at_rate(replace(plan, branches=()), plan.branches[0].rate if rate is None else rate)
        epochs = tuple(replace(epoch, selects=False) for epoch in plain.shape.epochs)
        return plan.sigma / _calibrate_training(replace(plain, shape=replace(plain.shape, epochs=epochs))) - 1

    def sigma(epochs: tuple[EpochPlan, ...]) -> float:
        shape = replace(plan.shape, epochs=epochs)
        return _calibrate_training(replace(plan, shape=shape, privacy=replace(plan.privacy, accountant="rdp")))

    without = tuple(
        replace(epoch, selects=False, rate=epoch.rate if rate is None or epoch.pool != "own" else rate)
        for epoch in plan.shape.epochs
    )
    return sigma(plan.shape.epochs) / sigma(without) - 1


def _delta(privacy: PrivacySettings, shape: Shape) -> float:
    largest = max(shape.n, shape.n_validation if privacy.validation == "private" and shape.rounds else 0)
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
    """The noise multiplier at which the release before training costs its share of ε by itself."""
    target = preparation.share * plan.privacy.epsilon

    def cost_of(sigma: float) -> float:
        return plan.phase_bound(PREPARATION, [gaussian(sigma)]).epsilon

    return calibrate(cost_of, target, start=4 / target, rising=False)


def _calibrate_selection(plan: PrivacyPlan) -> float:
    """The mechanism's parameter at which selection alone costs (1 − split)·ε."""
    mechanism, rounds = plan.mechanism, plan.shape.rounds
    assert mechanism is not None
    target = (1 - plan.split) * plan.privacy.epsilon

    def cost_of(value: float) -> float:
        noise = SelectionNoise(value, plan.sigma_validation)
        releases = declared_releases(mechanism, noise, plan.privacy, plan.shape.sizes)
        events = [r.event for r in releases if r.event is not None and r.dataset == TRAINING_DATA]
        return plan.phase_bound(SELECTION, events * rounds).epsilon

    start = target / math.sqrt(rounds) if mechanism.cost_rises else 4 * math.sqrt(rounds) / target
    return calibrate(cost_of, target, start=start, rising=mechanism.cost_rises)


def _calibrate_validation(plan: PrivacyPlan) -> float:
    """σ_v such that V's releases cost (ε, δ), or the user's own if it fits."""

    def cost_of(sigma: float, accountant: str = plan.privacy.accountant) -> float:
        return epsilon_bound(validation_events(plan, sigma), plan.delta, accountant).epsilon

    given = plan.privacy.validation_noise
    if given is None:
        return _calibrate_noise(cost_of, plan.privacy.epsilon)
    if cost_of(given) > plan.privacy.epsilon:
        count = sum(event.count for event in validation_events(plan, given))
        raise ConfigError(
            "privacy.validation_noise",
            given,
            f"{count} releases on the validation set would cost ε = {cost_of(given):.3g} on V; raise it",
        )
    return given


def validation_events(plan: PrivacyPlan, sigma: float) -> list[Event]:
    """What all selections of a run would charge to V at this noise multiplier."""
    assert plan.mechanism is not None
    releases = plan.mechanism.releases(SelectionNoise(1.0, sigma), plan.privacy, plan.shape.sizes)
    on_v = [r.event for r in releases if r.dataset == VALIDATION_DATA and r.event is not None]
    return on_v * plan.shape.rounds


def _calibrate_training(plan: PrivacyPlan) -> float:
    """σ such that the total on D meets the budget."""
    basic = plan.privacy.composition == "basic" and plan.shape.rounds > 0
    target = before_amplification(plan.privacy.epsilon, plan.inclusion) * (plan.split if basic else 1.0)
    delta = plan.phase_delta(TRAINING) / plan.inclusion

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
