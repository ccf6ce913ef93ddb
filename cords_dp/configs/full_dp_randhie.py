"""People with several records: DP-SGD whose unit is a person. ``python -m cords_dp data fetch randhie`` first."""

from cords_dp import config_for

config = config_for(
    "table",
    "FullDP",
    dataset=dict(path="data/randhie.csv", schema="data/randhie.yaml", owner="zper"),
    privacy=dict(epsilon=3.0, records_per_owner=5),  # the experiment lasted five years
)
