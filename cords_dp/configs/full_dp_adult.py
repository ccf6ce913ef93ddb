"""UCI's Adult, a table: DP-SGD on all records."""

from cords_dp import config_for

config = config_for(
    "uci_adult",
    "FullDP",
    privacy=dict(epsilon=1.0),
)
