"""The synthetic shift set: DP-SGD on all records."""

from cords_dp import config_for

config = config_for(
    "synthetic",
    "FullDP",
    privacy=dict(epsilon=3.0),
)
