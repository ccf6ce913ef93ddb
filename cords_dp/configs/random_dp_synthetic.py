"""The synthetic shift set: DP-SGD on a uniform subset."""

from cords_dp import config_for

config = config_for(
    "synthetic",
    "RandomDP",
    dss_args=dict(fraction=0.3),
    privacy=dict(epsilon=3.0),
)
