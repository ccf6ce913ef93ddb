"""Privacy profiles δ(ε) of PLDs, one direction at a time: the only reader of dp-accounting's private fields."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf, PLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import signal

from cords_dp.accounting.events import PLD_STEP


def directions(pld: PrivacyLossDistribution) -> tuple[PLDPmf, PLDPmf]:
    """The losses of (record present, absent) and of (absent, present); one object where they are equal."""
    return pld._pmf_remove, pld._pmf_add


def knots(pmf: PLDPmf) -> tuple[np.ndarray, np.ndarray]:
    """All ε at which the profile bends, and δ there. Between them δ is linear in e^ε."""
    dense = pmf.to_dense_pmf()
    lower, upper = dense._lower_loss, dense._lower_loss + dense.size - 1
    return np.arange(lower, upper + 1) * PLD_STEP, profile(dense, lower, upper)


def pointwise_maximum(pmfs: Sequence[PLDPmf]) -> DensePLDPmf:
    """The pessimistic PLD whose profile lies on or above the profile of each of ``pmfs``, at every ε.

    Formal guarantee: the profiles are piecewise linear in x = e^ε with knots on the grid. Their maximum is convex,
    so the chords between its values at the knots (and 1 at x = 0) lie on or above it: connect the dots (Doroshenko et
    al. 2022). With T = Δ − Δ(∞) and step h, the mass above knot k is (T_k − e^{−h}·T_{k+1})/(1 − e^{−h}).
    Negative FFT residues count as 0 and the mass above a knot never falls below that of the next, both upwards; what is
    left is the rounding of float64 sums, some 1e-12 of δ.
    """
    dense = [pmf.to_dense_pmf() for pmf in pmfs]
    lower = min(pmf._lower_loss for pmf in dense)
    upper = max(pmf._lower_loss + pmf.size - 1 for pmf in dense)
    infinity = max(pmf._infinity_mass for pmf in dense)
    finite = np.max([profile(pmf, lower, upper) for pmf in dense], axis=0) - infinity
    decay, gain = math.exp(-PLD_STEP), -math.expm1(-PLD_STEP)
    finite = np.maximum(finite, 0.0)
    above = np.append((finite[:-1] - decay * finite[1:]) / gain, 0.0)
    above = np.maximum.accumulate(above[::-1])[::-1]
    above = np.clip(above, 0.0, 1.0 - infinity)
    probabilities = np.append(1.0 - infinity - above[0], above[:-1] - above[1:])
    return DensePLDPmf(PLD_STEP, lower, probabilities, infinity, True)


def profile(pmf: DensePLDPmf, lower: int, upper: int) -> np.ndarray:
    """δ at the grid points ``lower … upper``, by a recursion in which nothing cancels.

    T_k = Σ_{j>k} p_j·(1 − e^{(k−j)h}) obeys T_k = e^{−h}·T_{k+1} + (1 − e^{−h})·Σ_{j>k} p_j.
    """
    masses = np.zeros(upper - lower + 1)
    start = pmf._lower_loss - lower
    masses[start : start + pmf.size] = np.maximum(pmf._probs, 0.0)
    from_above = np.cumsum(masses[::-1])
    above = np.append(0.0, from_above[:-1])  # strictly above each knot, from the top down
    decay, gain = math.exp(-PLD_STEP), -math.expm1(-PLD_STEP)
    return pmf._infinity_mass + signal.lfilter([gain], [1.0, -decay], above)[::-1]
