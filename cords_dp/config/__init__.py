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
from cords_dp.config.settings import HEAD_START, PACE, PrivacySettings, SubsetSettings
from cords_dp.config.values import Key, flag, folder, list_of, number, one_of, path, text, whole

__all__ = [
    "HEAD_START",
    "PACE",
    "PAPER_SELECTION",
    "Key",
    "PrivacySettings",
    "SubsetSettings",
    "apply_override",
    "config_digest",
    "config_for",
    "flag",
    "folder",
    "frozen_copy",
    "given_copy",
    "list_of",
    "load_config",
    "merge_into",
    "number",
    "one_of",
    "paper_model",
    "path",
    "text",
    "thawed_copy",
    "to_plain",
    "whole",
]
