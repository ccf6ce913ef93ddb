"""Record and replay: one selection, and the same selection on a neighbour that is shown the very same noisy outputs.

Given what was released before, every query must move by at most its declared sensitivity, and everything that is not
released may depend on the other record only through itself. So the neighbour is run with the recorded outputs in place
of noise: its queries are compared with the recorded ones, and so is all that it hands over about other records.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, GumbelFreeze, Ledger
from cords_dp.auditing.null import nulled
from cords_dp.auditing.toys import CRITERION, SmallNet, Toy, audited_set
from cords_dp.errors import MechanismError
from cords_dp.noise.generators import secure_generator
from cords_dp.noise.primitives import tail_histogram
from cords_dp.planning import PrivacyPlan, Release
from cords_dp.selection import Pool, Records, SelectionContext
from cords_dp.selection.releases import Releases


@dataclass(frozen=True)
class Query:
    """One draw that a selector has asked for, with what it asked about (private) and what it was told."""

    kind: str
    name: str
    values: np.ndarray  # the sum before noise, or the scores
    extra: dict[str, Any] = field(default_factory=dict)
    output: np.ndarray | None = None

    @property
    def shape(self) -> tuple[Any, ...]:
        """What must not depend on any record: which release, of what size."""
        public = {k: v for k, v in self.extra.items() if k != "labels"}
        return self.kind, self.name, self.values.shape, tuple(sorted(public.items()))

    def noised(self) -> tuple[np.ndarray, float]:
        """What noise is added to, and the norm of the public map that was applied to it."""
        if self.kind == "tail_counts":
            return tail_histogram(self.values, **self.extra)
        return self.values, 1.0


class Recorder(Releases):
    """The real `Releases`, written down; or, with a script, its outputs played back."""

    script: list[Query] | None = None
    null: int | None = None  # of D: it has no cell in a histogram

    def start(self, script: list[Query] | None = None, null: int | None = None) -> Recorder:
        self.queries: list[Query] = []
        self.script, self.null = script, null
        return self

    def gaussian(self, name: str, total: np.ndarray) -> np.ndarray:
        values = np.array(total, dtype=np.float64)
        return self._answer(Query("gaussian", name, values), lambda: super(Recorder, self).gaussian(name, total))

    def tail_counts(self, name: str, scores: np.ndarray, labels: np.ndarray, *, classes: int, bins: int) -> np.ndarray:
        extra = {"labels": np.array(labels), "classes": classes, "bins": bins}
        scores = np.array(scores, dtype=np.float64)
        if self.null is not None and self._get(name).dataset == TRAINING_DATA:
            scores[self.null] = np.nan
        query = Query("tail_counts", name, scores, extra)
        real = super().tail_counts
        return self._answer(query, lambda: real(name, scores, labels, classes=classes, bins=bins))

    def picks(self, name: str, scores: np.ndarray, size: int) -> np.ndarray:
        query = Query("picks", name, np.array(scores, dtype=np.float64), {"size": size})
        return self._answer(query, lambda: super(Recorder, self).picks(name, scores, size))

    def few_picks(self, name: str, score_of: Any, count: int, size: int, *, bound: float) -> np.ndarray:
        """An audit looks at all scores."""
        return self.picks(name, score_of(np.arange(count)), size)

    def reads_few(self, name: str, count: int, size: int, *, bound: float) -> bool:
        return False

    def _answer(self, query: Query, draw: Any) -> np.ndarray:
        if self.script is None:
            output = draw()
        else:
            number = len(self.queries)
            if number >= len(self.script) or self.script[number].shape != query.shape:
                raise MechanismError(f"on a neighbour, draw {number + 1} is another one: {query.shape}")
            output = self.script[number].output
        self.queries.append(Query(query.kind, query.name, query.values, query.extra, np.array(output)))
        return np.array(output)


@dataclass(frozen=True)
class Transcript:
    """A selection: its queries, the pool, the state of the coins afterwards, and what was charged."""

    queries: list[Query]
    pool: Pool
    coins: str
    ledger: Ledger


class Bench:
    """A mechanism with D, V and a model, at released weights."""

    def __init__(self, plan: PrivacyPlan, toy: Toy):
        self.plan, self.classes, self.training = plan, toy.classes, audited_set(*toy.training)
        self.validation = audited_set(*toy.validation)
        self.validation.store.audited_as = VALIDATION_DATA
        self.model = SmallNet(classes=toy.classes)
        self.weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.releases = {r.name: r for r in plan.releases()}

    def select(self, script: list[Query] | None = None, null: int | None = None) -> Transcript:
        """One selection, with real noise or with the outputs of a script. Its blind coins are always the same."""
        assert self.plan.mechanism is not None
        coins = np.random.default_rng(7)
        validation = Records(self.validation, self.model, CRITERION, "cpu") if self.plan.validation_is_read else None
        context = SelectionContext(
            plan=self.plan,
            training=Records(self.training, self.model, CRITERION, "cpu"),
            validation=validation,
            num_classes=self.classes,
            learning_rate=0.1,
            coins=coins,
        )
        ledger = Ledger(allowance=self.plan.entries())
        generators = {TRAINING_DATA: secure_generator(), VALIDATION_DATA: secure_generator()}
        declared = tuple(self.releases.values())
        recorder = Recorder(declared, charge=ledger.charge, generators=generators).start(script, null)
        pool = self.plan.mechanism.build(context).select(self.weights, recorder)
        return Transcript(recorder.queries, pool, repr(coins.bit_generator.state), ledger)

    def on_neighbour(self, script: list[Query], dataset: str, index: int) -> Transcript:
        with nulled(self.training if dataset == TRAINING_DATA else self.validation, np.array([index])):
            return self.select(script, index if dataset == TRAINING_DATA else None)


def moved(release: Release, with_record: Query, without: Query, index: int) -> float:
    """By how much zeroing a record has moved a query, in units of what is charged: at most 1 in a sound build."""
    if with_record.kind == "picks":
        change = np.abs(with_record.values - without.values)
        if isinstance(release.event, GumbelFreeze) and len(change) > index and np.delete(change, index).any():
            return float("inf")  # a freeze is charged for one score that moves
        return float(change.max()) / release.sensitivity
    (one, stretch), (other, _) = with_record.noised(), without.noised()
    return float(np.linalg.norm(one - other)) / (release.sensitivity * stretch)
