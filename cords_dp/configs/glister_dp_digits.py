"""Scikit-learn's digits: DP-SGD on a subset chosen privately by GLISTER-DP."""

from cords_dp import config_for

config = config_for(
    "digits",
    "GLISTERDP",
    dss_args=dict(fraction=0.3),
    privacy=dict(epsilon=3.0),
)
