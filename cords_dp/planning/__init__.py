"""Plans what a run will release and what it will cost, before any data is read."""

from cords_dp.planning.build import build_plan, price_of_selection
from cords_dp.planning.mechanism import (
    Mechanism,
    Release,
    SelectionNoise,
    mechanism_table,
    read_mechanism,
    register_mechanism,
    registered_mechanisms,
)
from cords_dp.planning.plan import Cost, PrivacyPlan
from cords_dp.planning.schedule import EpochPlan, Shape, Sizes, subset_schedule

__all__ = [
    "Cost",
    "EpochPlan",
    "Mechanism",
    "PrivacyPlan",
    "Release",
    "SelectionNoise",
    "Shape",
    "Sizes",
    "build_plan",
    "mechanism_table",
    "price_of_selection",
    "read_mechanism",
    "register_mechanism",
    "registered_mechanisms",
    "subset_schedule",
]
