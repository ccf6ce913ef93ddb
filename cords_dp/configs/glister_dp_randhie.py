"""People with several records, by GLISTER-DP. ``python -m cords_dp data fetch randhie`` first."""

from cords_dp import config_for

config = config_for(
    "table",
    "GLISTERDP",
    dataset=dict(path="data/randhie.csv", schema="data/randhie.yaml", owner="zper"),
    dss_args=dict(fraction=0.5),
    privacy=dict(epsilon=3.0, records_per_owner=5),  # the experiment lasted five years
)
