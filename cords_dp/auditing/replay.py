"""Audits without chance: two neighbours under frozen noise, for selections and for the step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA
from cords_dp.auditing.findings import Finding
from cords_dp.auditing.toys import CRITERION, LENGTH, OneLinearLayer, SmallNet, toys
from cords_dp.auditing.transcripts import Bench, Query, Transcript, moved
from cords_dp.data.record_set import array_set
from cords_dp.errors import CordsDPError
from cords_dp.noise.generators import noise_source, secure_generator
from cords_dp.planning import PrivacyPlan
from cords_dp.selection import Pool
from cords_dp.training.step import PrivateEngine

_SLACK = 1e-6
_STEP_SLACK = 1e-3  # weights are float32
_RECORDS = {TRAINING_DATA: 24, VALIDATION_DATA: 8}  # how many are zeroed, one after the other


@dataclass
class Worst:
    """The neighbours that have moved a release farthest."""

    ratio: float
    with_record: Query
    without: Query
    index: int


def replay_selection(plan: PrivacyPlan) -> tuple[dict[str, Worst], list[str]]:
    """Replay a selection on many neighbours of data of several shapes: the worst pair of each release, and problems."""
    worst: dict[str, Worst] = {}
    problems: list[str] = []
    for toy in toys(plan.shape.n, plan.shape.n_validation):
        bench = Bench(
            plan,
            array_set(*toy.training),
            array_set(*toy.validation),
            SmallNet(classes=toy.classes),
            CRITERION,
            toy.classes,
        )
        problems += [f"{toy.name}: {problem}" for problem in _replay_on(bench, worst)]
    return worst, list(dict.fromkeys(problems))


def _replay_on(bench: Bench, worst: dict[str, Worst]) -> list[str]:
    plan, real = bench.plan, bench.run()
    problems = _charges(plan, real)
    for dataset in (TRAINING_DATA, VALIDATION_DATA) if plan.validation_is_read else (TRAINING_DATA,):
        size = plan.shape.n if dataset == TRAINING_DATA else plan.shape.n_validation
        for index in np.linspace(0, size - 1, _RECORDS[dataset]).astype(int):
            try:
                other = bench.run(null=(dataset, int(index)), script=real.queries)
            except CordsDPError as error:
                problems.append(f"zeroing a record of {dataset}: {error}")
                continue
            problems += _compare(real, other, dataset, int(index), worst)
    return list(dict.fromkeys(problems))


def _compare(real: Transcript, other: Transcript, dataset: str, index: int, worst: dict[str, Worst]) -> list[str]:
    problems = []
    if len(other.queries) != len(real.queries):
        problems.append(f"zeroing a record of {dataset} changes how many draws there are")
    if other.coins != real.coins:
        problems.append(f"zeroing a record of {dataset} changes how many coins are tossed")
    for one, two in zip(real.queries, other.queries, strict=False):
        ratio = moved(one, two, index)
        if one.release.dataset == dataset:
            if one.name not in worst or ratio > worst[one.name].ratio:
                worst[one.name] = Worst(ratio, one, two, index)
            if ratio > 1 + _SLACK:
                problems.append(f"{one.name!r} moves by more than its sensitivity")
        elif dataset == VALIDATION_DATA and ratio > _SLACK:
            problems.append(f"a record of V moves {one.name!r} past V's releases")
    nobody = np.zeros(0, dtype=np.int64)
    if not same_pools(real.pools[0], other.pools[0], np.array([index]) if dataset == TRAINING_DATA else nobody):
        problems.append(f"zeroing a record of {dataset} changes membership, weight or chance of other records")
    return problems


def same_pools(one: Pool, two: Pool, ignored: np.ndarray) -> bool:
    """Are all other records in both or in neither, with the same weights, chances and losses, to the last bit?"""

    def parts(pool: Pool) -> list[np.ndarray]:
        order = np.argsort(pool.indices)
        order = order[~np.isin(pool.indices[order], ignored)]
        each = (pool.weights, pool.chances, pool.predicted)
        filled = [np.ones(len(pool)) if v is None else v for v in each]
        known = pool.likelihood
        tables = [] if known is None else [known.given, known.drawn]
        return [pool.indices[order], *(v[order] for v in filled), *tables]

    return all(np.array_equal(a, b) for a, b in zip(parts(one), parts(two), strict=True))


def _charges(plan: PrivacyPlan, real: Transcript) -> list[str]:
    """Everything that was declared was charged, once, and was drawn as often as it was charged at least once."""
    expected = Counter((e.dataset, e.event) for e in plan.selection_entries())
    charged = Counter((e.dataset, e.event) for e in real.ledger.entries)
    merged: Counter = Counter()
    for (dataset, event), count in expected.items():
        merged[(dataset, event.with_count(1))] += event.count * count
    paid: Counter = Counter()
    for (dataset, event), count in charged.items():
        paid[(dataset, event.with_count(1))] += event.count * count
    problems = [] if merged == paid else ["a selection does not charge what the plan says"]
    drawn = {q.name for q in real.queries}
    return problems + [f"{r.name!r} is declared and never drawn" for r in plan.releases() if r.name not in drawn]


def audit_structure(plan: PrivacyPlan) -> Finding:
    """Nothing about other records, no draw, no coin and no branch depends on the record that is zeroed."""
    assert plan.mechanism is not None
    worst, problems = replay_selection(plan)
    ratios = ", ".join(f"{name} {w.ratio:.3f}" for name, w in worst.items())
    seen = f"largest move of each release in sensitivities: {ratios}"
    return Finding(f"{plan.mechanism.name}: selection", "replay", None, None, seen, violations=tuple(problems))


# --- the step --------------------------------------------------------------------------------------------


def audit_step_replay(plan: PrivacyPlan, mode: str) -> Finding:
    """Two neighbouring batches under the same noise: the step moves by at most one clip norm over b̄, whoever leaves."""
    clip = plan.privacy.max_grad_norm
    x, y = _batch()
    ratios = []
    for leaving in range(len(y)):
        key = secure_generator().bytes(16)
        both = [_step(plan, mode, x[kept], y[kept], key) for kept in _neighbours(len(y), leaving)]
        ratios.append(float((both[0] - both[1]).norm()) / clip)
    largest = max(ratios)
    violations = () if largest <= 1 + _STEP_SLACK else (f"a record moves the step by {largest:.4g} clip norms",)
    seen = f"the step moves by at most {largest:.4f} clip norms"
    return Finding(f"step ({mode})", "replay", None, None, seen, violations=violations)


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Ordinary records, one with a huge gradient, one with a tiny one, one that is not finite."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(6, 4, generator=generator), torch.arange(6) % 2
    x[1] *= LENGTH
    x[2] *= 1e-3
    x[3, 0] = float("nan")
    return x, y


def _neighbours(size: int, leaving: int) -> tuple[torch.Tensor, torch.Tensor]:
    everyone = torch.arange(size)
    return everyone, everyone[everyone != leaving]


def _step(plan: PrivacyPlan, mode: str, x: torch.Tensor, y: torch.Tensor, key: bytes) -> torch.Tensor:
    """The noisy sum of one step, the noise fixed by the key. A weight above 1 is tried as well: it must count as 1."""
    model, batch_size = OneLinearLayer(x.shape[1]), 4
    inner = model.linear
    engine = PrivateEngine(
        model,
        torch.optim.SGD(model.parameters(), lr=float(batch_size)),
        CRITERION,
        sigma=plan.sigma,
        max_grad_norm=plan.privacy.max_grad_norm,
        batch_size=batch_size,
        mode=mode,
        noise=noise_source(secure_generator(key)),
        normalise=plan.privacy.clipping == "automatic",
    )
    engine.step(x, y, torch.full((len(y),), 2.0))
    return -torch.cat([inner.weight.detach().reshape(-1), inner.bias.detach()]).double()
