"""Everything that is wrong with a config, found in seconds and without data.

A check refuses the first mistake that it meets. So each mistake that is found is noted, taken out of a copy of the
config and the copy is checked again, until nothing is left: a missing key is given a sound value, a dataset or a model
that cannot be used is left out of the checks. What follows from such a repair is not reported.

Which CORDS configs can be made private by changing a word, and the reason where one cannot.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cords_dp.config import load_config, thawed_copy
from cords_dp.config.keys import KEYS
from cords_dp.data.published import known_sizes, public_facts
from cords_dp.errors import ConfigError, CordsDPError, shown
from cords_dp.models.build import build_model, check_input
from cords_dp.models.private import make_private_ready
from cords_dp.planning import PrivacyPlan
from cords_dp.training.resolve import Run, resolve
from cords_dp.training.strategies import strategy_names

_MOST = 100  # mistakes: a bound on the loop, not a wish
_ATTEMPTS = 3  # to take one of them out
_SOUND: dict[str, Any] = {
    "dss_args.fraction": 0.1,
    "privacy.epsilon": 3.0,
    "optimizer.type": "sgd",
    "optimizer.lr": 0.1,
    "dataloader.batch_size": 20,
    "train_args.num_epochs": 10,
    "train_args.device": "cpu",
    "loss.type": "CrossEntropyLoss",
}


@dataclass(frozen=True)
class Problem:
    """What is wrong and what to do about it."""

    key: str
    value: str
    fix: str

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


def find_problems(cfg: Mapping[str, Any], sizes: tuple[int, int] | None = None) -> Findings:
    """Check sections, keys, values, strategy, model and budget. ``sizes``: (n, |V|), where the config does not tell."""
    search = _Search(thawed_copy(cfg), sizes)
    for _ in range(_MOST):
        if search.step():
            break
    return search.findings


class _Search:
    """A copy of the config, out of which every mistake that is found is taken."""

    def __init__(self, config: dict[str, Any], sizes: tuple[int, int] | None):
        self.config, self.sizes = config, sizes
        self.findings = Findings()
        self.repaired: Counter[str] = Counter()
        self.own_data = self.own_model = False

    def step(self) -> bool:
        """One attempt; True where there is nothing more to be found."""
        try:
            self._attempt()
            return True
        except ConfigError as error:
            if error.key not in self.repaired:
                self.findings.problems.append(Problem(error.key, shown(error.value), error.fix))
            return not self._repair(error.key)
        except CordsDPError as error:  # of a model that cannot be private, or of a file: no key to take out
            self.findings.problems.append(Problem("", "", str(error)))
            done, self.own_model = self.own_model, True
            return done

    def _attempt(self) -> None:
        findings = self.findings
        run = resolve(self.config, own_data=self.own_data, own_model=self.own_model, plan=False)
        _ = run.device  # refuses one that this machine has not
        if not (self.own_data or self.own_model):
            self._check_model(run)
        sizes = self.sizes or (None if self.own_data else known_sizes(run.config))
        findings.notes = list(run.notes)
        if run.unused:
            findings.notes.append(f"keys that have no effect: {', '.join(run.unused)}")
        if run.privacy is not None and sizes is None:
            findings.notes.append("the config does not tell how many records there are: check the budget with --n")
        findings.plan = run.plan(*sizes) if sizes else None
        findings.run = run

    def _check_model(self, run: Run) -> None:
        """Build it from public shapes alone, make it fit for per-example gradients, show it zeros."""
        facts = public_facts(run.config)
        if facts is None or not run.strategy.private:
            return
        model = build_model(
            run.config, seed=0, num_classes=facts.num_classes, input_shape=facts.shape, constants=facts.constants
        )
        model, _ = make_private_ready(model)
        check_input(model, torch.zeros(facts.shape, dtype=facts.dtype))

    def _repair(self, key: str) -> bool:
        """Take a mistake out, more thoroughly each time; False where that does not help."""
        section, _, name = key.partition(".")
        self.repaired[key] += 1
        first = self.repaired[key] == 1
        if self.repaired[key] > _ATTEMPTS:
            return False
        if section == "dataset" and not self.own_data and (name in ("", "name") or not first):
            self.own_data = True
            return True
        if section == "model" and not self.own_model and (name in ("", "architecture") or not first):
            self.own_model = True
            return True
        if not name:
            return self._repair_section(section)
        values = self.config.get(section)
        if not isinstance(values, dict):
            self.config[section] = values = {}
        removed = first and key != "dss_args.type" and _removed(values, name.split("."))
        return removed or self._given(values, key, name)

    def _repair_section(self, section: str) -> bool:
        if section not in KEYS:
            return self.config.pop(section, None) is not None
        self.config[section] = {
            key.split(".")[1]: value for key, value in _SOUND.items() if key.startswith(f"{section}.")
        }
        return True

    def _given(self, values: dict[str, Any], key: str, name: str) -> bool:
        if key == "dss_args.type":
            close = difflib.get_close_matches(str(values.get(name)), strategy_names(), 1, 0.5)
            values[name] = close[0] if close else "RandomDP"
            return True
        if key not in _SOUND:
            return False
        values[name] = _SOUND[key]
        return True


def _removed(values: dict[str, Any], path: list[str]) -> bool:
    """Take out a key, also one inside of a dictionary (model.args.width)."""
    for part in path[:-1]:
        inner = values.get(part)
        if not isinstance(inner, dict):
            return False
        values = inner
    return values.pop(path[-1], _ABSENT) is not _ABSENT


_ABSENT = object()


STRATEGIES = ("FullDP", "RandomDP", "GLISTERDP")
_SUFFIXES = (".py", ".yaml", ".yml")


@dataclass(frozen=True)
class Verdict:
    """One config with one word. ``refusal``: why it cannot be used and what to do; empty where it can."""

    path: Path
    strategy: str
    refusal: str = ""


def config_files(paths: Iterable[Path]) -> list[Path]:
    """The files themselves and those in folders, without the packages' own ``__init__.py``."""
    found = (p for path in paths for p in (sorted(path.rglob("*")) if path.is_dir() else [path]))
    return [p for p in found if p.suffix in _SUFFIXES and p.name != "__init__.py"]


