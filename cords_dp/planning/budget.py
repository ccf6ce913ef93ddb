"""Computes what a budget buys, without running anything: noise, steps, cost over epochs, the price of selecting.

The plan itself is the run's own, by its accountant. What is only compared with it (other ways of selecting, the curve
of ε) comes from the rough accountant: an upper bound too, within a per cent. A budget is rendered as text for readers
and as JSON for programs.

`advise` answers which strategy, which share of the records and how many epochs, by a rule that is checked against what
was measured:

1. **Strategy.** Where training and validation data are known to be alike, FullDP: selection cannot gain. Otherwise, or
   where that is unknown, GLISTERDP with ``align``: where they are alike after all it draws uniformly and costs a per
   cent or two of noise; where classes are cut or labels wrong it gains points.
2. **Share k.** As many gradients an epoch as the compute allows, up to half of the records where records are selected
   (nothing above was measured). Accuracy grows with k or stays.
3. **Epochs.** Forty, or as many as the compute allows: from five to forty, accuracy rose with every doubling at every ε
   that was tried (1, 3, 8; docs/results/epochs-mnist.csv), for noise grows with no more than the root of the steps.

``python benchmarks/advice.py`` says in how many of the measured settings (docs/results/*.csv) the rule's choice comes
within half a point of the best measured one; `tests/planning/test_advice.py` holds it to that. The rule was written
with these tables in view: that is a fit, not a forecast for other data.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, Event, epsilon_bound
from cords_dp.accounting.composition import ROUGH
from cords_dp.config.keys import KEYS
from cords_dp.config.settings import PrivacySettings, SubsetSettings
from cords_dp.config.values import check_keys
from cords_dp.errors import CordsDPError
from cords_dp.planning.build import build_plan, price_of_selection
from cords_dp.planning.mechanism import Mechanism, read_mechanism, registered_mechanisms
from cords_dp.planning.plan import PrivacyPlan
from cords_dp.planning.schedule import SELECTION
from cords_dp.planning.statement import group_rows, group_words, price_sentence

_POINTS = 8  # of the curve of ε: each is a composition of its own


class PlannedRun(Protocol):
    """The part of a resolved config that a budget needs."""

    @property
    def privacy(self) -> PrivacySettings | None: ...
    @property
    def subset(self) -> SubsetSettings: ...
    @property
    def epochs(self) -> int: ...
    def plan(self, n: int, n_validation: int, n_test: int = 0) -> PrivacyPlan | None: ...


@dataclass(frozen=True)
class Question:
    """A budget without a config: GLISTERDP with ``mechanism``, or FullDP where there is none."""

    privacy: PrivacySettings
    subset: SubsetSettings
    mechanism: Mechanism | None
    epochs: int
    batch_size: int | None = None

    def plan(self, n: int, n_validation: int, n_test: int = 0) -> PrivacyPlan:
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
            n_test=n_test,
        )


def question(
    *,
    epsilon: float,
    delta: float | None,
    share: float,
    mechanism: str | None,
    selections: int,
    epochs: int,
    batch_size: int | None = None,
) -> Question:
    """Ask for a budget in numbers, which are checked as those of a config are. ``selections``: in all epochs."""
    check_keys("privacy", {"epsilon": epsilon, "delta": delta}, KEYS["privacy"])
    privacy = PrivacySettings(epsilon=epsilon, delta=delta)
    if mechanism is None:
        return Question(privacy, SubsetSettings(compute_fraction=share), None, epochs, batch_size)
    subset = SubsetSettings(fraction=share, select_every=max(1, -(-epochs // selections)))
    chosen = read_mechanism({"mechanism": mechanism}, privacy, subset)
    return Question(privacy, subset, chosen, epochs, batch_size)


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
    """The cost of one plan, and the alternatives for the same ε. Public values only.

    curve: (epoch, ε on D, ε on V) after some of the epochs. price: of the releases of selection alone, on the same
    steps.
    """

    plan: PrivacyPlan
    price: float
    price_words: str
    curve: tuple[tuple[int, float, float], ...]
    alternatives: tuple[Alternative, ...]


def budget_of(run: PlannedRun, n: int, n_validation: int, n_test: int = 0) -> Budget | str:
    """Return the budget of a private run with noise, or a sentence where there is none to plan."""
    plan = run.plan(n, n_validation, n_test)
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
        if stop < total:
            part = replace(part, sigma_temperature=None)
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
    """Build a mechanism of another kind with the keys that both have."""
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


_LINE = "{:<36} {:>9} {:>9} {:>10} {:>7} {:>11} {:>9} {:>8}"
_COLUMNS = ("way of selecting", "epsilon0", "sigma sel", "eps select", "rate", "sigma train", "eps total", "price")


def text_of(budget: Budget) -> str:
    """Describe the plan of a config and what each way of selecting would cost for it."""
    plan = budget.plan
    lines = [_plan_text(budget), "", _curve_text(budget)]
    if budget.alternatives:
        lines += [
            "",
            f"The same config, batches of {plan.shape.batch_size}, with other ways of selecting (within a per cent).",
            "price: training noise over that of FullDP with as many gradients.",
            "",
            _table(budget.alternatives),
        ]
    return "\n".join(lines)


def json_of(budget: Budget) -> dict[str, Any]:
    plan, shape, cost = budget.plan, budget.plan.shape, budget.plan.cost()
    bounds = {**cost.phases, **{f"total on {side}": bound for side, bound in cost.of_sets.items()}}
    return {
        "strategy": shape.strategy,
        "mechanism": plan.mechanism.name if plan.mechanism else None,
        "n": shape.n,
        "n_validation": shape.n_validation,
        "n_test": shape.n_test,
        "unit": plan.privacy.unit,
        "records_per_owner": plan.privacy.records_per_owner,
        "k": shape.k,
        "batch_size": shape.batch_size,
        "epochs": len(shape.epochs),
        "steps": shape.steps,
        "rate": shape.rate,
        "selections": shape.rounds,
        "epsilon_allowed": plan.privacy.epsilon,
        "epsilon": cost.epsilon,
        "delta": plan.delta,
        "composition": plan.privacy.composition,
        "sigma": plan.sigma,
        "sigma_validation": plan.sigma_validation,
        "sigma_test": plan.sigma_test,
        "sigma_temperature": plan.sigma_temperature,
        "sigma_head_start": plan.sigma_head_start,
        "pace_of_validation": plan.pace,
        "selection_noise": plan.selection_noise,
        "preparation_noise": plan.preparation_noise,
        "branches": [{"concentration": b.concentration, "rate": b.rate, "sigma": b.sigma} for b in plan.branches],
        "bounds": {
            name: {"epsilon": b.epsilon, "delta": b.delta, "accountant": b.accountant} for name, b in bounds.items()
        },
        "several_records_of_one_person": group_rows(plan),
        "price_of_selection": budget.price,
        "curve": [{"epoch": e, "epsilon_on_d": d, "epsilon_on_v": v} for e, d, v in budget.curve],
        "alternatives": [vars(alternative) for alternative in budget.alternatives],
    }


def _plan_text(budget: Budget) -> str:
    plan = budget.plan
    shape, cost = plan.shape, plan.cost()
    rows: list[tuple[str, str]] = [
        ("strategy", shape.strategy),
        (f"{plan.privacy.unit}s", f"n = {shape.n}, validation {shape.n_validation}, k = {shape.k} per epoch"),
        (
            "budget",
            f"epsilon = {plan.privacy.epsilon:g}, delta = {plan.delta:.3g}, {plan.privacy.composition} composition",
        ),
        ("training", f"{shape.steps_text}, sigma = {plan.sigma:.4f}"),
    ]
    if plan.preparation is not None:
        rows.append(("preparation", f"{plan.preparation.name}, released once, sigma = {plan.preparation_noise:.4f}"))
    if plan.branches:
        options = ", ".join(f"{b.concentration:g}: rate {b.rate:.5f}, sigma {b.sigma:.4f}" for b in plan.branches)
        rows.append(("branches", f"{shape.branched_steps} of these steps at one concentration of {options}"))
    if plan.mechanism is not None and plan.selection_noise is not None:
        rows += plan.mechanism.describe(plan.selection_noise, plan.privacy, shape.sizes, shape.rounds)
    rows += _validation_row(plan)
    if plan.sigma_test is not None:
        rows.append(
            ("test set", f"private, {plan.shape.n_test}, one release of its counts, sigma_t = {plan.sigma_test:.4f}")
        )
    for phase, bound in cost.phases.items():
        rows.append(
            (f"{phase} alone", f"epsilon = {bound.epsilon:.4f}, delta = {bound.delta:.3g} ({bound.accountant})")
        )
    if shape.rounds:
        rows.append(("price", budget.price_words))
    total = cost.training_data
    rows.append(("total on D", f"epsilon = {total.epsilon:.4f}, delta = {total.delta:.3g} ({total.accountant})"))
    others = {side: bound for side, bound in cost.of_sets.items() if side != TRAINING_DATA}
    rows += [(f"total on {side}", f"epsilon = {bound.epsilon:.4f}") for side, bound in others.items()]
    rows.append(("one person", _one_person(plan)))
    width = max(len(name) for name, _ in rows)
    indent = " " * (width + 2)
    return "\n".join(textwrap.fill(f"{name:<{width}}  {value}", 100, subsequent_indent=indent) for name, value in rows)


def _one_person(plan: PrivacyPlan) -> str:
    cap = plan.privacy.records_per_owner
    if cap is not None:
        return f"is one owner: the figures are for all of its records, of which a step uses at most {cap}"
    return group_words(group_rows(plan)).replace("ε", "epsilon")


def _validation_row(plan: PrivacyPlan) -> list[tuple[str, str]]:
    if plan.sigma_validation is not None:
        sigma = plan.sigma_temperature
        last = "" if sigma is None else f"; a temperature is fitted once, sigma = {sigma:.4f}"
        if plan.sigma_head_start is not None:
            last += f"; the first {plan.head_start} steps are on it, sigma = {plan.sigma_head_start:.4f}"
        if plan.pace:
            last += f"; its records come into all other steps, {plan.pace:g} times as often as those of D"
        return [("validation", f"private, sigma_v = {plan.sigma_validation:.4f}{last}")]
    return [("validation", "declared public")] if plan.validation_is_read else []


def _curve_text(budget: Budget) -> str:
    """Describe ε after some of the epochs; V's only where V is charged."""
    on_v = any(v for _, _, v in budget.curve)
    rows = [("epoch", [f"{e:>6}" for e, _, _ in budget.curve])]
    rows.append(("eps on D", [f"{d:>6.2f}" for _, d, _ in budget.curve]))
    if on_v:
        rows.append(("eps on V", [f"{v:>6.2f}" for _, _, v in budget.curve]))
    return "\n".join(f"{name:<9} {' '.join(values)}" for name, values in rows)


