"""Private subset selection: GLISTER-DP's three mechanisms, and scores of any kind."""

from cords_dp.selection.glister import GLISTERDPStrategy
from cords_dp.selection.scores import register_score
from cords_dp.selection.threshold import ThresholdStrategy
from cords_dp.selection.top_k import TopKStrategy

STRATEGIES = {"exponential": GLISTERDPStrategy, "threshold": ThresholdStrategy, "top_k": TopKStrategy}

__all__ = ["STRATEGIES", "GLISTERDPStrategy", "ThresholdStrategy", "TopKStrategy", "register_score"]
