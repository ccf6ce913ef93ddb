"""The plan of a private tuning: a random number of trials, one of them kept, within one (ε, δ) on D and one on V.

Formal guarantees
-----------------
Unit and relation: one record of D or of V, zero-out, as for a run. Released, to everybody who gets the result: that of
the *best* trial, which is its model with everything that its run releases, its settings and its noisy score. Not
released: the number of trials, and anything about the others.

A trial draws its settings from public laws, trains by DP-SGD as any run does, and releases its score: how many records
of V its model gets right, or for another metric the counts from which it follows (`evaluation.released`), with Gaussian
noise (sensitivity 1: a null record is no hit and is in no cell). Its divergence for a record of
D is that of its run's events on D: given the model the score does not read D. For a record of V it is that of its
run's events on V and of the score's. Each side is then one `accounting.RepeatAndSelect` event (the proof is there),
charged to the tuning's ledger before the first trial begins. The maximum of both sides holds for D ∪ V, as for a run.

Settings that change the schedule (epochs, batch size, fraction) change the events. Their noise is calibrated so that
at both orders of the theorem, λ and λ̂, and at those of an account, the trial's divergence is at most that of the
config's own (`fit`); nothing else depends on the settings that were drawn. At other orders it may be larger, so the
event that is charged carries the orders that were compared (`RepeatAndSelect.orders`) and promises nothing beyond what
follows from them, whatever it is composed with.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cords_dp.accounting import (
    LAWS,
    TRAINING_DATA,
    VALIDATION_DATA,
    Account,
    Bound,
    Entry,
    Event,
    RenyiFilter,
    RepeatAndSelect,
    TrialLaw,
    calibrate,
    epsilon_bound,
    gaussian,
    renyi,
    renyi_order,
)
from cords_dp.config.settings import PrivacySettings
from cords_dp.config.values import number, one_of
from cords_dp.errors import AccountingError, ConfigError
from cords_dp.evaluation.metrics import LOWER_IS_BETTER, names
from cords_dp.planning.build import validation_events
from cords_dp.planning.mechanism import Release
from cords_dp.planning.plan import PrivacyPlan
from cords_dp.training.run import Run

TUNING = "tuning"  # the phase of its charges
ACCURACY = "accuracy"
_SCORE_SHARE = 0.25  # of V's zero-concentrated budget, where selections read V too
# A plan spends its own budget to within half a per cent, so a search by it cannot be finer; a divergence moves more.
_LOWEST, _LOWEST_SHARE = 0.98, 0.9

PlanWith = Callable[[PrivacySettings], PrivacyPlan]  # a config's plan at another budget
Limit = Callable[[Sequence[Event]], float]  # what a trial's events on one side cost


@dataclass(frozen=True)
class TuningPlan:
    """The limits and the cost of a tuning: public, and fixed before data is read.

    privacy: the budget of the whole. trial: the plan of one trial at the config's own settings. score_noise: of the
    score on V; None where V is declared public. orders: at which an account will ask; compared besides λ and λ̂. metric:
    by which trials are compared.
    """

    privacy: PrivacySettings
    trial: PrivacyPlan
    law: TrialLaw
    score_noise: float | None
    orders: tuple[float, ...] = ()
    metric: str = ACCURACY

    @property
    def delta(self) -> float:
        return self.trial.delta

    @property
    def fingerprint(self) -> str:
        """Binds a tuning's ledger and draws to what it may do; as `PrivacyPlan.fingerprint`."""
        law = [self.law.mean, self.law.shape]
        facts: dict[str, Any] = {"trial": self.trial.facts(), "law": law, "score_noise": self.score_noise}
        facts |= {"orders": self.orders, "epsilon": self.privacy.epsilon}
        if self.metric != ACCURACY:  # of which such facts always spoke
            facts["metric"] = self.metric
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]

    def score_release(self) -> Release:
        """Return what a trial reads of V to be compared with the others."""
        event = None if self.score_noise is None else gaussian(self.score_noise)
        words = "1 (records of V that the model gets right)"
        if self.metric != ACCURACY:
            words = "1 (all blocks of a record of V together: confusion matrix, score histograms, gaps, loss, errors)"
        return Release("score", VALIDATION_DATA, event, 1.0, words)

    def trial_events(self, dataset: str) -> tuple[Event, ...]:
        """List what one trial charges to D or to V."""
        score = self.score_release().event if dataset == VALIDATION_DATA else None
        return (*_events(self.trial, dataset), *([score] if score else []))

    def entries(self) -> tuple[Entry, ...]:
        """List what the tuning charges, once."""
        sides = [side for side in (TRAINING_DATA, VALIDATION_DATA) if self.trial_events(side)]
        return tuple(Entry(side, TUNING, replace(self._event(side), orders=self._orders(side))) for side in sides)

    def _event(self, dataset: str) -> RepeatAndSelect:
        """Return the event of the tuning on one side, if every trial had the config's own settings."""
        return RepeatAndSelect(self.trial_events(dataset), self.law.mean, self.law.shape)

    def bound(self, dataset: str) -> Bound | None:
        """Return (ε, δ) of the whole tuning on one side; None where nothing is charged."""
        events = [entry.event for entry in self.entries() if entry.dataset == dataset]
        return epsilon_bound(events, self.delta, "rdp") if events else None

    @property
    def epsilon(self) -> float:
        bounds = (self.bound(TRAINING_DATA), self.bound(VALIDATION_DATA))
        return max(bound.epsilon for bound in bounds if bound is not None)

    def fit(self, plan_with: PlanWith) -> PrivacySettings:
        """Return the ``privacy`` section of a trial with other settings, whose plans ``plan_with`` makes.

        Formal guarantee: at the orders of the event that is charged (`entries`), on each side, its events have at most
        the divergences of `trial_events`.
        """
        start = self.trial.privacy
        own = plan_with(start)
        if _same_events(own, self.trial):
            return start
        if own.validation_is_read and not self.trial.validation_is_read:
            raise ConfigError("--search", own.shape.strategy, "reads V in a trial although the config itself does not")
        # without a noise of its own on V: the fit chooses one
        settings = _fitted(
            replace(start, validation_noise=None),
            plan_with,
            self._share(TRAINING_DATA),
            self._share(VALIDATION_DATA),
            target=1.0,
            start=start.epsilon,
            lowest=_LOWEST_SHARE,
        )
        plan = plan_with(settings)
        for side in (TRAINING_DATA, VALIDATION_DATA):
            if self._share(side)(_events(plan, side)) > 1:
                raise AccountingError(f"a trial would cost more on {side} than the tuning pays for")
        return settings

    def _share(self, dataset: str) -> Limit:
        """Return the largest ratio of a run's divergences on one side to those that the tuning pays for."""
        paid = self.trial_events(dataset)
        score = paid[-1:] if dataset == VALIDATION_DATA and self.score_noise is not None else ()
        if not paid:
            return lambda events: math.inf if events else 0.0
        allowed = {order: renyi(paid, order) for order in self._orders(dataset)}
        return lambda events: max(renyi((*events, *score), order) / most for order, most in allowed.items())

    def _orders(self, dataset: str) -> tuple[float, ...]:
        """Return the orders at which trials are compared: λ, where the divergence becomes ε, λ̂, and an account's."""
        event = self._event(dataset)
        return renyi_order([event], self.delta), event.second_order, *self.orders


