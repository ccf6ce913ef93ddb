"""Private subset selection: GLISTER-DP's mechanisms, and scores of any kind."""

from cords_dp.selection.glister import GLISTERDPStrategy
from cords_dp.selection.match import MatchStrategy
from cords_dp.selection.scores import register_score
from cords_dp.selection.threshold import ThresholdStrategy
from cords_dp.selection.top_k import TopKStrategy

STRATEGIES = {
    "match": MatchStrategy,
    "threshold": ThresholdStrategy,
    "top_k": TopKStrategy,
    "exponential": GLISTERDPStrategy,
}

__all__ = ["STRATEGIES", "GLISTERDPStrategy", "MatchStrategy", "ThresholdStrategy", "TopKStrategy", "register_score"]
