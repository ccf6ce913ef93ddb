"""Writes ``cords-dp budget --html``: one file with sliders for ε, k and n; no network, and no accounting in its script.

Behind the sliders is training noise on a grid, interpolated, with a measured error. σ follows from ε, the sampling rate
q and the number of steps T (δ is the page's own), and from what selection takes of ε: nothing, or (1 − split)·ε.
Selections are Gaussian releases, which together are one Gaussian release whatever their number, so L does not matter.
Three grids of ln σ over (ln ε, ln q, ln T), each made by the rough accountant, an upper bound within a per cent;
between the points cubic interpolation in each direction (`interpolated`, and the same lines in the page's script).
`grid_error` compares it with the accountant at points between.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from cords_dp.accounting import TRAINING_DATA, Event, PoissonGaussian, calibrate, epsilon_bound, gaussian
from cords_dp.accounting.composition import ROUGH
from cords_dp.config.settings import SubsetSettings
from cords_dp.files import write_durably
from cords_dp.planning.budget import Budget
from cords_dp.planning.mechanism import Mechanism, SelectionNoise, registered_mechanisms
from cords_dp.planning.schedule import Shape, Sizes

_SHARES = tuple(0.01 * 100 ** (i / 24) for i in range(25))  # 1 % to all
_SIZES, _BATCH = 10_000_000, 1000  # large, so that rounding does not show in rates
_CHECKED = 12


def write_budget_page(budget: Budget, path: Path, grid: Grid | None = None) -> Path:
    """Write the page, beginning where the budget is. ``grid``: made for its δ; by default here, in half a minute."""
    grid = grid or noise_grid(budget.plan.delta)
    numbers = json.dumps(page_numbers(budget, grid), ensure_ascii=False).replace("</", "<\\/")
    page = files("cords_dp.report").joinpath("budget_page.html").read_text(encoding="utf-8")
    write_durably(path, page.replace("__NUMBERS__", numbers))
    return path


def page_numbers(budget: Budget, grid: Grid) -> dict[str, Any]:
    """Collect everything that the page's script reads."""
    shape, subset = budget.plan.shape, budget.plan.subset
    share = shape.k / shape.n if shape.k < shape.n else subset.compute_fraction
    error = grid_error(grid, _CHECKED)
    low, high = (math.exp(grid.axes[0][i]) for i in (0, -1))
    rates, steps = ([math.exp(axis[i]) for i in (0, -1)] for axis in grid.axes[1:])
    return {
        "delta": f"{grid.delta:.3g}",
        "splits": list(SPLITS),
        "axes": grid.axes,
        "values": grid.values.round(6).tolist(),
        "shares": _SHARES,
        "rows": rate_rows(),
        "limits": f"{rates[0]:.3g} to {rates[1]:.3g}, {steps[0]:.0f} to {steps[1]:.0f} steps",
        "ranges": {
            "epsilon": [low, high],
            "share": [_SHARES[0], 1.0],
            "n": [min(1000, shape.n), max(1_000_000, shape.n)],
        },
        "start": {
            "epsilon": min(max(budget.plan.privacy.epsilon, low), high),
            "share": min(max(share, _SHARES[0]), 1.0),
            "n": shape.n,
            "epochs": len(shape.epochs),
            "batch": shape.batch_size,
        },
        "remarks": (
            f"Interpolated between {grid.values.size} answers of the accountant (an upper bound within a per cent); at "
            f"{_CHECKED} random points between them it was off by at most {100 * error:.2f} %. Not in it: mechanisms "
            f"that choose between branches pay for that choice{_branch_price(budget)}, and where training and "
            "validation data differ they draw some records more often, with more noise. cords-dp budget has a run's "
            "own numbers."
        ),
    }


def _branch_price(budget: Budget) -> str:
    """Return what the text says of the default mechanism, at the values that the page begins with."""
    row = next((row for row in budget.alternatives if row.label == "joint, align" and row.problem is None), None)
    return "" if row is None else f" (align, at the values that this page begins with: {100 * row.price:.1f} % in all)"


def rate_rows() -> list[dict[str, Any]]:
    """List FullDP, mechanisms with Gaussian releases on D, and RandomDP: how often B/n a record is drawn, by share."""
    rows: list[dict[str, Any]] = [{"label": "FullDP, equal compute", "split": 1.0, "multiples": [1.0] * len(_SHARES)}]
    for kind in registered_mechanisms():
        mechanism = kind()
        if mechanism.default_split in SPLITS and _gaussian(mechanism):
            multiples = [_multiple(mechanism, share) for share in _SHARES]
            rows.append({"label": mechanism.name, "split": mechanism.default_split, "multiples": multiples})
    rows.append({"label": "RandomDP", "split": 1.0, "multiples": [1 / share for share in _SHARES]})
    return rows


def _sizes(share: float) -> Sizes:
    return Sizes(_SIZES, _SIZES // 9, int(share * _SIZES), _BATCH)


def _multiple(mechanism: Mechanism, share: float) -> float:
    sizes = _sizes(share)
    epochs = mechanism.schedule(sizes, SubsetSettings(fraction=share, select_every=1), 3)
    return Shape("", sizes, epochs).rate * sizes.n / sizes.batch_size


def _gaussian(mechanism: Mechanism) -> bool:
    from cords_dp.config.settings import PrivacySettings

    releases = mechanism.releases(SelectionNoise(1.0, 1.0), PrivacySettings(epsilon=1.0), _sizes(0.1))
    return all(isinstance(r.event, PoissonGaussian) for r in releases if r.dataset == TRAINING_DATA)


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
    """Compute every point by the rough accountant, to a ten-thousandth of ε, beginning at its neighbour's answer."""
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
    """Return what costs (1 − split)·ε by itself, as one release."""
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
    """Interpolate cubically in each direction through the four nearest knots; outside of the grid, on its face."""
    for axis, x in zip(axes, point, strict=True):
        x = min(max(x, axis[0]), axis[-1])
        first = min(max(int(np.searchsorted(axis, x)) - 2, 0), len(axis) - 4)
        knots = axis[first : first + 4]
        weights = [math.prod((x - b) / (a - b) for b in knots if b != a) for a in knots]
        values = np.tensordot(weights, values[first : first + 4], axes=1)
    return float(values)


def grid_error(grid: Grid, points: int = 12, seed: int = 0) -> float:
    """Return the largest relative error of σ at random points inside of the grid, against the accountant itself."""
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
