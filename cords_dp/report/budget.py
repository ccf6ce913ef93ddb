"""What a config's budget buys, as a table, without running anything."""

from __future__ import annotations

import math
import textwrap
from dataclasses import replace
from typing import Any

from cords_dp.errors import CordsDPError
from cords_dp.plan import PrivacyPlan, gaussian_releases
from cords_dp.report.statement import price_sentence
from cords_dp.training.setup import RunSetup


def budget_text(setup: RunSetup, n: int, n_validation: int) -> str:
    """The plan of a config and what each way of selecting would cost for the same config."""
    plan = setup.plan(n, n_validation)
    if plan is None:
        return f"{setup.strategy.name} is not private: there is no budget to plan."
    if plan.noiseless:
        return "privacy.epsilon = inf: clipping and noise are off, nothing is charged."
    lines = [_plan_text(plan), ""]
    if setup.strategy.selects and plan.shape.rounds:
        same_batch = replace(setup, batch_size=plan.shape.batch_size)
        lines += [
            f"The same config, batches of {plan.shape.batch_size}, with other ways of selecting:",
            "",
            _alternatives(same_batch, n, n_validation),
        ]
    return "\n".join(lines)


def _plan_text(plan: PrivacyPlan) -> str:
    shape, cost = plan.shape, plan.cost()
    rows: list[tuple[str, str]] = [
        ("strategy", shape.strategy),
        ("records", f"n = {shape.n}, validation {shape.n_validation}, k = {shape.k} an epoch"),
        (
            "budget",
            f"epsilon = {plan.privacy.epsilon:g}, delta = {plan.delta:.3g}, {plan.privacy.composition} composition",
        ),
        ("training", f"{shape.steps_in_words}, sigma = {plan.sigma:.4f}"),
    ]
    if plan.sigma_selection is not None:
        releases = shape.rounds * gaussian_releases(plan.selection)
        rows.append(
            (
                "selection",
                f"{shape.rounds} rounds by {plan.selection.mechanism}, {releases} Gaussian releases, "
                f"sigma_s = {plan.sigma_selection:.4f}",
            )
        )
    if plan.epsilon0 is not None:
        picks = shape.rounds * shape.k
        rows.append(
            (
                "selection",
                f"{shape.rounds} rounds of {shape.k} picks = {picks} picks, greedy {plan.selection.greedy}",
            )
        )
        rows.append(("per pick", f"epsilon0 = {plan.epsilon0:.6f}, composed by {plan.selection_composition}"))
        best = plan.epsilon0 * _largest_score_over_sensitivity(plan)
        rows.append(
            (
                "meaning",
                f"the best record is picked at most e^{best:.4f} = {_exp(best):.4f} times as often as the worst",
            )
        )
    if plan.sigma_validation is not None:
        rows.append(("validation", f"private, sigma_v = {plan.sigma_validation:.4f}"))
    elif plan.validation_is_read:
        rows.append(("validation", "declared public"))
    for phase, bound in cost.phases.items():
        rows.append(
            (
                f"{phase} alone",
                f"epsilon = {bound.epsilon:.4f}, delta = {bound.delta:.3g} ({bound.accountant})",
            )
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


def _largest_score_over_sensitivity(plan: PrivacyPlan) -> float:
    """Scores span 2·C_e·C_v; the log-odds of two records differ by at most ε₀·span/2Δ."""
    span = 2 * plan.privacy.selection_clip * plan.privacy.validation_clip
    return span / (2 * plan.score_sensitivity)


def _exp(x: float) -> float:

    return math.exp(x) if x < 50 else math.inf


# label, composition, how picks compose, changes of the selection
_WAYS: tuple[tuple[str, str, str | None, dict[str, Any]], ...] = (
    ("paper: basic, advanced composition", "basic", "paper", {"mechanism": "exponential", "greedy": "RGreedy"}),
    ("basic, bounded range", "basic", "bounded_range", {"mechanism": "exponential", "greedy": "RGreedy"}),
    ("joint, bounded range", "joint", "bounded_range", {"mechanism": "exponential", "greedy": "RGreedy"}),
    ("basic, frozen scores", "basic", "freeze", {"mechanism": "exponential", "greedy": "Frozen"}),
    ("joint, frozen scores", "joint", "freeze", {"mechanism": "exponential", "greedy": "Frozen"}),
    ("joint, top_k", "joint", None, {"mechanism": "top_k"}),
    ("joint, threshold", "joint", None, {"mechanism": "threshold"}),
    ("joint, match", "joint", None, {"mechanism": "match"}),
)


def _alternatives(setup: RunSetup, n: int, n_validation: int) -> str:
    columns = ("way of selecting", "epsilon0", "sigma sel", "eps select", "rate", "sigma train", "eps total")
    header = "{:<36} {:>9} {:>9} {:>10} {:>9} {:>11} {:>9}".format(*columns)
    lines = [header, "-" * len(header)]
    assert setup.privacy is not None
    for label, composition, picks, changes in _WAYS:
        privacy = replace(setup.privacy, composition=composition, selection_composition=picks)
        other = replace(setup, privacy=privacy, selection=replace(setup.selection, **changes))
        try:
            plan = other.plan(n, n_validation)
        except CordsDPError as error:
            lines.append(f"{label:<36} {str(error)[:60]}")
            continue
        assert plan is not None
        cost = plan.cost()
        lines.append(
            f"{label:<36} {_number(plan.epsilon0, 5):>9} {_number(plan.sigma_selection, 2):>9} "
            f"{cost.phases['selection'].epsilon:>10.4f} {plan.shape.rate:>9.4f} {plan.sigma:>11.4f} "
            f"{cost.training_data.epsilon:>9.4f}"
        )
    for label, strategy, selection in (
        ("RandomDP (no selection)", "RandomDP", setup.selection),
        ("FullDP at equal compute", "FullDP", replace(setup.selection, compute_fraction=setup.selection.fraction)),
    ):
        blind = replace(setup.strategy, name=strategy, selects=False, whole=strategy == "FullDP")
        plan = replace(setup, strategy=blind, selection=selection).plan(n, n_validation)
        assert plan is not None
        lines.append(
            f"{label:<36} {'-':>9} {'-':>9} {0.0:>10.4f} {plan.shape.rate:>9.4f} {plan.sigma:>11.4f} "
            f"{plan.cost().training_data.epsilon:>9.4f}"
        )
    return "\n".join(lines)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