def _table(alternatives: tuple[Alternative, ...]) -> str:
    header = _LINE.format(*_COLUMNS)
    return "\n".join([header, "-" * len(header), *map(_line, alternatives)])


def _line(row: Alternative) -> str:
    if row.problem is not None:
        return f"{row.label:<36} {row.problem[:70]}"
    noise = {"epsilon0": "-", "sigma_s": "-"}
    if row.symbol is not None and row.noise is not None:
        noise[row.symbol] = f"{row.noise:.{5 if row.symbol == 'epsilon0' else 2}f}"
    return _LINE.format(
        row.label,
        noise["epsilon0"],
        noise["sigma_s"],
        f"{row.epsilon_selection:.4f}",
        f"{row.rate:.4f}",
        f"{row.sigma:.4f}",
        f"{row.epsilon:.4f}",
        f"{100 * row.price:+.1f} %",
    )


ALIKE, UNKNOWN, DIFFERENT = "alike", "unknown", "different"
SHIFTS = (ALIKE, UNKNOWN, DIFFERENT)
_MOST_SELECTED = 0.5
_EPOCHS = 40


@dataclass(frozen=True)
class Advice:
    """The rule's answer. ``why``: in a sentence."""

    strategy: str
    mechanism: str | None
    share: float
    epochs: int
    why: str

    def text(self) -> str:
        how = f"{self.strategy} with mechanism {self.mechanism}" if self.mechanism else self.strategy
        return f"Advice: {how}, k = {self.share:g} of the records an epoch, {self.epochs} epochs. {self.why}"


def advise(compute: float, shift: str = UNKNOWN) -> Advice:
    """Apply the rule. ``compute``: gradients an epoch that can be afforded, as a share of the records."""
    if shift == ALIKE:
        return Advice("FullDP", None, compute, _EPOCHS, "Where D and V are alike, selection cannot gain.")
    why = "Where D and V differ it gains points; where they are alike it draws uniformly, for a little noise."
    return Advice("GLISTERDP", "align", min(compute, _MOST_SELECTED), _EPOCHS, why)
