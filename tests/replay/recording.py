"""Selections under frozen noise, by the recorder of the audits (`auditing.transcripts`).

What Re:cord-play does (arXiv 2602.17454: the same randomness on two neighbours, control flow and inputs compared),
for this package. Beyond that tool: neighbours are true zero-out ones, later releases are compared *given equal
earlier ones*, which is what adaptive composition asks, and what is derived from the releases is compared for every
other record.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from builders import CE, Net

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA
from cords_dp.auditing.transcripts import Bench, Transcript
from cords_dp.data.record_set import RecordSet


class Frozen:
    """Stands in for a generator: the same numbers in every run, and a note of each draw."""

    def __init__(self, transcript: Transcript, dataset: str, loudness: float):
        self.transcript, self.dataset, self.loudness, self.draws = transcript, dataset, loudness, 0

    def _fixed(self, kind: str, shape: Any) -> np.random.Generator:
        self.draws += 1
        self.transcript.flow.append(("noise", self.dataset, kind, shape))
        return np.random.default_rng([self.draws, 7])

    def standard_normal(self, shape: Any) -> np.ndarray:
        return self.loudness * self._fixed("normal", shape).standard_normal(shape)

    def gumbel(self, size: Any) -> np.ndarray:
        return self._fixed("gumbel", size).gumbel(size=size)


def frozen_noise(transcript: Transcript, *, loudness: float) -> dict[str, Any]:
    return {side: Frozen(transcript, side, loudness) for side in (TRAINING_DATA, VALIDATION_DATA)}


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


def run(
    case: Case, *, null: int | None = None, null_in: str = TRAINING_DATA, script: Transcript | None = None
) -> Transcript:
    """All selections of the plan. With ``script`` the releases on ``null_in`` give what they gave there."""
    bench = Bench(
        case.plan,
        case.train,
        case.validation,
        case.model(),
        CE,
        case.classes,
        learning_rate=0.5,
        seed=case.seed,
        noise=partial(frozen_noise, loudness=case.loudness),
    )
    return bench.run(
        rounds=case.plan.shape.rounds,
        null=None if null is None else (null_in, np.array([null])),
        script=None if script is None else script.queries,
        scripted=(null_in,),
    )
