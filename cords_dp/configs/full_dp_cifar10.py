"""CIFAR-10: DP-SGD on all records."""

from cords_dp import config_for

config = config_for(
    "cifar10",
    "FullDP",
    privacy=dict(epsilon=3.0),
)
