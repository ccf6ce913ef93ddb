"""Everything that an extension needs: mechanisms, scores, strategies, sources, gradient modes, layer rules.

A strategy, a mechanism or a source is written with the names here and those of `cords_dp` alone, as docs/extending.md
shows. They stay as they are from one minor version to the next.

What an extension cannot do: draw noise that was not charged, draw batches, or log records. What it declares is
believed: the sensitivity of a release, and the divergences of an event.
"""

from cords_dp.accounting import (
    TRAINING_DATA,
    VALIDATION_DATA,
    BranchMaximum,
    Event,
    ExponentialPicks,
    GumbelFreeze,
    PoissonGaussian,
    gaussian,
    register_event,
)
from cords_dp.config import PrivacySettings, SubsetSettings
from cords_dp.config.values import Key, flag, number, one_of, text, whole
from cords_dp.data import (
    SPLIT_KEYS,
    Facts,
    LabelledStore,
    RecordSet,
    Source,
    Splits,
    Store,
    check_split,
    register_source,
    split_rows,
    split_store,
    unregister_source,
)
from cords_dp.data.record_set import array_set, category_codes, sequential_batches
from cords_dp.models.build import build_model, model_names, register_model
from cords_dp.models.features import register_features
from cords_dp.models.private import make_private_ready
from cords_dp.noise.primitives import pick_probabilities
from cords_dp.planning import EpochPlan, Mechanism, PrivacyPlan, Release, SelectionNoise, Sizes, register_mechanism
from cords_dp.planning.mechanism import unregister_mechanism
from cords_dp.planning.schedule import subset_schedule
from cords_dp.selection import Pool, Records, SelectionContext, Selector, register_score
from cords_dp.selection.context import Weights
from cords_dp.selection.last_layer import LastLayer, LastLayerGradients
from cords_dp.selection.releases import Releases
from cords_dp.selection.session import Selections
from cords_dp.selection.tables import CONCENTRATIONS, rising, table_ratios
from cords_dp.training.gradients import (
    GradientMode,
    gradient_modes,
    register_gradient_mode,
    unregister_gradient_mode,
)
from cords_dp.training.gradients.bookkeeping import register_layer_rule, unregister_layer_rule
from cords_dp.training.gradients.choose import try_modes
from cords_dp.training.gradients.mode import Clipping, Piece
from cords_dp.training.strategies import PoolSource, StrategyContext, register_strategy, unregister_strategy

__all__ = [
    "CONCENTRATIONS",
    "SPLIT_KEYS",
    "TRAINING_DATA",
    "VALIDATION_DATA",
    "BranchMaximum",
    "Clipping",
    "EpochPlan",
    "Event",
    "ExponentialPicks",
    "Facts",
    "GradientMode",
    "GumbelFreeze",
    "Key",
    "LabelledStore",
    "LastLayer",
    "LastLayerGradients",
    "Mechanism",
    "Piece",
    "PoissonGaussian",
    "Pool",
    "PoolSource",
    "PrivacyPlan",
    "PrivacySettings",
    "RecordSet",
    "Records",
    "Release",
    "Releases",
    "SelectionContext",
    "SelectionNoise",
    "Selections",
    "Selector",
    "Sizes",
    "Source",
    "Splits",
    "Store",
    "StrategyContext",
    "SubsetSettings",
    "Weights",
    "array_set",
    "build_model",
    "category_codes",
    "check_split",
    "flag",
    "gaussian",
    "gradient_modes",
    "make_private_ready",
    "model_names",
    "number",
    "one_of",
    "pick_probabilities",
    "register_event",
    "register_features",
    "register_gradient_mode",
    "register_layer_rule",
    "register_mechanism",
    "register_model",
    "register_score",
    "register_source",
    "register_strategy",
    "rising",
    "sequential_batches",
    "split_rows",
    "split_store",
    "subset_schedule",
    "table_ratios",
    "text",
    "try_modes",
    "unregister_gradient_mode",
    "unregister_layer_rule",
    "unregister_mechanism",
    "unregister_source",
    "unregister_strategy",
    "whole",
]
