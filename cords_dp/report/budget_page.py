"""``cords-dp budget --html``: one file with sliders for ε, k and n; no network, and no accounting in its script."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

from cords_dp.accounting import TRAINING_DATA, PoissonGaussian
from cords_dp.config.settings import SubsetSettings
from cords_dp.files import write_durably
from cords_dp.planning.budget import Budget
from cords_dp.planning.mechanism import Mechanism, SelectionNoise, registered_mechanisms
from cords_dp.planning.schedule import Shape, Sizes
from cords_dp.report.budget_grid import SPLITS, Grid, grid_error, noise_grid

_SHARES = tuple(0.01 * 100 ** (i / 24) for i in range(25))  # 1 % to all
_SIZES, _BATCH = 10_000_000, 1000  # large, so that rounding does not show in rates
_CHECKED = 12


def write_budget_page(budget: Budget, path: Path, grid: Grid | None = None) -> Path:
    """The page, beginning where the budget is. ``grid``: made for its δ, by default here, which takes half a minute."""
    grid = grid or noise_grid(budget.plan.delta)
    numbers = json.dumps(page_numbers(budget, grid), ensure_ascii=False).replace("</", "<\\/")
    page = files("cords_dp.report").joinpath("budget_page.html").read_text(encoding="utf-8")
    write_durably(path, page.replace("__NUMBERS__", numbers))
    return path


def page_numbers(budget: Budget, grid: Grid) -> dict[str, Any]:
    """Everything that the page's script reads."""
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
    """What the text says of the default mechanism, at the values that the page begins with."""
    row = next((row for row in budget.alternatives if row.label == "joint, align" and row.problem is None), None)
    return "" if row is None else f" (align, at the values that this page begins with: {100 * row.price:.1f} % in all)"


def rate_rows() -> list[dict[str, Any]]:
    """FullDP, every mechanism whose releases on D are Gaussian, RandomDP: how often B/n a record is drawn, by share."""
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
