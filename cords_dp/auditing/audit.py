"""All audits of a config, at one or several budgets."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cords_dp.auditing.canary_run import audit_trainer
from cords_dp.auditing.findings import JOINT, SINGLE, Finding, Verdict, judge, table
from cords_dp.auditing.replay import audit_step_replay
from cords_dp.auditing.selections import audit_selections, audit_structures
from cords_dp.auditing.steps import MODES, audit_rate, audit_sampled_step, audit_step, audit_training
from cords_dp.config import thawed_copy
from cords_dp.config.settings import GRADIENT_MODES
from cords_dp.errors import ConfigError
from cords_dp.training.gradients import gradient_mode


@dataclass(frozen=True)
class Effort:
    """How many samples each audit takes. More of them bring bounds nearer to the claims."""

    canaries: int = 1000
    steps: int = 60
    draws: int = 4000
    trainings: int = 600

    def __post_init__(self) -> None:
        for name, least in (("canaries", 20), ("steps", 1), ("draws", 10), ("trainings", 10)):
            if getattr(self, name) < least:
                raise ConfigError(f"--{name}", getattr(self, name), f"must be at least {least}")


@dataclass(frozen=True)
class Report:
    """Verdicts by budget; None for the audits that need no budget."""

    verdicts: list[tuple[float | None, Verdict]]

    @property
    def passed(self) -> bool:
        return all(verdict.passed for _, verdict in self.verdicts)

    def rows(self) -> list[dict[str, Any]]:
        return [{"epsilon": epsilon, **verdict.row()} for epsilon, verdict in self.verdicts]

    def text(self) -> str:
        parts = []
        for epsilon in dict.fromkeys(e for e, _ in self.verdicts):
            title = "Neighbours under frozen noise" if epsilon is None else f"Budget ε = {epsilon:g}"
            parts.append(f"{title}\n{table([v for e, v in self.verdicts if e == epsilon])}")
        failed = sum(not v.passed for _, v in self.verdicts)
        end = f"{failed} of {len(self.verdicts)} audits FAIL" if failed else f"all {len(self.verdicts)} audits pass"
        return "\n\n".join([*parts, f"{end} (a sound build fails at most one run in {1 / JOINT:.0f})"])

    def to_json(self) -> str:
        confidence = {"row": 1 - SINGLE, "all": 1 - JOINT}
        return json.dumps({"passed": self.passed, "confidence": confidence, "rows": self.rows()}, indent=1)


def run_audit(
    cfg: Any,
    epsilons: Sequence[float] = (),
    effort: Effort | None = None,
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Audit the package under a config's strategy, schedule and privacy settings, at each budget or at its own."""
    effort, epsilons = effort or Effort(), epsilons or (own_epsilon(cfg),)
    found: list[tuple[float | None, Finding]] = []
    keys = dict(thawed_copy(cfg)["dss_args"])
    with _quiet():
        for epsilon in epsilons:
            tell(f"ε = {epsilon:g}: one run with {effort.canaries} canaries")
            plan, findings = audit_trainer(cfg, epsilon, count=effort.canaries)
            tell(f"ε = {epsilon:g}: steps")
            findings += [audit_step(plan, mode, steps=effort.steps) for mode in MODES]
            findings.append(audit_sampled_step(plan, MODES[0], steps=4 * effort.steps))
            findings.append(audit_rate(plan, steps=4 * effort.steps))
            tell(f"ε = {epsilon:g}: {effort.trainings} short trainings on each of two neighbours")
            cap = plan.privacy.records_per_owner
            findings.append(audit_training(epsilon, trainings=effort.trainings, cap=cap))
            tell(f"ε = {epsilon:g}: releases of selections")
            findings += audit_selections(epsilon, keys, draws=effort.draws, owned=plan.privacy.unit == "owner")
            found += [(epsilon, finding) for finding in findings]
        tell("neighbours under frozen noise")
        owned = plan.privacy.unit == "owner"
        found += [(None, finding) for finding in audit_structures(keys, owned=owned)]
        modes = [mode for mode in GRADIENT_MODES if gradient_mode(mode).sums_owners or not owned]
        found += [(None, audit_step_replay(plan, mode)) for mode in modes]
    verdicts = judge([finding for _, finding in found])
    return Report([(epsilon, verdict) for (epsilon, _), verdict in zip(found, verdicts, strict=True)])


def own_epsilon(cfg: Any) -> float:
    """Return the budget that a config asks for."""
    epsilon = cfg.get("privacy", {}).get("epsilon")
    if not isinstance(epsilon, (int, float)):
        raise ConfigError("privacy.epsilon", epsilon, "an audit needs a claim to try: name a budget with --epsilon")
    return float(epsilon)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
