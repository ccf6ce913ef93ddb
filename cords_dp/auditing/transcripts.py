"""Record and replay: one selection, and the same selection on a neighbour that is shown the very same noisy outputs.

Given what was released before, every query must move by at most its declared sensitivity, and everything that is not
released may depend on the other record only through itself. So the neighbour is run with the recorded outputs in place
of its own: its queries are compared with the recorded ones, and so is all that it hands over about other records.

The package's tests record and replay with the same `Bench`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor, nn

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, Event, GumbelFreeze, Ledger
from cords_dp.auditing.null import NullRecords
from cords_dp.data.record_set import RecordSet
from cords_dp.errors import MechanismError
from cords_dp.noise.generators import secure_generator
from cords_dp.planning import PrivacyPlan, Release
from cords_dp.selection import Pool, SelectionContext
from cords_dp.selection.releases import Releases

_BOTH = (TRAINING_DATA, VALIDATION_DATA)


@dataclass(frozen=True)
class Query:
    """One draw that a selector has asked for, with what it asked about (private) and what it was told.

    values: what noise is added to, or the scores. stretch: the norm of the public map that was applied to the values.
    size: how many picks.
    """

    kind: str
    release: Release
    values: np.ndarray
    output: np.ndarray
    stretch: float = 1.0
    size: int = 0

    @property
    def name(self) -> str:
        return self.release.name

    @property
    def limit(self) -> float:
        """How far a record may move the values."""
        return self.release.sensitivity * self.stretch

    @property
    def shape(self) -> tuple[Any, ...]:
        """What must not depend on any record: which release, of what size."""
        return self.kind, self.release, self.values.shape, self.stretch, self.size


@dataclass
class Transcript:
    """What selections have done.

    flow: charges, draws and, if the noise tells, its numbers, in their order; none may depend on a record. coins: the
    state of the blind coins afterwards.
    """

    ledger: Ledger
    queries: list[Query] = field(default_factory=list)
    flow: list[tuple[Any, ...]] = field(default_factory=list)
    pools: list[Pool] = field(default_factory=list)
    coins: str = ""

    def charge(self, dataset: str, phase: str, event: Event) -> None:
        self.flow.append(("charge", dataset, phase, event))
        self.ledger.charge(dataset, phase, event)


class Recorder(Releases):
    """The package's `Releases`, written down. With a script, releases on ``scripted`` datasets give its outputs."""

    transcript: Transcript
    script: Sequence[Query] | None = None
    scripted: Collection[str] = _BOTH

    def picks(self, name: str, scores: np.ndarray, size: int) -> np.ndarray:
        given = super().picks(name, scores, size)
        return self._kept(Query("picks", self._get(name), np.array(scores, dtype=np.float64), given, size=size))

    def reads_few(self, name: str, count: int, size: int, *, bound: float) -> bool:
        return False  # an audit looks at all scores

    def _noisy(self, name: str, total: np.ndarray, *, stretch: float) -> np.ndarray:
        given = super()._noisy(name, total, stretch=stretch)
        return self._kept(Query("sum", self._get(name), np.array(total, dtype=np.float64), given, stretch))

    def draw_again(self, query: Query) -> np.ndarray:
        """Draw what a query has asked for once more, in front of all public maps."""
        return super()._noisy(query.name, query.values, stretch=query.stretch)

    def _kept(self, query: Query) -> np.ndarray:
        number = len(self.transcript.queries)
        if self.script is not None:
            if number >= len(self.script) or self.script[number].shape != query.shape:
                raise MechanismError(f"on a neighbour, draw {number + 1} is another one: {query.shape}")
            if query.release.dataset in self.scripted:
                query = _answered(query, self.script[number].output)
        self.transcript.queries.append(query)
        self.transcript.flow.append(query.shape)
        return np.array(query.output)


def _answered(query: Query, output: np.ndarray) -> Query:
    return Query(query.kind, query.release, query.values, output, query.stretch, query.size)


def real_noise(_: Transcript) -> Mapping[str, np.random.Generator]:
    return {dataset: secure_generator() for dataset in _BOTH}


@dataclass(frozen=True)
class Bench:
    """A mechanism with D, V and a model, at released weights.

    noise: the generators of a run, which may note their draws in its transcript. seed: of the blind coins, always the
    same.
    """

    plan: PrivacyPlan
    training: RecordSet
    validation: RecordSet
    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    classes: int
    learning_rate: float = 0.1
    seed: int = 7
    noise: Callable[[Transcript], Mapping[str, np.random.Generator]] = real_noise

    def run(
        self,
        *,
        rounds: int = 1,
        null: tuple[str, np.ndarray] | None = None,
        script: Sequence[Query] | None = None,
        scripted: Collection[str] = _BOTH,
    ) -> Transcript:
        """Select so many times. ``null``: the dataset, and the indices of records that are null: one unit's."""
        mechanism, coins = self.plan.mechanism, np.random.default_rng(self.seed)
        assert mechanism is not None
        selector = mechanism.build(self._context(coins, null))
        transcript = Transcript(Ledger(allowance=self.plan.entries()))
        generators = self.noise(transcript)
        weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        for _ in range(rounds):
            releases = Recorder(self.plan.releases(), charge=transcript.charge, generators=generators)
            releases.transcript, releases.script, releases.scripted = transcript, script, scripted
            transcript.pools.append(selector.select(weights, releases))
            weights = {name: 0.9 * value for name, value in weights.items()}  # as if trained further
        transcript.coins = repr(coins.bit_generator.state)
        return transcript

    def unit(self, dataset: str, number: int) -> np.ndarray:
        """Return the indices of one unit of privacy: a record, or all records of an owner."""
        owners = (self.training if dataset == TRAINING_DATA else self.validation).owners
        return np.array([number]) if owners is None else np.flatnonzero(owners.codes == number)

    def _context(self, coins: np.random.Generator, null: tuple[str, np.ndarray] | None) -> SelectionContext:
        model = copy.deepcopy(self.model)  # it is given other weights in every round

        def records(dataset: RecordSet, side: str) -> NullRecords:
            indices = null[1] if null is not None and null[0] == side else np.arange(0)
            return NullRecords(dataset, model, self.loss, "cpu", null=indices)

        return SelectionContext(
            plan=self.plan,
            training=records(self.training, TRAINING_DATA),
            validation=records(self.validation, VALIDATION_DATA) if self.plan.validation_is_read else None,
            num_classes=self.classes,
            learning_rate=self.learning_rate,
            coins=coins,
        )


def moved(with_record: Query, without: Query, null: np.ndarray) -> float:
    """Return how far zeroing a unit has moved a query, in units of what is charged: at most 1 in a sound build."""
    change = np.abs(with_record.values - without.values)
    if with_record.kind == "picks":
        frozen = isinstance(with_record.release.event, GumbelFreeze)
        if frozen and (len(null) > 1 or np.delete(change, null[null < len(change)]).any()):
            return float("inf")  # a freeze is charged for one score that moves
        return float(change.max()) / with_record.limit
    return float(np.linalg.norm(change)) / with_record.limit
