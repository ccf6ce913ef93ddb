"""CIFAR-100: DP-SGD on all records."""

from cords_dp import config_for

config = config_for(
    "cifar100",
    "FullDP",
    privacy=dict(epsilon=3.0),
)
