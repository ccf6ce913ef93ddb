"""Private subset selection: the mechanisms, and scores of any kind. Importing it registers those that come with us."""

from cords_dp.noise.primitives import tail_noise
from cords_dp.planning.mechanism import add_mechanism
from cords_dp.selection.align import Align
from cords_dp.selection.context import Records, SelectionContext, Selector, Weights
from cords_dp.selection.exponential import Exponential
from cords_dp.selection.last_layer import LastLayer, LastLayerGradients
from cords_dp.selection.likelihood import LabelLikelihood, class_given_label, of_class_shares, of_tables
from cords_dp.selection.pool import Pool, checked_pool
from cords_dp.selection.releases import Releases
from cords_dp.selection.scores import register_score
from cords_dp.selection.shared import (
    BINS,
    LINEAR_LAYER,
    OWN_SCORE,
    PROJECTION,
    SELECTION_TYPE,
    DrawsFromAll,
    check_weighing,
    released_of_both,
)
from cords_dp.selection.tables import CONCENTRATIONS, rising, table_ratios
from cords_dp.selection.threshold import Threshold
from cords_dp.selection.top_k import TopK

# the first that suits a config is its default
for _mechanism in (Align, Threshold, TopK, Exponential):
    add_mechanism(_mechanism)

__all__ = [
    "BINS",
    "CONCENTRATIONS",
    "LINEAR_LAYER",
    "OWN_SCORE",
    "PROJECTION",
    "SELECTION_TYPE",
    "Align",
    "DrawsFromAll",
    "Exponential",
    "LabelLikelihood",
    "LastLayer",
    "LastLayerGradients",
    "Pool",
    "Records",
    "Releases",
    "SelectionContext",
    "Selector",
    "Threshold",
    "TopK",
    "Weights",
    "check_weighing",
    "checked_pool",
    "class_given_label",
    "of_class_shares",
    "of_tables",
    "register_score",
    "released_of_both",
    "rising",
    "table_ratios",
    "tail_noise",
]
