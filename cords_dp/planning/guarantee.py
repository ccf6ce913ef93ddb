"""Says what a plan guarantees besides its own (ε, δ): in other measures, to whom, and as data for other programs.

Everything follows from the planned events, as the statement's own ε does. Public values only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cords_dp.accounting import TEST_DATA, TRAINING_DATA, VALIDATION_DATA, Entry, Event
from cords_dp.accounting.events import merge, to_dict
from cords_dp.accounting.trade_off import RATES, TradeOff, risk_of_bound, trade_off
from cords_dp.errors import AccountingError
from cords_dp.planning.plan import PrivacyPlan
from cords_dp.planning.schedule import SELECTION, TRAINING

_DELTAS = (1e-5, 1e-6)  # and 1/n², of each data set
_SHOWN = (0.1, 0.01, 0.001, 0.0001)


def rounded_up(epsilon: float) -> str:
    """Write ε with four decimals, never less than it is: a sentence that claims less would be wrong."""
    return f"{math.ceil(epsilon * 1e4 - 1e-6) / 1e4:.4f}" if math.isfinite(epsilon) else str(epsilon)


def measures_of(plan: PrivacyPlan, datasets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return ε at usual δ and the trade-off of every data set (`events_of` lists them).

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


# --- whom it protects ------------------------------------------------------------------------------------------------


def protected(plan: PrivacyPlan) -> list[str]:
    """List whose records the guarantee speaks of."""
    each, all_of_them = one_unit(plan), f"{plan.privacy.unit}s"
    words = [f"{each} of the training set D ({plan.shape.n:,} {all_of_them})"]
    if plan.sigma_validation is not None:
        words.append(f"{each} of the validation set V ({plan.shape.n_validation:,} {all_of_them})")
    elif not plan.validation_is_read and plan.shape.n_validation:
        words.append("the records of the validation set V, which no mechanism has read")
    if plan.sigma_test is not None:
        words.append(f"{each} of the test set T ({plan.shape.n_test:,} {all_of_them})")
    return words


def one_unit(plan: PrivacyPlan) -> str:
    """Say what one unit of privacy is."""
    return "every owner, with all of its records," if plan.privacy.unit == "owner" else "every single record"


def unprotected(plan: PrivacyPlan, *, tested: bool = True) -> list[str]:
    """List whom it does not protect, or less than the figures say. tested: are exact metrics of a test set shown?"""
    words = ["records of the test set: their exact metrics are shown"] if tested else []
    if plan.privacy.unit == "owner":
        words.append("a person under several names: each name has the ε of one owner")
    else:
        words.append(
            "people with several records: each record by itself is protected, the person less (see “Not covered”)"
        )
    if plan.validation_is_read and plan.privacy.validation == "public":
        words.insert(0, "records of the validation set V, which was declared public")
    if plan.privacy.exact_metrics:
        words.insert(0, "records of D and V whose exact metrics were switched on")
    if plan.subset.secret_subset:
        words.append("records of the subset, against anyone who learns which they are")
    return words


def relation_words(plan: PrivacyPlan) -> str:
    """Compare zero-out with add/remove and with replace-one, in two sentences.

    Replacing a record is two steps of zero-out, to the null record and from there to the other one; by the triangle
    inequality of (ε, δ) they are (2ε, (1 + e^ε)·δ). Add/remove differs in that n is private; the events, and so their
    bounds, are the same, except where indices are picked: an absent record has none.
    """
    cost, unit = plan.cost(), plan.privacy.unit
    if plan.mechanism is None or plan.mechanism.secret_pool:
        removed = (
            f"Add/remove, under which the {unit} is absent instead of null, charges the same events and gives the same "
            f"ε and δ; it would also hide the number of {unit}s, which is public here."
        )
    else:
        removed = (
            "Add/remove, under which the record is absent instead of null, has no counterpart here: the number of "
            "records is public, and a subset is picked from all of their indices."
        )
    delta = min(1.0, (1 + math.exp(min(cost.epsilon, 700.0))) * cost.delta)
    other = "another record takes its place" if unit == "record" else "other records take the place of an owner's"
    single = (
        " That a single record of an owner with several is changed or left out is such a case; no smaller ε is proved "
        "for it, since an owner's records are clipped together. For an owner of one record the figures above hold."
    )
    return (
        f"{removed} Replace-one, under which {other}, is two steps of zero-out: what follows "
        f"for it is ε = {2 * cost.epsilon:.4f} and δ = {delta:.3g}, not the figures above."
    ) + (single if unit == "owner" else "")


# --- as data for other programs --------------------------------------------------------------------------------------

# ``interchange.schema.json`` beside this file is its JSON Schema and docs/privacy-statement.md its description. Whoever
# reads it needs neither the planner nor our accountants: `cords_dp/verify.py` does, and dp-accounting can.
FORMAT, VERSION = "cords_dp privacy events", 1


def events_of(plan: PrivacyPlan) -> dict[str, Any]:
    """List the planned events of every data set, with its unit, size, ε and δ: ``events`` in `privacy.json`, format 1.

    Events of one part compose jointly at the part's δ; the ε and the δ of the parts of a data set add up
    (``composition="basic"`` has two parts, otherwise there is one). ``inclusion``: γ of a secret subset, else 1: a part
    with ε′ at δ/γ costs ln(1 + γ·(e^ε′ − 1)) at δ.
    """
    names = dict.fromkeys(entry.dataset for entry in plan.entries())
    return {"format": FORMAT, "version": VERSION, "datasets": [_dataset(plan, name) for name in names]}


def _dataset(plan: PrivacyPlan, name: str) -> dict[str, Any]:
    entries = [entry for entry in plan.entries() if entry.dataset == name]
    bound, shape = plan.cost().of_sets[name], plan.shape
    sizes = {TRAINING_DATA: shape.n, VALIDATION_DATA: shape.n_validation, TEST_DATA: shape.n_test}
    return {
        "dataset": name,
        "unit": getattr(plan.privacy, "unit", "record"),
        "units": sizes.get(name),
        "epsilon": bound.epsilon,
        "delta": bound.delta,
        "inclusion": plan.inclusion if name == TRAINING_DATA else 1.0,
        "parts": [{"delta": delta, "events": _listed(part)} for delta, part in _parts(plan, name, entries) if part],
    }


def _parts(plan: PrivacyPlan, name: str, entries: list[Entry]) -> list[tuple[float, list[Entry]]]:
    if plan.privacy.composition != "basic" or name != TRAINING_DATA:
        return [(plan.delta, entries)]
    picking = [entry for entry in entries if entry.phase == SELECTION]
    training = [entry for entry in entries if entry.phase != SELECTION]
    return [(plan.phase_delta(TRAINING), training), (plan.phase_delta(SELECTION), picking)]


def _listed(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Count equal events of a phase together."""
    phases = dict.fromkeys(entry.phase for entry in entries)
    return [
        {"phase": phase, "event": to_dict(event)}
        for phase in phases
        for event in merge(entry.event for entry in entries if entry.phase == phase)
    ]
