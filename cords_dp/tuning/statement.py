"""Describes a tuning: its privacy statement, what it costs compared with a single run, and what it has released."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, TrialLaw
from cords_dp.accounting.trade_off import risk_of_bound
from cords_dp.planning.plan import PrivacyPlan
from cords_dp.planning.statement import NOT_COVERED, TEST_METRICS, mechanism_rows
from cords_dp.report.metrics import metric_words, shown_metric
from cords_dp.tuning.plan import ACCURACY, TuningPlan

_NAMES = {0.0: "logarithmic", 1.0: "geometric"}
_NOT_COVERED = (
    "settings that were chosen by other runs or tunings on the same private data",
    "anyone who learns the number of trials, or reads the folder of the trials before it is removed",
    *NOT_COVERED[1:],
)


def describe_law(law: TrialLaw) -> str:
    name = _NAMES.get(law.shape, f"truncated negative binomial of shape {law.shape:g}")
    return f"{name} law with mean {law.mean:g}"


def tuning_report(plan: TuningPlan, single: PrivacyPlan, *, tested: bool = True) -> dict[str, Any]:
    """Collect everything that a tuning's ``privacy.json`` holds. Public values only.

    tested: are exact metrics of a test set shown?
    """
    on_d, on_v = plan.bound(TRAINING_DATA), plan.bound(VALIDATION_DATA)
    assert on_d is not None
    both = " or of the validation set V" if on_v is not None else ""
    return {
        "private": True,
        "statement": (
            f"The best model, its settings and its score are (ε = {plan.epsilon:.4f}, δ = {plan.delta:.3g})-"
            f"differentially private for zero-out of one record of the training set D{both}. This covers all trials "
            "and the choice among them. How many trials there were, and what the others scored, is not released."
        ),
        "epsilon_allowed": plan.privacy.epsilon,
        "epsilon": plan.epsilon,
        "delta": plan.delta,
        "epsilon_training_data": on_d.epsilon,
        "epsilon_validation_data": None if on_v is None else on_v.epsilon,
        "accountant": "rdp, Papernot & Steinke (2022), Theorem 2",
        "trials": describe_law(plan.law),
        "score_noise": plan.score_noise,
        "price": price_of_tuning(plan, single),
        "meaning": risk_of_bound(plan.epsilon, plan.delta).text(),
        "mechanisms_of_a_trial": [*mechanism_rows(plan.trial), *_score_row(plan)],
        "entries": [entry.to_dict() for entry in plan.entries()],
        "not_covered": [item for item in _NOT_COVERED if tested or item != TEST_METRICS],
    }


def tuning_markdown(report: dict[str, Any]) -> str:
    """Render a tuning's ``privacy.md``."""
    on_v = report["epsilon_validation_data"]
    lines = ["# Privacy of a tuning", "", report["statement"], "", "## What was done", ""]
    lines += [
        f"A random number of trials, drawn by the {report['trials']} before data was read and kept secret. Each "
        "drew its settings at random, trained and released its score; the best was kept. At the config's own settings "
        "a trial consists of",
        "",
        "| phase | mechanism | parameters | count |",
        "|---|---|---|---|",
        *(
            f"| {m['phase']} | {m['mechanism']} | {m['parameters']} | {m['count']} |"
            for m in report["mechanisms_of_a_trial"]
        ),
        "",
        "Trials with other settings were given noise under which they cost no more than this one.",
        "",
        "## What it cost",
        "",
        f"- D in total: ε = {report['epsilon_training_data']:.4f}, δ = {report['delta']:.3g}",
        f"- V in total: ε = {on_v:.4f}, δ = {report['delta']:.3g}" if on_v is not None else "- V is declared PUBLIC.",
        f"- Accountant: {report['accountant']}",
        "",
        report["price"],
        "",
        "## What it means",
        "",
        report["meaning"],
        "",
        "## Not covered",
        "",
        *(f"- {item}" for item in report["not_covered"]),
        "",
    ]
    return "\n".join(lines)


def price_of_tuning(plan: TuningPlan, single: PrivacyPlan) -> str:
    """Say what it costs to choose."""
    more = 100 * (plan.trial.sigma / single.sigma - 1)
    return (
        f"The price of choosing: each trial trains with noise multiplier {plan.trial.sigma:.4f}, where a single run "
        f"with fixed settings would train with {single.sigma:.4f} for the same ε and δ ({more:.0f} % more noise)."
    )


def tuning_table(plan: TuningPlan, single: PrivacyPlan) -> str:
    """Set a single run and a tuning of the same budget side by side."""
    line = "{:<52} {:>11} {:>9} {:>9}"
    on_v = plan.bound(VALIDATION_DATA)
    on_d = plan.bound(TRAINING_DATA)
    assert on_d is not None
    cost = single.cost()
    of_single = "-" if cost.validation_data is None else f"{cost.validation_data.epsilon:.4f}"
    header = line.format("", "sigma train", "eps on D", "eps on V")
    return "\n".join(
        [
            header,
            "-" * len(header),
            line.format(
                "a single run, settings fixed", f"{single.sigma:.4f}", f"{cost.training_data.epsilon:.4f}", of_single
            ),
            line.format(
                f"the best of K trials, {describe_law(plan.law)}",
                f"{plan.trial.sigma:.4f}",
                f"{on_d.epsilon:.4f}",
                "public" if on_v is None else f"{on_v.epsilon:.4f}",
            ),
        ]
    )


def _score_row(plan: TuningPlan) -> list[dict[str, Any]]:
    release = plan.score_release()
    if release.event is None:
        return []
    parameters = f"sigma {plan.score_noise:.6g}, rate 1, sensitivity: {release.description}"
    return [{"phase": "score", "mechanism": "Gaussian", "parameters": parameters, "count": 1}]


@dataclass(frozen=True)
class TuningResult:
    """A tuning's release. ``score``: the best trial's noisy metric on V. ``accuracy``: of a public test set."""

    settings: dict[str, Any]
    score: float
    accuracy: float
    epsilon: float
    delta: float
    trials: str
    out: str
    metric: str = ACCURACY

    def text(self) -> str:
        rows = [(f"best {key}", f"{value:.6g}" if isinstance(value, float) else str(value)) for key, value in
                self.settings.items()]  # fmt: skip
        rows += [
            (f"its {metric_words(self.metric)} on V", f"{shown_metric(self.metric, self.score)} (noisy)"),
            *([] if math.isnan(self.accuracy) else [("test accuracy", f"{100 * self.accuracy:.2f} %")]),
            ("epsilon, delta", f"{self.epsilon:.4f}, {self.delta:.3g} for all trials together"),
            ("trials", f"a secret number, by the {self.trials}"),
            ("results in", self.out),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
