"""Counts privacy: events, composition, calibration, a ledger per run, an account over runs. Knows no training."""

from cords_dp.accounting.account import Account, Reservation, ledger_under
from cords_dp.accounting.branches import BranchMaximum
from cords_dp.accounting.calibration import calibrate
from cords_dp.accounting.composition import (
    ACCOUNTANTS,
    Bound,
    advanced_composition,
    epsilon_bound,
    renyi_order,
    rough_epsilon,
)
from cords_dp.accounting.events import Event, register_event
from cords_dp.accounting.group import GROUP_SIZES, MOST_USEFUL, group_epsilons
from cords_dp.accounting.ledger import TEST_DATA, TRAINING_DATA, VALIDATION_DATA, Entry, Ledger, Witness
from cords_dp.accounting.picks import ExponentialPicks, GumbelFreeze, gumbel_hockey_stick
from cords_dp.accounting.poisson_gaussian import PoissonGaussian, gaussian
from cords_dp.accounting.renyi_filter import RenyiFilter
from cords_dp.accounting.repeat import LAWS, RepeatAndSelect, TrialLaw, renyi
from cords_dp.accounting.trade_off import MembershipRisk, membership_risk

__all__ = [
    "ACCOUNTANTS",
    "GROUP_SIZES",
    "LAWS",
    "MOST_USEFUL",
    "TEST_DATA",
    "TRAINING_DATA",
    "VALIDATION_DATA",
    "Account",
    "Bound",
    "BranchMaximum",
    "Entry",
    "Event",
    "ExponentialPicks",
    "GumbelFreeze",
    "Ledger",
    "MembershipRisk",
    "PoissonGaussian",
    "RenyiFilter",
    "RepeatAndSelect",
    "Reservation",
    "TrialLaw",
    "Witness",
    "advanced_composition",
    "calibrate",
    "epsilon_bound",
    "gaussian",
    "group_epsilons",
    "gumbel_hockey_stick",
    "ledger_under",
    "membership_risk",
    "register_event",
    "renyi",
    "renyi_order",
    "rough_epsilon",
]
