"""The guarantee of a run in other measures than its own (ε, δ): in numbers, words, a picture and registries' fields.

Everything follows from the planned events, as the statement's own ε does. Public values only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cords_dp.accounting import Event
from cords_dp.accounting.trade_off import RATES, TradeOff, risk_of_bound, trade_off
from cords_dp.errors import AccountingError
from cords_dp.planning.plan import PrivacyPlan

_DELTAS = (1e-5, 1e-6)  # and 1/n², of each data set
_SHOWN = (0.1, 0.01, 0.001, 0.0001)


def rounded_up(epsilon: float) -> str:
    """Write ε with four decimals, never less than it is: a sentence that claims less would be wrong."""
    return f"{math.ceil(epsilon * 1e4 - 1e-6) / 1e4:.4f}" if math.isfinite(epsilon) else str(epsilon)


def measures_of(plan: PrivacyPlan, datasets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return ε at usual δ and the trade-off of every data set (`interchange.events_of` lists them).

    ``trade_off`` has mu = None where no privacy loss distribution is at hand (RDP, which is chosen for speed; secret
    subsets; picks): the curve then follows from ε and δ alone.
    """
    return [_measures(plan, data) for data in datasets]


def _measures(plan: PrivacyPlan, data: Mapping[str, Any]) -> dict[str, Any]:
    events = [entry.event for entry in plan.entries() if entry.dataset == data["dataset"]]
    deltas = [*_DELTAS, *([1 / data["units"] ** 2] if data["units"] else [])]
    curve = _trade_off(plan, events) or _from_bound(data["epsilon"], data["delta"])
    rates = curve["true_positive_rates"]
    return {
        "dataset": data["dataset"],
        "epsilon_at": [{"delta": delta, "epsilon": _epsilon_at(plan, events, delta, data)} for delta in deltas],
        "true_positive_rate_at": [
            {"false_positive_rate": rate, "true_positive_rate": rates[f"{rate:g}"]} for rate in _SHOWN
        ],
        "trade_off": curve,
    }


def _epsilon_at(plan: PrivacyPlan, events: Sequence[Event], delta: float, data: Mapping[str, Any]) -> float | None:
    """Bound ε at another δ, where an accountant can; at the plan's own δ it is the plan's own ε."""
    if delta == data["delta"]:
        return float(data["epsilon"])
    try:
        return plan.epsilon_at(events, delta, data["inclusion"])
    except AccountingError:
        return None


def _trade_off(plan: PrivacyPlan, events: Sequence[Event]) -> dict[str, Any] | None:
    if plan.privacy.accountant == "rdp" or plan.inclusion < 1:
        return None
    try:
        found: TradeOff = trade_off(events)
    except (AccountingError, ValueError, MemoryError):
        return None
    return _curve(found.mu, found.slack, found.regret, found.true_positive_rates, "privacy loss distribution")


def _from_bound(epsilon: float, delta: float) -> dict[str, Any]:
    risk = risk_of_bound(epsilon, delta, RATES)
    return _curve(None, None, None, risk.true_positive_rates, risk.source)


def _curve(
    mu: float | None, slack: float | None, regret: float | None, rates: Sequence[float], source: str
) -> dict[str, Any]:
    """Return a curve in JSON's terms; its true-positive rates stand under the false-positive ones."""
    named = {f"{fpr:g}": tpr for fpr, tpr in zip(RATES, rates, strict=True)}
    return {"mu": mu, "slack": slack, "regret": regret, "source": source, "true_positive_rates": named}


def measure_lines(measures: Sequence[Mapping[str, Any]], *, brief: bool = False) -> list[str]:
    """Say each data set's measures in a sentence; ``brief`` leaves the rates to a picture."""
    rates = [""] * len(measures) if brief else [f"; {_rates(row)}" for row in measures]
    return [f"{row['dataset']}: {_words(row)}{more}." for row, more in zip(measures, rates, strict=True)]


def _words(row: Mapping[str, Any]) -> str:
    curve, known = row["trade_off"], [at for at in row["epsilon_at"] if at["epsilon"] is not None]
    epsilons = ", ".join(f"ε = {rounded_up(at['epsilon'])} at δ = {at['delta']:.3g}" for at in known)
    if any(at["epsilon"] < known[0]["epsilon"] for at in known if at["delta"] < known[0]["delta"]):
        epsilons += " (the smaller δ composed jointly, the first as the plan has it)"
    if curve["mu"] is None:
        return epsilons
    return f"Gaussian DP with μ = {curve['mu']:.4f} up to {curve['slack']:g} (regret {curve['regret']:.4f}); {epsilons}"


def _rates(row: Mapping[str, Any]) -> str:
    rates = ", ".join(
        f"{100 * at['true_positive_rate']:.3g} % at {100 * at['false_positive_rate']:g} %"
        for at in row["true_positive_rate_at"]
    )
    return f"true positives of an attack at most {rates} false positives"


def registry_fields(report: Mapping[str, Any]) -> dict[str, str]:
    """Fill in what a registry of deployments asks for (Nanayakkara, Ghazi & Vadhan 2025), from a statement's facts.

    What the run does not know (who deployed it, for which use, for how long) is left to whoever registers it.
    """
    about = report.get("about") or {}
    data, versions = about.get("data") or {}, about.get("versions") or {}
    mus = [row["trade_off"]["mu"] for row in report["measures"]]
    known = "" if not mus or None in mus else f"; Gaussian DP with μ = {max(mus):.4f}"
    names = ("cords-dp", "dp-accounting", "prv-accountant", "opacus")
    software = ", ".join(f"{name} {versions[name]}" for name in names if name in versions)
    sets = "; ".join(
        f"{d['dataset']}: one {d['unit']}" + (f" of {d['units']:,}" if d["units"] else "")
        for d in report["events"]["datasets"]
    )
    fields = {
        "data product": "a machine-learning model, released once",
        "dataset": str(data.get("name") or ""),
        "date": str(about.get("date") or ""),
        "flavor": f"approximate DP{known}",
        "privacy loss": f"ε = {rounded_up(report['epsilon'])}, δ = {report['delta']:.3g}",
        "privacy unit": sets,
        "neighbouring relation": "zero-out (REPLACE_SPECIAL in dp-accounting); the number of units is public",
        "model": "central; those who train are trusted",
        "mechanisms": ", ".join(dict.fromkeys(row["mechanism"].partition(",")[0] for row in report["mechanisms"])),
        "accounting": f"{report['accountant']}, {report['composition']} composition; per run",
        "implementation": software,
        "verification": "cords-dp verify, on the folder of the run",
    }
    return {name: value for name, value in fields.items() if value}


# --- as a picture ----------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM, _TOP = 250, 180, 42, 18, 34, 10
_COLORS = ("#2e5fa3", "#c2571a", "#2e7d4f")
_LEAST = -4  # of the logarithm of either rate


def trade_off_figure(measures: Sequence[Mapping[str, Any]]) -> str:
    """Draw, for every data set, the most that an attack can find against what it accuses wrongly; both logarithmic.

    The picture stands inside of a page and needs no network.
    """
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
