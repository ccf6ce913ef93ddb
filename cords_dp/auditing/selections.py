"""White-box audits of what selections release: for every registered mechanism, every release, with real noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, ExponentialPicks, GumbelFreeze, PoissonGaussian
from cords_dp.auditing.findings import Finding
from cords_dp.auditing.replay import Worst, audit_structure, replay_selection
from cords_dp.auditing.trade_off import Counts, epsilon_at, least_share, rates_finding
from cords_dp.auditing.transcripts import Query, Recorder
from cords_dp.config import PrivacySettings, SubsetSettings
from cords_dp.noise.generators import secure_generator
from cords_dp.planning import Mechanism, PrivacyPlan, Release, build_plan, read_mechanism, registered_mechanisms
from cords_dp.selection.releases import Releases

_N, _N_VALIDATION, _FRACTION, _BATCH = 120, 60, 0.4, 48  # a batch of all k: calibrating its steps takes no time
_SELECTIONS, _FAR = 4, 0.95  # how many are tried, and how far in sensitivities is far enough
_MOST = 16.0  # times the charged ε₀: more is not worth computing
INFORMATIVE = 30.0  # an ε at which so few records are told apart: what is compared are branches, not noise


def mechanism_plan(kind: type[Mechanism], epsilon: float, keys: dict[str, Any], *, owned: bool = False) -> PrivacyPlan:
    """Plan a small run with a selection by this mechanism in each of two epochs, where it selects more than once.

    ``keys``: of ``dss_args``, where the config names it. ``owned``: the unit is an owner.
    """
    cap = 2 if owned else None
    privacy = PrivacySettings(epsilon=epsilon, delta=1e-5, accountant="rdp", records_per_owner=cap)
    subset = SubsetSettings(fraction=_FRACTION, select_every=1)
    own = keys if keys.get("mechanism") == kind.name else {}
    mechanism = read_mechanism({**own, "mechanism": kind.name}, privacy, subset)
    return build_plan(
        "GLISTERDP", privacy, subset, mechanism, epochs=2, batch_size=_BATCH, n=_N, n_validation=_N_VALIDATION
    )


def audit_selections(epsilon: float, keys: dict[str, Any], *, draws: int, owned: bool = False) -> list[Finding]:
    """Audit every release of every registered mechanism; where the unit is an owner, of all that count owners."""
    findings: list[Finding] = []
    for kind in _audited(owned=owned):
        findings += audit_mechanism(mechanism_plan(kind, epsilon, keys, owned=owned), draws=draws)
    return findings


def _audited(*, owned: bool) -> list[type[Mechanism]]:
    return [kind for kind in registered_mechanisms() if kind.counts_owners or not owned]


def audit_mechanism(plan: PrivacyPlan, *, draws: int) -> list[Finding]:
    """Audit every release of one selection, on the neighbours that move it farthest."""
    worst = worst_pairs(plan)
    return [_audit_release(plan, r, worst.get(r.name), draws) for r in plan.releases() if r.event is not None]


def worst_pairs(plan: PrivacyPlan) -> dict[str, Worst]:
    """Find the neighbours that move each release farthest, in up to four selections: some noise leaves few to move."""
    worst: dict[str, Worst] = {}
    for _ in range(_SELECTIONS):
        for name, found in replay_selection(plan)[0].items():  # what went wrong is `audit_structure`'s to tell
            if name not in worst or found.ratio > worst[name].ratio:
                worst[name] = found
        if worst and min(w.ratio for w in worst.values()) > _FAR:
            break
    return worst


def audit_structures(keys: dict[str, Any], *, owned: bool = False) -> list[Finding]:
    """Replay at a budget at which selections are informative, so that every branch is taken."""
    return [audit_structure(mechanism_plan(kind, INFORMATIVE, keys, owned=owned)) for kind in _audited(owned=owned)]


def _audit_release(plan: PrivacyPlan, release: Release, worst: Worst | None, draws: int) -> Finding:
    assert plan.mechanism is not None
    target = f"{plan.mechanism.name}: {release.name} ({release.dataset})"
    if worst is None:
        return Finding(target, "white box", None, None, "", violations=("no record moves it, or it is never drawn",))
    if worst.with_record.kind == "picks":
        return _audit_picks(plan, release, target, draws)
    assert isinstance(release.event, PoissonGaussian)
    event, copies = release.event.with_count(1), max(1, round(release.event.sigma))
    counts = _projected(plan, release, worst, draws, copies)
    seen = f"{counts.text()}, groups of {copies}, one {plan.privacy.unit} moves it by {worst.ratio:.3f} sensitivities"
    return rates_finding(target, "white box, trade-off", [event], counts, plan.delta, seen=seen, copies=copies)


def _releases(plan: PrivacyPlan, release: Release, generators: dict[str, Any]) -> Recorder:
    """Return the package's own `Releases` for one draw; what is charged is checked elsewhere."""
    return Recorder([release], charge=lambda *_: None, generators=generators, secure=plan.privacy.secure_noise)


def _generators() -> dict[str, Any]:
    return {TRAINING_DATA: secure_generator(), VALIDATION_DATA: secure_generator()}


# --- Gaussian releases -------------------------------------------------------------------------------------


def _projected(plan: PrivacyPlan, release: Release, worst: Worst, draws: int, copies: int) -> Counts:
    """Count where noisy outputs lie on the line between the neighbours, with ``copies`` of the record and without."""
    other, generators = worst.without.values, _generators()
    direction = worst.with_record.values - other
    group = replace(worst.with_record, values=other + copies * direction)
    threshold = float(((other + copies / 2 * direction) * direction).sum())

    def along(query: Query) -> float:
        return float((_releases(plan, release, generators).draw_again(query) * direction).sum())

    return Counts.above(threshold, *(np.array([along(q) for _ in range(draws)]) for q in (group, worst.without)))


# --- picks -------------------------------------------------------------------------------------------------


def _audit_picks(plan: PrivacyPlan, release: Release, target: str, draws: int) -> Finding:
    """Audit one pick of two records whose scores lie g·Δ apart: it falls on the higher with odds e^(g·ε₀/2).

    The odds show ε₀, whatever else the selection does: the claim is that of the whole event with the charged ε₀.
    """
    event, epsilon0 = release.event, release.epsilon0
    assert isinstance(event, (GumbelFreeze, ExponentialPicks))
    assert epsilon0 is not None
    far = max(1.0, 2 / epsilon0)
    scores, generators = np.array([far * release.sensitivity, 0.0]), _generators()
    single = replace(release, event=event.with_count(1))

    def picked() -> int:
        releases = Releases([single], charge=lambda *_: None, generators=generators)
        return int(releases.picks(release.name, scores, 1)[0])

    higher = sum(picked() == 0 for _ in range(draws))

    def bound(alpha: float) -> float:
        least = least_share(higher, draws, alpha)
        shown = min(2 * float(np.log(least / (1 - least))) / far, _MOST * epsilon0) if least > 0.5 else 0.0
        return epsilon_at([replace(event, epsilon0=event.epsilon0 * shown / epsilon0)], plan.delta) if shown else 0.0

    seen = f"the higher of two scores, {far:.0f} sensitivities apart, is picked {higher} times of {draws}"
    return Finding(target, "white box, odds", epsilon_at([event], plan.delta), plan.delta, seen, bound)
