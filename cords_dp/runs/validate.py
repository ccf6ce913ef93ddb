"""Finds everything that is wrong with a config, in seconds and without data.

Also says which CORDS configs can be made private by changing a word, and why where one cannot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cords_dp.config import load_config
from cords_dp.data.published import known_sizes, public_facts
from cords_dp.errors import ConfigError, CordsDPError, Problems, shown
from cords_dp.models.build import build_model, check_input
from cords_dp.models.private import make_private_ready
from cords_dp.planning import PrivacyPlan
from cords_dp.training.resolve import examine, resolve
from cords_dp.training.run import Run


@dataclass(frozen=True)
class Problem:
    """A mistake in a config, and its fix."""

    key: str
    value: str
    fix: str

    @classmethod
    def of(cls, error: CordsDPError) -> Problem:
        if isinstance(error, ConfigError):
            return cls(error.key, shown(error.value), error.fix)
        return cls("", "", str(error))

    def text(self) -> str:
        return f"{self.key} = {self.value}: {self.fix}" if self.key else self.fix


@dataclass
class Findings:
    """All problems of a config; where there is none, what a run of it would be. ``notes``: what was not checked."""

    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    run: Run | None = None
    plan: PrivacyPlan | None = None

    @property
    def valid(self) -> bool:
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        plan = self.plan
        facts = (
            None
            if plan is None or plan.noiseless
            else {"epsilon": plan.cost().epsilon, "delta": plan.delta, "sigma": plan.sigma, "steps": plan.shape.steps}
        )
        return {"valid": self.valid, "problems": [vars(p) for p in self.problems], "notes": self.notes, "plan": facts}

    def text(self) -> str:
        lines = [f"{number}. {problem.text()}" for number, problem in enumerate(self.problems, 1)]
        head = "no problem found" if self.valid else f"{len(lines)} problem{'s' if len(lines) > 1 else ''}:"
        plan = self.to_dict()["plan"] if self.valid else None
        if plan:
            lines.append(
                f"{plan['steps']} steps, noise multiplier {plan['sigma']:.4f}, epsilon {plan['epsilon']:.4f} at delta "
                f"{plan['delta']:.3g}"
            )
        return "\n".join([head, *lines, *(f"note: {note}" for note in self.notes)])


def find_problems(cfg: Mapping[str, Any], sizes: tuple[int, ...] | None = None) -> Findings:
    """Check sections, keys, values, strategy, model and budget. ``sizes``: (n, |V|), where the config does not tell."""
    findings, problems = Findings(), Problems()
    with problems.noted():
        run, problems = examine(cfg, own_data=False, own_model=False)
        own_data = problems.about("dataset.name")
        with problems.noted():
            _ = run.device  # refuses one that this machine has not
        with problems.noted():
            if not own_data and not problems.about("model.architecture"):
                _check_model(run)
        with problems.noted():
            sizes = sizes or (None if own_data else known_sizes(run.config))
            findings.plan = run.plan(*sizes) if sizes else None
        findings.run, findings.notes = run, list(run.notes)
        if run.unused:
            findings.notes.append(f"keys that have no effect: {', '.join(run.unused)}")
        if run.privacy is not None and sizes is None:
            findings.notes.append("the config does not tell how many records there are: check the budget with --n")
    findings.problems = [Problem.of(error) for error in problems.found]
    return findings


def _check_model(run: Run) -> None:
    """Build the model from public shapes alone, make it fit for per-example gradients, show it zeros."""
    facts = public_facts(run.config)
    if facts is None or not run.strategy.private:
        return
    model = build_model(
        run.config, seed=0, num_classes=facts.num_classes, input_shape=facts.shape, constants=facts.constants
    )
    model, _ = make_private_ready(model)
    check_input(model, torch.zeros(facts.shape, dtype=facts.dtype))


STRATEGIES = ("FullDP", "RandomDP", "GLISTERDP")
_SUFFIXES = (".py", ".yaml", ".yml")


@dataclass(frozen=True)
class Conversion:
    """One config with one word. ``refusal``: why it cannot be used and what to do; empty where it can."""

    path: Path
    strategy: str
    refusal: str = ""


def config_files(paths: Iterable[Path]) -> list[Path]:
    """Return the files themselves and those in folders, without the packages' own ``__init__.py``."""
    found = (p for path in paths for p in (sorted(path.rglob("*")) if path.is_dir() else [path]))
    return [p for p in found if p.suffix in _SUFFIXES and p.name != "__init__.py"]


def convert(
    files: Iterable[Path], strategies: Sequence[str] = STRATEGIES, *, epsilon: float = 3.0, own_data: bool = False
) -> list[Conversion]:
    """Change ``dss_args.type`` of each config and add a budget; see whether a run could start. No data is read.

    ``own_data``: datasets will be handed to ``train``, whatever the config names.
    """
    return [_convert_one(path, name, epsilon, own_data) for name in strategies for path in files]


def _convert_one(path: Path, strategy: str, epsilon: float, own_data: bool) -> Conversion:
    try:
        changes = [f"dss_args.type={strategy}", f"privacy.epsilon={epsilon}"]
        resolve(load_config(path, changes), own_data=own_data, plan=False)
    except CordsDPError as error:
        return Conversion(path, strategy, str(error))
    return Conversion(path, strategy)


def conversion_text(conversions: Sequence[Conversion]) -> str:
    """Report a count for each word, and every reason once with the configs that it is about."""
    lines = []
    for strategy in dict.fromkeys(v.strategy for v in conversions):
        own = [v for v in conversions if v.strategy == strategy]
        refused: dict[str, list[str]] = {}
        for one in own:
            if one.refusal:
                refused.setdefault(one.refusal, []).append(one.path.name)
        count = sum(len(names) for names in refused.values())
        lines.append(f"{strategy}: {len(own) - count} of {len(own)} accepted")
        for reason, names in refused.items():
            lines += [f"  refused: {reason}", f"    {', '.join(names)}"]
    return "\n".join(lines)
