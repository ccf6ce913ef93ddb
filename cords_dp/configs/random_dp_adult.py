"""UCI's Adult, a table: DP-SGD on a random subset."""

from cords_dp import config_for

config = config_for(
    "uci_adult",
    "RandomDP",
    dss_args=dict(fraction=0.3),
    privacy=dict(epsilon=1.0),
)