def build_tuning_plan(
    privacy: PrivacySettings,
    plan_with: PlanWith,
    law: TrialLaw,
    orders: Sequence[float] = (),
    metric: str = ACCURACY,
) -> TuningPlan:
    """Calibrate the noise of a trial, and of its score, so that the whole tuning meets ``privacy``'s (ε, δ)."""
    _check(privacy)
    base = replace(privacy, accountant="rdp", account=None, train_on_validation=False, head_start=0)
    draft = plan_with(base)
    _check_validation(draft)

    def total(events: Sequence[Event]) -> float:
        return epsilon_bound([RepeatAndSelect(tuple(events), law.mean, law.shape)], draft.delta, "rdp").epsilon

    score: float | None = None
    if privacy.validation == "private":
        score = calibrate(lambda sigma: total([gaussian(sigma)]), privacy.epsilon, start=4.0, rising=False)
        if draft.validation_is_read:
            score /= math.sqrt(_SCORE_SHARE)

    def on_validation(events: Sequence[Event]) -> float:
        return total([*events, *([gaussian(score)] if score else [])])

    settings = _fitted(base, plan_with, total, on_validation, target=privacy.epsilon, start=0.5 * privacy.epsilon)
    return TuningPlan(privacy, plan_with(settings), law, score, tuple(orders), metric)


