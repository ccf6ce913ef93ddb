"""Draws the trade-off curves of a statement as an inline picture that needs no network, for pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM, _TOP = 250, 180, 42, 18, 34, 10
_COLORS = ("#2e5fa3", "#c2571a", "#2e7d4f")
_LEAST = -4  # of the logarithm of either rate


def trade_off_figure(measures: Sequence[Mapping[str, Any]]) -> str:
    """Draw, for every data set, the most that an attack can find against what it accuses wrongly; both logarithmic."""
    parts = [_axes(), _line(((10.0**_LEAST, 10.0**_LEAST), (1.0, 1.0)), "#999", dashed=True)]
    for place, row in enumerate(measures):
        color, curve = _COLORS[place % len(_COLORS)], row["trade_off"]
        points = [(float(fpr), tpr) for fpr, tpr in curve["true_positive_rates"].items()]
        parts.append(_line(points, color))
        mu = "" if curve["mu"] is None else f", μ = {curve['mu']:.2f}"
        # at the lower right: no curve lies below guessing
        y = _HEIGHT - _BOTTOM - 8 - 12 * (len(measures) - 1 - place)
        parts.append(
            f'<text x="{_WIDTH - _RIGHT - 6}" y="{y}" text-anchor="end" fill="{color}">{row["dataset"]}{mu}</text>'
        )
    words = "most true positives of a membership attack, by its false positives; dashed: guessing"
    return (
        f'<svg role="img" aria-label="{words}" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-size="9" font-family="sans-serif">{"".join(parts)}</svg>'
    )


def _x(rate: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (1 - math.log10(max(rate, 10.0**_LEAST)) / _LEAST)


def _y(rate: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * math.log10(max(rate, 10.0**_LEAST)) / _LEAST


def _line(points: Sequence[tuple[float, float]], color: str, *, dashed: bool = False) -> str:
    path = " ".join(f"{_x(a):.1f},{_y(b):.1f}" for a, b in points)
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.4"{dashes}/>'


def _axes() -> str:
    parts = []
    for power in range(_LEAST, 1):
        rate, label = 10.0**power, f"{100 * 10.0**power:g} %"
        parts.append(f'<text x="{_x(rate):.1f}" y="{_HEIGHT - 20}" text-anchor="middle" fill="#555">{label}</text>')
        parts.append(f'<text x="{_LEFT - 4}" y="{_y(rate) + 3:.1f}" text-anchor="end" fill="#555">{label}</text>')
        parts.append(_line(((rate, 10.0**_LEAST), (rate, 1.0)), "#e3e6ee"))
        parts.append(_line(((10.0**_LEAST, rate), (1.0, rate)), "#e3e6ee"))
    middle = (_x(10.0**_LEAST) + _x(1.0)) / 2
    words = "false positives; upwards: most true ones"
    parts.append(f'<text x="{middle:.1f}" y="{_HEIGHT - 5}" text-anchor="middle" fill="#555">{words}</text>')
    return "".join(parts)
