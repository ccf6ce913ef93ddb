"""Selections with frozen noise, on a tape: what goes into each release, which noise is drawn, what is charged.

What Re:cord-play does (arXiv 2602.17454: the same randomness on two neighbours, control flow and inputs compared),
for this package. Beyond that tool: neighbours are true zero-out ones, later releases are compared *given equal
earlier ones*, which is what adaptive composition asks, and what is derived from the releases is compared for every
other record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from builders import CE, Net

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, Ledger
from cords_dp.data.record_set import RecordSet
from cords_dp.selection import Records, SelectionContext
from cords_dp.selection import releases as module
from cords_dp.selection.last_layer import LastLayer, LastLayerGradients
from cords_dp.selection.releases import Releases

# --- neighbours ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Nulled(Records):
    """Records of which one is null: no gradient, whatever the weights. It keeps its place, and a label for the loss.

    Zeros in its place are not enough: a greedy step computes gradients anew from the logits, so these are NaN, which
    every mechanism has to count as nothing.
    """

    null: int | None = None

    def at(self, weights: Any, **options: Any) -> LastLayer:
        seen = super().at(weights, **options)
        if self.null is None:
            return seen
        r, a, logits = (t.clone() for t in (seen.gradients.r, seen.gradients.a, seen.logits))
        r[self.null], a[self.null], logits[self.null] = 0.0, 0.0, np.nan
        return LastLayer(LastLayerGradients(r, a), logits, seen.labels)


class _NullInCounts(Releases):
    """A null record has no cell: nothing in the package can say so of a record, hence it is said here."""

    null: int | None = None

    def tail_counts(self, name: str, scores: np.ndarray, labels: np.ndarray, **options: Any) -> np.ndarray:
        scores = np.array(scores, dtype=np.float64)
        if self.null is not None:
            scores[self.null] = np.nan
        return super().tail_counts(name, scores, labels, **options)


def without_gradient_in_match(selector: Any, null: int) -> None:
    """`match` makes gradients of labels and inputs; a null record has neither."""
    real = selector._unit_gradients

    def nulled(records: Records, weights: Any) -> LastLayerGradients:
        gradients = real(records, weights)
        if not isinstance(records, Nulled) or records.null is None:
            return gradients
        r = gradients.r.clone()
        r[records.null] = 0.0
        return LastLayerGradients(r, gradients.a)

    selector._unit_gradients = nulled


# --- frozen noise ----------------------------------------------------------------------------------------------------


class Frozen:
    """Stands in for a generator: the same numbers in every run, and a note of each draw."""

    def __init__(self, tape: Tape, dataset: str, loudness: float):
        self.tape, self.dataset, self.loudness, self.draws = tape, dataset, loudness, 0

    def _fixed(self, kind: str, shape: Any) -> np.random.Generator:
        self.draws += 1
        self.tape.note("noise", self.dataset, kind, shape)
        return np.random.default_rng([self.draws, 7])

    def standard_normal(self, shape: Any) -> np.ndarray:
        return self.loudness * self._fixed("normal", shape).standard_normal(shape)

    def gumbel(self, size: Any) -> np.ndarray:
        return self._fixed("gumbel", size).gumbel(size=size)


@dataclass(frozen=True)
class Asked:
    """One release before its noise: ``limit`` is how far a record may move ``value``."""

    dataset: str
    kind: str
    value: np.ndarray
    limit: float


@dataclass
class Tape:
    """``flow``: everything that must not depend on a record. ``asked`` and ``given``: in and out of each release."""

    flow: list[tuple] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    given: list[np.ndarray] = field(default_factory=list)
    pools: list[Any] = field(default_factory=list)

    def note(self, *what: Any) -> None:
        self.flow.append(what)


@contextlib.contextmanager
def _recorded(tape: Tape, script: Tape | None, scripted: str) -> Iterator[None]:
    """Wrap what draws noise. Of releases on the ``scripted`` dataset the outputs are those of ``script``."""
    real_release, real_freeze = module.gaussian_release, module.ScoreFreeze

    def finish(asked: Asked, given: np.ndarray) -> np.ndarray:
        number = len(tape.asked)
        tape.asked.append(asked)
        if script is not None and asked.dataset == scripted:
            given = script.given[number]
        tape.given.append(given)
        return given

    def release(total: np.ndarray, *, sensitivity: float, noise_multiplier: float, rng: Frozen, **rest: Any) -> Any:
        value = np.array(total, dtype=np.float64)
        tape.note("gaussian", rng.dataset, value.shape, sensitivity, noise_multiplier, tuple(sorted(rest.items())))
        given = real_release(total, sensitivity=sensitivity, noise_multiplier=noise_multiplier, rng=rng, **rest)
        return finish(Asked(rng.dataset, "gaussian", value, sensitivity), given)

    class Freeze:
        def __init__(self, scores: np.ndarray, *, epsilon0: float, sensitivity: float):
            self.value, self.epsilon0, self.sensitivity = np.array(scores, dtype=np.float64), epsilon0, sensitivity
            self.real = real_freeze(scores, epsilon0=epsilon0, sensitivity=sensitivity)

        def draw(self, m: int, rng: Frozen) -> np.ndarray:
            tape.note("picks", rng.dataset, len(self.value), m, self.epsilon0, self.sensitivity)
            return finish(Asked(rng.dataset, "picks", self.value, self.sensitivity), self.real.draw(m, rng))

    with mock.patch.object(module, "gaussian_release", release), mock.patch.object(module, "ScoreFreeze", Freeze):
        yield


# --- a run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A plan, records, a model and how loud the frozen noise is."""

    plan: Any
    train: RecordSet
    validation: RecordSet
    classes: int
    hidden: int
    seed: int
    loudness: float

    def model(self) -> Net:
        torch.manual_seed(self.seed)
        return Net(dim=self.train.store.x.shape[1], classes=self.classes, hidden=self.hidden)


def run(case: Case, *, null: int | None = None, null_in: str = TRAINING_DATA, script: Tape | None = None) -> Tape:
    """All selections of the plan. With ``script`` the releases on ``null_in`` give what they gave there."""
    tape, plan, model = Tape(), case.plan, case.model()
    at = {TRAINING_DATA: None, VALIDATION_DATA: None, null_in: null}

    def records(dataset: RecordSet, side: str) -> Nulled:
        return Nulled(dataset, model, CE, "cpu", null=at[side])

    context = SelectionContext(
        plan=plan,
        training=records(case.train, TRAINING_DATA),
        validation=records(case.validation, VALIDATION_DATA) if plan.validation_is_read else None,
        num_classes=case.classes,
        learning_rate=0.5,
        coins=np.random.default_rng(case.seed),
    )
    selector = plan.mechanism.build(context)
    if null is not None and hasattr(selector, "_unit_gradients"):
        without_gradient_in_match(selector, null)
    ledger = Ledger(allowance=plan.entries())
    generators = {side: Frozen(tape, side, case.loudness) for side in (TRAINING_DATA, VALIDATION_DATA)}

    def charge(dataset: str, phase: str, event: Any) -> None:
        tape.note("charge", dataset, phase, event)
        ledger.charge(dataset, phase, event)

    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with _recorded(tape, script, null_in):
        for _ in range(plan.shape.rounds):
            releases = _NullInCounts(plan.releases(), charge=charge, generators=generators)  # type: ignore[arg-type]
            releases.null = at[TRAINING_DATA]
            tape.pools.append(selector.select(weights, releases))
            weights = {name: 0.9 * value for name, value in weights.items()}  # training went on
    return tape


def quiet(case: Case) -> Case:
    return replace(case, loudness=0.0)
