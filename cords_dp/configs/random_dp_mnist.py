"""MNIST: DP-SGD on a uniform subset."""

from cords_dp import config_for

config = config_for(
    "mnist",
    "RandomDP",
    dss_args=dict(fraction=0.1),
    privacy=dict(epsilon=3.0),
)
