"""Private subset selection: the mechanisms, and scores of any kind. Importing it registers those that come with us."""

from cords_dp.planning.mechanism import register_mechanism
from cords_dp.selection.align import Align
from cords_dp.selection.context import Records, SelectionContext, Selector
from cords_dp.selection.exponential import Exponential
from cords_dp.selection.labels import BalancedSoftmax, ClassWeights, GroupRates
from cords_dp.selection.match import Match
from cords_dp.selection.pool import Pool, checked_pool
from cords_dp.selection.scores import register_score
from cords_dp.selection.threshold import Threshold
from cords_dp.selection.top_k import TopK

# the first that suits a config is its default
for _mechanism in (Align, Match, Threshold, TopK, Exponential, ClassWeights, BalancedSoftmax, GroupRates):
    register_mechanism(_mechanism)

__all__ = [
    "Align",
    "BalancedSoftmax",
    "ClassWeights",
    "Exponential",
    "GroupRates",
    "Match",
    "Pool",
    "Records",
    "SelectionContext",
    "Selector",
    "Threshold",
    "TopK",
    "checked_pool",
    "register_score",
]
