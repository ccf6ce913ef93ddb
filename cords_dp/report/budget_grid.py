"""The numbers behind the page with sliders: training noise on a grid, and how far interpolation is off.

σ follows from ε, the sampling rate q and the number of steps T (δ is the page's own), and from what selection takes of
ε: nothing, or (1 − split)·ε. Selections are Gaussian releases, which together are one Gaussian release whatever their
number, so L does not matter. Three grids of ln σ over (ln ε, ln q, ln T), each made by the rough accountant, an upper
bound within a per cent; between the points cubic interpolation in each direction (`interpolated`, and the same lines
in the page's script). `grid_error` compares it with the accountant at points between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from cords_dp.accounting import Event, PoissonGaussian, calibrate, epsilon_bound, gaussian
from cords_dp.accounting.composition import ROUGH

SPLITS = (1.0, 0.9, 0.8)  # the share of ε for training: no selection, and what mechanisms leave
_EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
_RATES = (0.004, 0.012, 0.036, 0.11, 0.33, 1.0)
_STEPS = (10, 32, 100, 316, 1000)


@dataclass(frozen=True)
class Grid:
    """ln σ at every (split, ε, q, T), and the axes' logarithms."""

    delta: float
    axes: tuple[tuple[float, ...], ...]
    values: np.ndarray

    def sigma(self, split: float, epsilon: float, rate: float, steps: float) -> float:
        point = [math.log(value) for value in (epsilon, rate, steps)]
        return math.exp(interpolated(self.axes, self.values[SPLITS.index(split)], point))


def noise_grid(
    delta: float,
    epsilons: Sequence[float] = _EPSILONS,
    rates: Sequence[float] = _RATES,
    steps: Sequence[int] = _STEPS,
) -> Grid:
    """Every point by the rough accountant, to a ten-thousandth of ε; each search begins at its neighbour's answer."""
    values = np.empty((len(SPLITS), len(epsilons), len(rates), len(steps)))
    start = 2.0
    for i, epsilon in enumerate(epsilons):
        for s, split in enumerate(SPLITS):
            selection = selection_events(epsilon, split, delta)
            for j, rate in enumerate(rates):
                for t, count in enumerate(steps):
                    start = sigma_of(epsilon, rate, count, delta, selection, start=start)
                    values[s, i, j, t] = math.log(start)
    axes = tuple(tuple(math.log(value) for value in axis) for axis in (epsilons, rates, steps))
    return Grid(delta, axes, values)


def selection_events(epsilon: float, split: float, delta: float) -> list[Event]:
    """What costs (1 − split)·ε by itself, as one release."""
    if split == 1:
        return []

    def cost_of(noise: float) -> float:
        return epsilon_bound([gaussian(noise)], delta, ROUGH).epsilon

    target = (1 - split) * epsilon
    return [gaussian(calibrate(cost_of, target, start=4 / target, rising=False, lowest=0.999))]


def sigma_of(
    epsilon: float, rate: float, steps: int, delta: float, selection: list[Event], *, start: float = 2.0
) -> float:
    def cost_of(sigma: float) -> float:
        return epsilon_bound([*selection, PoissonGaussian(sigma, rate, steps)], delta, ROUGH).epsilon

    return calibrate(cost_of, epsilon, start=start, rising=False, lowest=0.9999)


def interpolated(axes: Sequence[Sequence[float]], values: np.ndarray, point: Sequence[float]) -> float:
    """Cubic in each direction through the four nearest knots; outside of the grid its nearest face."""
    for axis, x in zip(axes, point, strict=True):
        x = min(max(x, axis[0]), axis[-1])
        first = min(max(int(np.searchsorted(axis, x)) - 2, 0), len(axis) - 4)
        knots = axis[first : first + 4]
        weights = [math.prod((x - b) / (a - b) for b in knots if b != a) for a in knots]
        values = np.tensordot(weights, values[first : first + 4], axes=1)
    return float(values)


def grid_error(grid: Grid, points: int = 12, seed: int = 0) -> float:
    """The largest relative error of σ at random points inside of the grid, against the accountant itself."""
    rng = np.random.default_rng(seed)
    between = partial(_between, rng)
    worst = 0.0
    for number in range(points):
        split = SPLITS[number % len(SPLITS)]
        epsilon, rate, steps = (math.exp(between(axis)) for axis in grid.axes)
        guess = grid.sigma(split, epsilon, rate, round(steps))
        exact = sigma_of(
            epsilon, rate, round(steps), grid.delta, selection_events(epsilon, split, grid.delta), start=guess
        )
        worst = max(worst, abs(guess / exact - 1))
    return worst


def _between(rng: np.random.Generator, axis: Sequence[float]) -> float:
    return float(rng.uniform(axis[0], axis[-1]))