def convert(
    files: Iterable[Path], strategies: Sequence[str] = STRATEGIES, *, epsilon: float = 3.0, own_data: bool = False
) -> list[Verdict]:
    """Change ``dss_args.type`` of each config and add a budget; see whether a run could start. No data is read.

    ``own_data``: datasets will be handed to ``train``, whatever the config names.
    """
    return [_verdict(path, name, epsilon, own_data) for name in strategies for path in files]


def _verdict(path: Path, strategy: str, epsilon: float, own_data: bool) -> Verdict:
    try:
        changes = [f"dss_args.type={strategy}", f"privacy.epsilon={epsilon}"]
        resolve(load_config(path, changes), own_data=own_data, plan=False)
    except CordsDPError as error:
        return Verdict(path, strategy, str(error))
    return Verdict(path, strategy)


def conversion_text(verdicts: Sequence[Verdict]) -> str:
    """A count for each word, and every reason once with the configs that it is about."""
    lines = []
    for strategy in dict.fromkeys(v.strategy for v in verdicts):
        own = [v for v in verdicts if v.strategy == strategy]
        refused: dict[str, list[str]] = {}
        for verdict in own:
            if verdict.refusal:
                refused.setdefault(verdict.refusal, []).append(verdict.path.name)
        count = sum(len(names) for names in refused.values())
        lines.append(f"{strategy}: {len(own) - count} of {len(own)} accepted")
        for reason, names in refused.items():
            lines += [f"  refused: {reason}", f"    {', '.join(names)}"]
    return "\n".join(lines)
