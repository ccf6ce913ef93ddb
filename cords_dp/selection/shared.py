"""Keys of CORDS' GLISTER that several mechanisms share: their checks, and the release on V that they lead to."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Protocol

from cords_dp.accounting import VALIDATION_DATA, gaussian
from cords_dp.config.settings import PrivacySettings
from cords_dp.config.values import Key, flag, text, whole
from cords_dp.errors import ConfigError
from cords_dp.planning.mechanism import Release, SelectionNoise
from cords_dp.selection.scores import get_score

_OWN_SCORE = "glister"


def _score(key: str, value: Any) -> Any:
    return get_score(text(key, value))


def _selection_type(key: str, value: Any) -> Any:
    """CORDS' ``selection_type``: what has a proved sensitivity."""
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


def validation_gradient(name: str, noise: SelectionNoise, privacy: PrivacySettings, count: int = 1) -> Release:
    """The clipped gradient sum of V, released ``count`` times in a selection."""
    event = None if noise.on_validation is None else gaussian(noise.on_validation, count)
    clip = privacy.validation_clip
    return Release(name, VALIDATION_DATA, event, clip, f"the validation gradient; {clip:g} (clip norm)")
