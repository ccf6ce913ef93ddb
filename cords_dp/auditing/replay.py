"""Audits without chance: two neighbours under frozen noise, for selections and for the step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA
from cords_dp.auditing.findings import Finding
from cords_dp.auditing.steps import AuditedSteps
from cords_dp.auditing.toys import CRITERION, LENGTH, SmallNet, toys
from cords_dp.auditing.transcripts import Bench, Query, Transcript, moved
from cords_dp.errors import CordsDPError
from cords_dp.noise.generators import secure_generator
from cords_dp.planning import PrivacyPlan
from cords_dp.selection import Pool

_SLACK = 1e-6
_STEP_SLACK = 1e-3  # weights are float32
_UNITS = {TRAINING_DATA: 24, VALIDATION_DATA: 8}  # how many are zeroed, one after the other


@dataclass
class Worst:
    """The neighbours that have moved a release farthest."""

    ratio: float
    with_record: Query
    without: Query


def replay_selection(plan: PrivacyPlan) -> tuple[dict[str, Worst], list[str]]:
    """Replay a selection on many neighbours of data of several shapes: the worst pair of each release, and problems.

    Neighbours differ in one unit of the plan's: a record, or an owner with all of its records.
    """
    worst: dict[str, Worst] = {}
    problems: list[str] = []
    for toy in toys(plan.shape.n, plan.shape.n_validation, owned=plan.privacy.unit == "owner"):
        bench = Bench(plan, toy.training, toy.validation, SmallNet(classes=toy.classes), CRITERION, toy.classes)
        problems += [f"{toy.name}: {problem}" for problem in _replay_on(bench, worst)]
    return worst, list(dict.fromkeys(problems))


def _replay_on(bench: Bench, worst: dict[str, Worst]) -> list[str]:
    plan, rounds = bench.plan, max(1, bench.plan.shape.rounds)  # the first look may see less than those after it
    real = bench.run(rounds=rounds)
    problems = _charges(plan, real)
    for dataset in (TRAINING_DATA, VALIDATION_DATA) if plan.validation_is_read else (TRAINING_DATA,):
        size = plan.shape.n if dataset == TRAINING_DATA else plan.shape.n_validation
        for number in np.linspace(0, size - 1, _UNITS[dataset]).astype(int).tolist():
            null = bench.unit(dataset, number)
            try:
                other = bench.run(rounds=rounds, null=(dataset, null), script=real.queries)
            except CordsDPError as error:
                problems.append(f"zeroing {_one(plan)} of {dataset}: {error}")
                continue
            problems += _compare(real, other, dataset, null, worst, _one(plan))
    return list(dict.fromkeys(problems))


def _one(plan: PrivacyPlan) -> str:
    return "an owner" if plan.privacy.unit == "owner" else "a record"


def _compare(
    real: Transcript, other: Transcript, dataset: str, null: np.ndarray, worst: dict[str, Worst], one_unit: str
) -> list[str]:
    problems = []
    if len(other.queries) != len(real.queries):
        problems.append(f"zeroing {one_unit} of {dataset} changes how many draws there are")
    if other.coins != real.coins:
        problems.append(f"zeroing {one_unit} of {dataset} changes how many coins are tossed")
    for one, two in zip(real.queries, other.queries, strict=False):
        ratio = moved(one, two, null)
        if one.release.dataset == dataset:
            if one.name not in worst or ratio > worst[one.name].ratio:
                worst[one.name] = Worst(ratio, one, two)
            if ratio > 1 + _SLACK:
                problems.append(f"{one.name!r} moves by more than its sensitivity")
        elif dataset == VALIDATION_DATA and ratio > _SLACK:
            problems.append(f"{one_unit} of V moves {one.name!r} past V's releases")
    ignored = null if dataset == TRAINING_DATA else null[:0]
    if not all(same_pools(one, two, ignored) for one, two in zip(real.pools, other.pools, strict=True)):
        problems.append(f"zeroing {one_unit} of {dataset} changes membership, weight, chance or loss of other records")
    return problems


def same_pools(one: Pool, two: Pool, ignored: np.ndarray) -> bool:
    """Say whether all other records are in both or neither, with the same weights, chances and losses, bit by bit."""

    def parts(pool: Pool) -> list[np.ndarray]:
        order = np.argsort(pool.indices)
        order = order[~np.isin(pool.indices[order], ignored)]
        each = (pool.weights, pool.chances, pool.predicted)
        filled = [np.ones(len(pool)) if v is None else v for v in each]
        known = pool.likelihood
        tables = [] if known is None else [known.given, known.drawn]
        return [pool.indices[order], *(v[order] for v in filled), *tables]

    if (one.likelihood is None) != (two.likelihood is None):
        return False
    return all(np.array_equal(a, b) for a, b in zip(parts(one), parts(two), strict=True))


def _charges(plan: PrivacyPlan, real: Transcript) -> list[str]:
    """Check that everything that was declared was charged, once a selection, and was drawn at least once."""
    expected = Counter((e.dataset, e.event) for e in plan.selection_entries())
    charged = Counter((e.dataset, e.event) for e in real.ledger.entries)
    merged: Counter = Counter()
    for (dataset, event), count in expected.items():
        merged[(dataset, event.with_count(1))] += event.count * count * len(real.pools)
    paid: Counter = Counter()
    for (dataset, event), count in charged.items():
        paid[(dataset, event.with_count(1))] += event.count * count
    problems = [] if merged == paid else ["a selection does not charge what the plan says"]
    drawn = {q.name for q in real.queries}
    return problems + [f"{r.name!r} is declared and never drawn" for r in plan.releases() if r.name not in drawn]


def audit_structure(plan: PrivacyPlan) -> Finding:
    """Check that nothing about other records, no draw, no coin and no branch depends on the record that is zeroed."""
    assert plan.mechanism is not None
    worst, problems = replay_selection(plan)
    ratios = ", ".join(f"{name} {w.ratio:.3f}" for name, w in worst.items())
    seen = f"largest move of each release in sensitivities: {ratios}"
    target = f"{plan.mechanism.name}: selection" + (" by owners" if plan.privacy.unit == "owner" else "")
    return Finding(target, "replay", None, None, seen, violations=tuple(problems))


# --- the step --------------------------------------------------------------------------------------------


def audit_step_replay(plan: PrivacyPlan, mode: str) -> Finding:
    """Replay neighbouring batches under the same noise: a step moves by at most one clip norm, whoever leaves."""
    owned = plan.privacy.unit == "owner"
    x, y = _batch()
    whose = torch.tensor(_WHOSE) if owned else torch.arange(len(y))
    ratios = []
    for leaving in whose.unique().tolist():
        key = secure_generator().bytes(16)
        batches = ((x[kept], y[kept], whose[kept]) for kept in (whose >= 0, whose != leaving))
        both = [_step(plan, mode, *batch, key) for batch in batches]
        ratios.append(float((both[0] - both[1]).norm()))
    largest = max(ratios)
    violations = () if largest <= 1 + _STEP_SLACK else (f"{_one(plan)} moves the step by {largest:.4g} clip norms",)
    seen = f"the step moves by at most {largest:.4f} clip norms"
    target = f"step by owners ({mode})" if owned else f"step ({mode})"
    return Finding(target, "replay", None, None, seen, violations=violations)


_WHOSE = (0, 0, 0, 1, 1, 2)  # the records of `_batch`, where they have owners


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Make ordinary records, one with a huge gradient, one with a tiny one, one that is not finite."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(6, 4, generator=generator), torch.arange(6) % 2
    x[1] *= LENGTH
    x[2] *= 1e-3
    x[3, 0] = float("nan")
    return x, y


def _step(
    plan: PrivacyPlan, mode: str, x: torch.Tensor, y: torch.Tensor, whose: torch.Tensor, key: bytes
) -> torch.Tensor:
    """Take a step under the noise of a key. A weight above 1 is tried as well: it must count as 1."""
    privacy, owned = plan.privacy, plan.privacy.unit == "owner"
    automatic = privacy.clipping == "automatic"
    steps = AuditedSteps(
        x.shape[1], mode, sigma=plan.sigma, clip=privacy.max_grad_norm, normalise=automatic, by_owner=owned, key=key
    )
    return steps.sums(x, y, torch.full((len(y),), 2.0), *([whose] if owned else [])).double()
