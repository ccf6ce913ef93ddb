"""Your own table, here UCI's Adult: fetch it with ``python -m cords_dp data fetch adult``."""

from cords_dp import config_for

config = config_for(
    "table",
    "GLISTERDP",
    dataset=dict(path="data/adult.csv", test_path="data/adult-test.csv", schema="data/adult.yaml"),
    dss_args=dict(fraction=0.3),
    privacy=dict(epsilon=1.0),
)
