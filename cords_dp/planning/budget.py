"""What a config's budget buys, as a table, without running anything."""

from __future__ import annotations

import textwrap
from dataclasses import fields, replace
from typing import Any, Protocol

from cords_dp.config.settings import PrivacySettings, SubsetSettings
from cords_dp.errors import CordsDPError
from cords_dp.planning.calibrate import build_plan
from cords_dp.planning.mechanism import Mechanism, registered_mechanisms
from cords_dp.planning.plan import PrivacyPlan
from cords_dp.planning.statement import price_sentence


class PlannedRun(Protocol):
    """What the table needs of a resolved config."""

    @property
    def privacy(self) -> PrivacySettings | None: ...
    @property
    def subset(self) -> SubsetSettings: ...
    @property
    def epochs(self) -> int: ...
    def plan(self, n: int, n_validation: int) -> PrivacyPlan | None: ...


def budget_text(run: PlannedRun, n: int, n_validation: int) -> str:
    """The plan of a config and what each way of selecting would cost for the same config."""
    plan = run.plan(n, n_validation)
    if plan is None:
        return "This strategy is not private: there is no budget to plan."
    if plan.noiseless:
        return "privacy.epsilon = inf: clipping and noise are off, nothing is charged."
    lines = [_plan_text(plan), ""]
    if plan.mechanism is not None and plan.shape.rounds:
        lines += [
            f"The same config, batches of {plan.shape.batch_size}, with other ways of selecting:",
            "",
            _alternatives(run, plan),
        ]
    return "\n".join(lines)


def _plan_text(plan: PrivacyPlan) -> str:
    shape, cost = plan.shape, plan.cost()
    rows: list[tuple[str, str]] = [
        ("strategy", shape.strategy),
        ("records", f"n = {shape.n}, validation {shape.n_validation}, k = {shape.k} per epoch"),
        (
            "budget",
            f"epsilon = {plan.privacy.epsilon:g}, delta = {plan.delta:.3g}, {plan.privacy.composition} composition",
        ),
        ("training", f"{shape.steps_in_words}, sigma = {plan.sigma:.4f}"),
    ]
    if plan.preparation is not None:
        rows.append(("preparation", f"{plan.preparation.name}, released once, sigma = {plan.preparation_noise:.4f}"))
    if plan.branches:
        options = ", ".join(f"{b.concentration:g}: rate {b.rate:.5f}, sigma {b.sigma:.4f}" for b in plan.branches)
        rows.append(("branches", f"{shape.branched_steps} of these steps at one concentration of {options}"))
    if plan.mechanism is not None and plan.selection_noise is not None:
        rows += plan.mechanism.in_words(plan.selection_noise, plan.privacy, shape.sizes, shape.rounds)
    if plan.sigma_validation is not None:
        rows.append(("validation", f"private, sigma_v = {plan.sigma_validation:.4f}"))
    elif plan.validation_is_read:
        rows.append(("validation", "declared public"))
    for phase, bound in cost.phases.items():
        rows.append(
            (f"{phase} alone", f"epsilon = {bound.epsilon:.4f}, delta = {bound.delta:.3g} ({bound.accountant})")
        )
    if shape.rounds:
        rows.append(("price", price_sentence(plan)))
    total = cost.training_data
    rows.append(("total on D", f"epsilon = {total.epsilon:.4f}, delta = {total.delta:.3g} ({total.accountant})"))
    if cost.validation_data is not None:
        rows.append(("total on V", f"epsilon = {cost.validation_data.epsilon:.4f}"))
    width = max(len(name) for name, _ in rows)
    indent = " " * (width + 2)
    return "\n".join(textwrap.fill(f"{name:<{width}}  {value}", 100, subsequent_indent=indent) for name, value in rows)


_LINE = "{:<36} {:>9} {:>9} {:>10} {:>9} {:>11} {:>9}"
_COLUMNS = ("way of selecting", "epsilon0", "sigma sel", "eps select", "rate", "sigma train", "eps total")


def _alternatives(run: PlannedRun, base: PrivacyPlan) -> str:
    header = _LINE.format(*_COLUMNS)
    lines = [header, "-" * len(header)]
    shape = base.shape
    sizes: dict[str, Any] = {
        "epochs": run.epochs,
        "batch_size": shape.batch_size,
        "n": shape.n,
        "n_validation": shape.n_validation,
        "preparation": base.preparation,
    }
    for kind in registered_mechanisms():
        for label, own, changes in kind.variants():
            privacy = replace(base.privacy, **changes)
            try:
                plan = build_plan(shape.strategy, privacy, run.subset, _like(base.mechanism, kind, own), **sizes)
            except CordsDPError as error:
                lines.append(f"{label:<36} {str(error)[:60]}")
                continue
            lines.append(_line(label, plan))
    equal_compute = replace(run.subset, compute_fraction=run.subset.fraction)
    plain = replace(base.privacy, selection_composition=None)
    lines.append(_line("RandomDP (no selection)", build_plan("RandomDP", plain, run.subset, **sizes)))
    lines.append(_line("FullDP at equal compute", build_plan("FullDP", plain, equal_compute, uses_all=True, **sizes)))
    return "\n".join(lines)


def _like(given: Mechanism | None, kind: type[Mechanism], changes: dict) -> Mechanism:
    """A mechanism of another kind with the keys that both have."""
    shared = {f.name: getattr(given, f.name) for f in fields(given) if f.name in kind.own_keys()} if given else {}
    return kind(**{**shared, **changes})


def _line(label: str, plan: PrivacyPlan) -> str:
    cost = plan.cost()
    noise = {"epsilon0": "-", "sigma_s": "-"}
    if plan.mechanism is not None and plan.selection_noise is not None:
        digits = 5 if plan.mechanism.cost_rises else 2
        noise[plan.mechanism.noise_symbol] = f"{plan.selection_noise:.{digits}f}"
    selecting = cost.phases["selection"].epsilon if "selection" in cost.phases else 0.0
    return _LINE.format(
        label,
        noise["epsilon0"],
        noise["sigma_s"],
        f"{selecting:.4f}",
        f"{plan.shape.rate:.4f}",
        f"{plan.sigma:.4f}",
        f"{cost.training_data.epsilon:.4f}",
    )
