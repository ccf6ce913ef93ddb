"""CIFAR-10: DP-SGD on a subset chosen privately by GLISTER-DP."""

from cords_dp import config_for

config = config_for(
    "cifar10",
    "GLISTERDP",
    dss_args=dict(fraction=0.1),
    privacy=dict(epsilon=3.0),
)