def _fitted(
    privacy: PrivacySettings,
    plan_with: PlanWith,
    on_training: Limit,
    on_validation: Limit,
    *,
    target: float,
    start: float,
    lowest: float = _LOWEST,
) -> PrivacySettings:
    """Return the budget of a single run, and its noise on V, at which it costs ``target`` on either side."""

    def at(epsilon: float) -> PrivacyPlan:
        return plan_with(replace(privacy, epsilon=epsilon))

    def cost_of(epsilon: float) -> float:
        return on_training(_events(at(epsilon), TRAINING_DATA))

    epsilon = calibrate(cost_of, target, start=start, rising=True, lowest=lowest)
    fitted, plan = replace(privacy, epsilon=epsilon), at(epsilon)
    if plan.sigma_validation is None:
        return fitted
    sigma = calibrate(
        lambda value: on_validation(validation_events(plan, value)),
        target,
        start=2 * plan.sigma_validation,
        rising=False,
        lowest=lowest,
    )
    return replace(fitted, validation_noise=max(sigma, plan.sigma_validation))


def _events(plan: PrivacyPlan, dataset: str) -> tuple[Event, ...]:
    return tuple(entry.event for entry in plan.entries() if entry.dataset == dataset)


def _same_events(one: PrivacyPlan, other: PrivacyPlan) -> bool:
    return one.entries() == other.entries()


def _check(privacy: PrivacySettings) -> None:
    for key, value, advice in (
        ("epsilon", privacy.noiseless, "a tuning needs a budget: give a number"),
        ("reproducible_noise", privacy.reproducible_noise, "a tuning with noise from the seed protects nobody"),
        ("exact_metrics", privacy.exact_metrics, "exact metrics of trials would tell more than the tuning pays for"),
        ("validation_noise", privacy.validation_noise is not None, "is calibrated for the whole tuning; remove it"),
        ("records_per_owner", privacy.unit == "owner", "trials are scored by records, and the unit is an owner"),
    ):
        if value:
            raise ConfigError(f"privacy.{key}", getattr(privacy, key), advice)


def _check_validation(plan: PrivacyPlan) -> None:
    n = plan.shape.n_validation
    if n < 1:
        fix = "trials are compared on a validation set: leave the key out (a tenth), or give a share above 0"
        raise ConfigError("dataset.validation_fraction", 0, fix)
    if plan.privacy.validation == "private" and plan.delta >= 1 / n:
        raise ConfigError("privacy.delta", plan.delta, f"must be below 1/|V| = {1 / n:.3g}: the score reads V")


# --- from a config to its plan ---------------------------------------------------------------------------


def read_law(trials: float, law: str | float) -> TrialLaw:
    mean = number("--trials", trials, low=1, high=10_000)
    if isinstance(law, str) and law in LAWS:
        return TrialLaw(mean, LAWS[law])
    try:
        shape = float(law)
    except ValueError:
        raise ConfigError("--law", law, f"must be {', '.join(LAWS)} or the shape of the law, a number") from None
    return TrialLaw(mean, number("--law", shape, low=0, high=100, low_included=True))


def read_metric(metric: str | None, *, regression: bool) -> str:
    """Return the metric by which trials are compared; accuracy where none is named, of a regression rmse."""
    return one_of("--metric", metric or ("rmse" if regression else ACCURACY), names(regression=regression))


def goodness(score: float, metric: str) -> float:
    """Return what the best trial has most of; a score that is lost in the noise counts as the worst."""
    return -math.inf if math.isnan(score) else -score if metric in LOWER_IS_BETTER else score


def tuning_plan_of(run: Run, sizes: tuple[int, ...], law: TrialLaw, metric: str = ACCURACY) -> TuningPlan:
    assert run.privacy is not None
    orders: tuple[int, ...] = ()
    if run.privacy.account is not None:
        account = Account.read(Path(run.privacy.account).expanduser())
        orders = RenyiFilter(account.epsilon, account.delta).orders
    try:
        return build_tuning_plan(run.privacy, planner(run, sizes), law, orders, metric)
    except AccountingError as error:
        why = f"no noise meets this budget for a tuning: {error}"
        raise ConfigError("privacy.epsilon", run.privacy.epsilon, why) from error


def planner(run: Run, sizes: tuple[int, ...]) -> PlanWith:
    """Return this run's plan at another budget; what else its ``privacy`` section says stays."""
    assert run.privacy is not None
    own = run.privacy

    def plan_with(privacy: PrivacySettings) -> PrivacyPlan:
        changed = replace(
            own,
            epsilon=privacy.epsilon,
            accountant=privacy.accountant,
            validation_noise=privacy.validation_noise,
            account=None,
        )
        plan = replace(run, privacy=changed).plan(*sizes)
        assert plan is not None
        return plan

    return plan_with
