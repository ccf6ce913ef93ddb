"""Making a plan: the schedule, what is refused, and the noise that meets the budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from cords_dp.accounting import TRAINING_DATA, calibrate, epsilon_bound, gaussian
from cords_dp.config import PrivacySettings, SelectionSettings
from cords_dp.errors import AccountingError, ConfigError
from cords_dp.plan import (
    SELECTION,
    TRAINING,
    EpochPlan,
    PrivacyPlan,
    Shape,
    before_amplification,
    selection_composition,
    validation_releases,
)


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
            due = selects and (epoch - 1) % selection.select_every == 0
            first = selects and epoch == select_after + 1
            if selects and selection.mechanism == "match":
                # It looks at the records once, before training on them; every step then draws from all of D.
                rate = min(batch / k, _concentration(selection, n, k) * batch / n)
                schedule.append(EpochPlan("own", math.ceil(k / batch), rate, first))
            else:
                schedule.append(EpochPlan("own", math.ceil(k / batch), batch / k, due and epoch > 1))
    return tuple(schedule)


def _concentration(selection: SelectionSettings, n: int, k: int) -> float:
    return (n / k) ** (1 / 3) if selection.concentration is None else selection.concentration


def price_of_selection(plan: PrivacyPlan, *, rate: float | None = None) -> float:
    """By how much the training noise exceeds that of the same steps without selection: 0.01 is one per cent.

    ``rate``: at which those steps would sample, where selection changes that too (`match`). Both plans by RDP, which is
    quick.
    """
    if plan.noiseless or not plan.shape.rounds:
        return 0.0

    def sigma(epochs: tuple[EpochPlan, ...]) -> float:
        shape = replace(plan.shape, epochs=epochs)
        return _calibrate_training(replace(plan, shape=shape, privacy=replace(plan.privacy, accountant="rdp")))

    without = tuple(
        replace(epoch, selects=False, rate=epoch.rate if rate is None or epoch.pool != "own" else rate)
        for epoch in plan.shape.epochs
    )
    return sigma(plan.shape.epochs) / sigma(without) - 1


def planned_batch_size(pool: int, k: int) -> int:
    """The batch for k gradients an epoch, drawn from a pool of records: large, because that suits noisy steps.

    A power of two that is at most 4096 and a fifth of the pool. Where an epoch uses only part of the pool, it has at
    least two steps, of equal size, so that it takes its k gradients and not more.
    """
    batch = int(min(4096, 2 ** math.floor(math.log2(max(1.0, pool / 5)))))
    return batch if k >= pool else math.ceil(k / max(2, math.ceil(k / batch)))


def _planned_batch(selection: SelectionSettings, *, n: int, k: int, whole: bool, selects: bool) -> int:
    if whole:
        return planned_batch_size(n, math.ceil(selection.compute_fraction * n))
    return planned_batch_size(n if selects and selection.mechanism == "match" else k, k)


@lru_cache(maxsize=256)
def build_plan(
    strategy: str,
    privacy: PrivacySettings,
    selection: SelectionSettings,
    *,
    epochs: int,
    batch_size: int | None,
    n: int,
    n_validation: int,
    whole: bool,
    selects: bool,
) -> PrivacyPlan:
    """Fix the schedule and calibrate the noise so that the total meets (ε, δ)."""
    k = n if whole else int(n * selection.fraction)
    if batch_size is None:
        batch_size = _planned_batch(selection, n=n, k=k, whole=whole, selects=selects)
    if batch_size > k:
        raise ConfigError(
            "dataloader.batch_size", batch_size, f"larger than the {k} records to train on; use at most {k}"
        )
    if selects:
        _refuse_unproved(privacy, selection, k)
    if selection.secret_subset and (strategy != "RandomDP" or selection.kappa):
        raise ConfigError(
            "dss_args.secret_subset", True, "amplifies a run that trains on one uniform subset only: RandomDP, kappa=0"
        )
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


def _refuse_unproved(privacy: PrivacySettings, selection: SelectionSettings, k: int) -> None:
    if k < 1:
        raise ConfigError("dss_args.fraction", selection.fraction, "selects no record at all; raise it")
    if selection.mechanism == "match" and (selection.score != "glister" or selection.selection_type == "PerClass"):
        raise ConfigError(
            "dss_args.mechanism",
            "match",
            "matches gradients and class shares by itself; for another score or per-class quotas use 'threshold'",
        )
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
    target = (1 - plan.split) * plan.privacy.epsilon
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
    target = before_amplification(plan.privacy.epsilon, plan.inclusion) * (plan.split if basic else 1.0)
    delta = plan._phase_delta(TRAINING) / plan.inclusion

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
