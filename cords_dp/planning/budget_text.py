"""A budget for readers: as text, and as JSON for programs."""

from __future__ import annotations

import textwrap
from typing import Any

from cords_dp.planning.budget import Alternative, Budget, PlannedRun, budget_of
from cords_dp.planning.plan import PrivacyPlan

_LINE = "{:<36} {:>9} {:>9} {:>10} {:>7} {:>11} {:>9} {:>8}"
_COLUMNS = ("way of selecting", "epsilon0", "sigma sel", "eps select", "rate", "sigma train", "eps total", "price")


def budget_text(run: PlannedRun, n: int, n_validation: int) -> str:
    """The plan of a config and what each way of selecting would cost for the same config."""
    budget = budget_of(run, n, n_validation)
    return budget if isinstance(budget, str) else text_of(budget)


def text_of(budget: Budget) -> str:
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
    bounds = {**cost.phases, "total on D": cost.training_data}
    if cost.validation_data is not None:
        bounds["total on V"] = cost.validation_data
    return {
        "strategy": shape.strategy,
        "mechanism": plan.mechanism.name if plan.mechanism else None,
        "n": shape.n,
        "n_validation": shape.n_validation,
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
        "selection_noise": plan.selection_noise,
        "preparation_noise": plan.preparation_noise,
        "branches": [{"concentration": b.concentration, "rate": b.rate, "sigma": b.sigma} for b in plan.branches],
        "bounds": {
            name: {"epsilon": b.epsilon, "delta": b.delta, "accountant": b.accountant} for name, b in bounds.items()
        },
        "price_of_selection": budget.price,
        "curve": [{"epoch": e, "epsilon_on_d": d, "epsilon_on_v": v} for e, d, v in budget.curve],
        "alternatives": [vars(alternative) for alternative in budget.alternatives],
    }


def _plan_text(budget: Budget) -> str:
    plan = budget.plan
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
    rows += _validation_row(plan)
    for phase, bound in cost.phases.items():
        rows.append(
            (f"{phase} alone", f"epsilon = {bound.epsilon:.4f}, delta = {bound.delta:.3g} ({bound.accountant})")
        )
    if shape.rounds:
        rows.append(("price", budget.price_words))
    total = cost.training_data
    rows.append(("total on D", f"epsilon = {total.epsilon:.4f}, delta = {total.delta:.3g} ({total.accountant})"))
    if cost.validation_data is not None:
        rows.append(("total on V", f"epsilon = {cost.validation_data.epsilon:.4f}"))
    width = max(len(name) for name, _ in rows)
    indent = " " * (width + 2)
    return "\n".join(textwrap.fill(f"{name:<{width}}  {value}", 100, subsequent_indent=indent) for name, value in rows)


def _validation_row(plan: PrivacyPlan) -> list[tuple[str, str]]:
    if plan.sigma_validation is not None:
        return [("validation", f"private, sigma_v = {plan.sigma_validation:.4f}")]
    return [("validation", "declared public")] if plan.validation_is_read else []


def _curve_text(budget: Budget) -> str:
    """ε after some of the epochs; V's only where V is charged."""
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
