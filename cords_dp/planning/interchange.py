"""The events of a run as data for other programs: what `privacy.json` holds under ``events``, format 1.

``interchange.schema.json`` beside this file is its JSON Schema and docs/privacy-statement.md its description. Whoever
reads it needs neither the planner nor our accountants: `cords_dp/verify.py` does, and dp-accounting can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cords_dp.accounting import TEST_DATA, TRAINING_DATA, VALIDATION_DATA, Entry
from cords_dp.accounting.events import merge, to_dict
from cords_dp.planning.plan import PrivacyPlan
from cords_dp.planning.schedule import SELECTION, TRAINING

FORMAT, VERSION = "cords_dp privacy events", 1


def events_of(plan: PrivacyPlan) -> dict[str, Any]:
    """List the planned events of every data set, with its unit, size, ε and δ. Public values only.

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
