"""What a budget buys, without running anything: noise, steps, cost over epochs, and the price of each way to select.

The plan itself is the run's own, by its accountant. What is only compared with it (other ways of selecting, the curve
of ε) comes from the rough accountant: an upper bound too, within a per cent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, Event, epsilon_bound
from cords_dp.accounting.composition import ROUGH
from cords_dp.config.settings import PrivacySettings, SubsetSettings
from cords_dp.errors import CordsDPError
from cords_dp.planning.calibrate import build_plan, price_of_selection
from cords_dp.planning.mechanism import Mechanism, registered_mechanisms
from cords_dp.planning.plan import PrivacyPlan
from cords_dp.planning.schedule import SELECTION
from cords_dp.planning.statement import price_sentence

_POINTS = 8  # of the curve of ε: each is a composition of its own


class PlannedRun(Protocol):
    """What a budget needs of a resolved config."""

    @property
    def privacy(self) -> PrivacySettings | None: ...
    @property
    def subset(self) -> SubsetSettings: ...
    @property
    def epochs(self) -> int: ...
    def plan(self, n: int, n_validation: int) -> PrivacyPlan | None: ...


@dataclass(frozen=True)
class Question:
    """A budget without a config: GLISTERDP with ``mechanism``, or FullDP where there is none."""

    privacy: PrivacySettings
    subset: SubsetSettings
    mechanism: Mechanism | None
    epochs: int
    batch_size: int | None = None

    def plan(self, n: int, n_validation: int) -> PrivacyPlan:
        return build_plan(
            "GLISTERDP" if self.mechanism else "FullDP",
            self.privacy,
            self.subset,
            self.mechanism,
            epochs=self.epochs,
            batch_size=self.batch_size,
            n=n,
            n_validation=n_validation,
            uses_all=self.mechanism is None,
        )


@dataclass(frozen=True)
class Alternative:
    """One way of selecting at the same budget, batches and epochs. Noise multipliers by the rough accountant.

    ``noise``: the mechanism's own parameter, named by ``symbol``. ``price``: training noise over that of FullDP with
    as many gradients, less 1. ``problem``: why there is no plan.
    """

    label: str
    symbol: str | None = None
    noise: float | None = None
    epsilon_selection: float = 0.0
    rate: float = 0.0
    sigma: float = 0.0
    epsilon: float = 0.0
    price: float = 0.0
    problem: str | None = None


@dataclass(frozen=True)
class Budget:
    """What one plan costs and what else the same ε would buy. Public values only.

    curve: (epoch, ε on D, ε on V) after some of the epochs. price: of the releases of selection alone, on the same
    steps.
    """

    plan: PrivacyPlan
    price: float
    price_words: str
    curve: tuple[tuple[int, float, float], ...]
    alternatives: tuple[Alternative, ...]


def budget_of(run: PlannedRun, n: int, n_validation: int) -> Budget | str:
    """The budget of a private run with noise; a sentence where there is none to plan."""
    plan = run.plan(n, n_validation)
    if plan is None:
        return "This strategy is not private: there is no budget to plan."
    if plan.noiseless:
        return "privacy.epsilon = inf: clipping and noise are off, nothing is charged."
    selects = plan.mechanism is not None and plan.shape.rounds > 0
    return Budget(
        plan=plan,
        price=price_of_selection(plan),
        price_words=price_sentence(plan),
        curve=tuple(_curve(plan)),
        alternatives=tuple(_alternatives(run, plan)) if selects else (),
    )


def _curve(plan: PrivacyPlan) -> Iterator[tuple[int, float, float]]:
    total = len(plan.shape.epochs)
    stops = sorted({max(1, round(total * i / _POINTS)) for i in range(1, _POINTS + 1)})
    for stop in stops:
        part = replace(plan, shape=replace(plan.shape, epochs=plan.shape.epochs[:stop]))
        entries = part.entries()
        on = {side: [e.event for e in entries if e.dataset == side] for side in (TRAINING_DATA, VALIDATION_DATA)}
        yield stop, _rough(on[TRAINING_DATA], plan.delta), _rough(on[VALIDATION_DATA], plan.delta)


def _rough(events: list[Event], delta: float) -> float:
    return epsilon_bound(events, delta, ROUGH).epsilon


def _alternatives(run: PlannedRun, base: PrivacyPlan) -> Iterator[Alternative]:
    shape = base.shape
    sizes: dict[str, Any] = {
        "epochs": run.epochs,
        "batch_size": shape.batch_size,
        "n": shape.n,
        "n_validation": shape.n_validation,
        "preparation": base.preparation,
    }
    rough = replace(base.privacy, accountant=ROUGH)
    plain = replace(rough, selection_composition=None)
    equal_compute = replace(run.subset, compute_fraction=run.subset.fraction, secret_subset=False)
    full = build_plan("FullDP", plain, equal_compute, uses_all=True, **sizes)
    for kind in registered_mechanisms():
        for label, own, changes in kind.variants():
            privacy = replace(rough, **changes)
            try:
                plan = build_plan(shape.strategy, privacy, run.subset, _like(base.mechanism, kind, own), **sizes)
            except CordsDPError as error:
                yield Alternative(label, problem=str(error))
                continue
            yield _alternative(label, plan, full)
    yield _alternative("RandomDP (no selection)", build_plan("RandomDP", plain, run.subset, **sizes), full)
    yield _alternative("FullDP at equal compute", full, full)


def _like(given: Mechanism | None, kind: type[Mechanism], changes: dict) -> Mechanism:
    """A mechanism of another kind with the keys that both have."""
    shared = {f.name: getattr(given, f.name) for f in fields(given) if f.name in kind.own_keys()} if given else {}
    return kind(**{**shared, **changes})


def _alternative(label: str, plan: PrivacyPlan, full: PrivacyPlan) -> Alternative:
    selecting = [e.event for e in plan.entries() if e.phase == SELECTION]
    return Alternative(
        label=label,
        symbol=plan.mechanism.noise_symbol if plan.mechanism else None,
        noise=plan.selection_noise,
        epsilon_selection=plan.phase_bound(SELECTION, selecting).epsilon if selecting else 0.0,
        rate=plan.shape.rate,
        sigma=plan.sigma,
        epsilon=plan.cost().training_data.epsilon,
        price=plan.sigma / full.sigma - 1,
    )
