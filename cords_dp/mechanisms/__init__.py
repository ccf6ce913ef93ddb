"""Mechanisms: pure functions of arrays and a generator. No state, no training, no CORDS."""

from cords_dp.mechanisms.clipping import clip_factors, finite_or_zero, keep_rows
from cords_dp.mechanisms.exponential import ScoreFreeze, gumbel_top_m, pick_probabilities, proposed_picks
from cords_dp.mechanisms.gaussian import gaussian_release

__all__ = [
    "ScoreFreeze",
    "clip_factors",
    "finite_or_zero",
    "gaussian_release",
    "gumbel_top_m",
    "keep_rows",
    "pick_probabilities",
    "proposed_picks",
]
