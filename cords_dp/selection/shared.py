"""What several mechanisms share: keys of CORDS' GLISTER, releases on D and V, and drawing from all of D."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, Event, gaussian
from cords_dp.config.settings import PrivacySettings
from cords_dp.config.values import Key, flag, text, whole
from cords_dp.errors import ConfigError
from cords_dp.planning.mechanism import Mechanism, Release, SelectionNoise
from cords_dp.selection.pool import Pool
from cords_dp.selection.scores import get_score

_OWN_SCORE = "glister"


def _score(key: str, value: Any) -> Any:
    return get_score(text(key, value))


def _selection_type(key: str, value: Any) -> Any:
    """Check CORDS' ``selection_type``: only what has a proved sensitivity passes."""
    if value not in ("Supervised", "PerClass"):
        fix = "no sensitivity is proved for it under differential privacy; use 'Supervised'"
        raise ConfigError(key, value, fix)
    return value


SCORE = Key(_score, _OWN_SCORE, "what a record is worth: `glister`, `el2n`, `grad_norm`, or a registered one")
OWN_SCORE = Key(_score, _OWN_SCORE, "as in CORDS' GLISTER: only its own score")
SELECTION_TYPE = Key(_selection_type, "Supervised", "as in CORDS' GLISTER: all records together")
LINEAR_LAYER = Key(flag, True, "score by the last layer's weights too, not its bias alone")
PROJECTION = Key(whole, 8, "dimensions that the last layer's input is projected to; noise grows with them")
BINS = Key(partial(whole, low=2, high=4096), 128, "cells of the score histogram on [−1, 1]")


class WeighingKeys(Protocol):
    """The keys of a mechanism that decides by itself what a record is worth."""

    name: ClassVar[str]

    @property
    def score(self) -> str: ...
    @property
    def selection_type(self) -> str: ...


def wants_no_other_score(keys: Mapping[str, Any]) -> bool:
    return keys.get("score") in (None, _OWN_SCORE)


def check_weighing(mechanism: WeighingKeys, does: str) -> None:
    """Refuse another score and per-class quotas. ``does``: what the mechanism does instead."""
    if mechanism.score != _OWN_SCORE or mechanism.selection_type == "PerClass":
        raise ConfigError(
            "dss_args.mechanism",
            mechanism.name,
            f"{does} by itself; for another score or per-class quotas use 'threshold'",
        )


class ReleasedSubset:
    """The state of a selector whose pool is released and paid for: the pool itself."""

    _pool = Pool(np.zeros(0, dtype=np.int64))

    def state(self) -> dict[str, Any]:
        return {"subset": torch.from_numpy(self._pool.indices.copy())}

    def restore(self, state: dict[str, Any]) -> Pool:
        self._pool = Pool(state["subset"].numpy())
        return self._pool


def validation_gradient(name: str, noise: SelectionNoise, privacy: PrivacySettings, count: int = 1) -> Release:
    """Declare the clipped gradient sum of V, released ``count`` times in a selection."""
    clip = privacy.validation_clip
    words = f"the validation gradient; {clip:g} (clip norm)"
    return Release(name, VALIDATION_DATA, _on_validation(noise, count), clip, words)


def released_of_both(on_d: str, on_v: str, noise: SelectionNoise, words: str) -> tuple[Release, Release]:
    """Declare the same sum over D's records and over V's, each record's part of it at most 1 long."""
    return (
        Release(on_d, TRAINING_DATA, gaussian(noise.on_training), 1.0, words),
        Release(on_v, VALIDATION_DATA, _on_validation(noise), 1.0, words),
    )


def _on_validation(noise: SelectionNoise, count: int = 1) -> Event | None:
    return None if noise.on_validation is None else gaussian(noise.on_validation, count)


@dataclass(frozen=True, kw_only=True)
class DrawsFromAll(Mechanism):
    """Compares D with V by a few noisy sums; every step then draws from all of D, inside the training mechanism."""

    secret_pool: ClassVar[bool] = True
    sharded: ClassVar[bool] = True
    default_split: ClassVar[float] = 0.9
    privacy_keys: ClassVar[frozenset[str]] = frozenset({"split", "validation_noise"})

    @property
    def reads_validation(self) -> bool:
        return True

    def draws_from(self, n: int, k: int) -> int:
        return n

    def refuse_basic_composition(self, privacy: PrivacySettings) -> None:
        """Refuse it where branches are chosen by what was released."""
        if privacy.composition == "basic":
            fix = f"{self.name!r} is composed with training jointly; use 'joint'"
            raise ConfigError("privacy.composition", "basic", fix)
