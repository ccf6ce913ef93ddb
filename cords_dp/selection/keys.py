"""Keys of CORDS' GLISTER that several mechanisms share: their checks, and the release on V that they lead to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from cords_dp.accounting import VALIDATION_DATA, gaussian
from cords_dp.config.settings import PrivacySettings
from cords_dp.config.values import flag, whole
from cords_dp.errors import ConfigError
from cords_dp.planning.mechanism import Release, SelectionNoise
from cords_dp.selection.scores import ScoringKeys, get_score

_OWN_SCORE = "glister"


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
    get_score(mechanism.score)
    check_selection_type(mechanism.selection_type)
    if mechanism.score != _OWN_SCORE or mechanism.selection_type == "PerClass":
        raise ConfigError(
            "dss_args.mechanism",
            mechanism.name,
            f"{does} by itself; for another score or per-class quotas use 'threshold'",
        )


def check_scoring(mechanism: ScoringKeys) -> None:
    get_score(mechanism.score)
    check_selection_type(mechanism.selection_type)
    whole("dss_args.projection", mechanism.projection)
    flag("dss_args.linear_layer", mechanism.linear_layer)


def validation_gradient(name: str, noise: SelectionNoise, privacy: PrivacySettings, count: int = 1) -> Release:
    """The clipped gradient sum of V, released ``count`` times in a selection."""
    event = None if noise.on_validation is None else gaussian(noise.on_validation, count)
    clip = privacy.validation_clip
    return Release(name, VALIDATION_DATA, event, clip, f"the validation gradient; {clip:g} (clip norm)")


def check_selection_type(kind: str) -> None:
    """CORDS' ``selection_type``: what has a proved sensitivity."""
    if kind not in ("Supervised", "PerClass"):
        raise ConfigError(
            "dss_args.selection_type",
            kind,
            "no sensitivity is proved for it under differential privacy; use 'Supervised'",
        )
