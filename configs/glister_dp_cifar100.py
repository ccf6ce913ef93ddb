"""CIFAR-100: DP-SGD on a subset chosen privately by GLISTER-DP."""

from cords_dp.presets import config_for

config = config_for(
    "cifar100",
    "GLISTERDP",
    # informed selection does not help on balanced CIFAR yet (docs/results.md), so most of the pool is drawn by coins
    dss_args=dict(fraction=0.1, exploration=0.8),
    privacy=dict(epsilon=3.0),
)
