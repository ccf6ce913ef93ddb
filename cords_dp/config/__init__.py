"""Reads CORDS' config files into checked settings. Knows no training."""

from cords_dp.config.files import (
    apply_override,
    config_digest,
    frozen_copy,
    given_copy,
    load_config,
    thawed_copy,
    to_plain,
)
from cords_dp.config.presets import PAPER_SELECTION, config_for, merge_into, paper_model
from cords_dp.config.settings import PrivacySettings, SubsetSettings

__all__ = [
    "PAPER_SELECTION",
    "PrivacySettings",
    "SubsetSettings",
    "apply_override",
    "config_digest",
    "config_for",
    "frozen_copy",
    "given_copy",
    "load_config",
    "merge_into",
    "paper_model",
    "thawed_copy",
    "to_plain",
]
