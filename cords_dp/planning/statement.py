"""The privacy statement of a run: what is guaranteed, in which sense, and what is not."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cords_dp.accounting import MOST_USEFUL, TRAINING_DATA, Bound, Event, Ledger, MembershipRisk, membership_risk
from cords_dp.accounting.events import to_dict
from cords_dp.accounting.trade_off import risk_of_bound
from cords_dp.files import write_durably
from cords_dp.planning.build import price_of_selection
from cords_dp.planning.guarantee import (
    events_of,
    measure_lines,
    measures_of,
    protected,
    registry_fields,
    relation_words,
    rounded_up,
    unprotected,
)
from cords_dp.planning.plan import PrivacyPlan, before_amplification
from cords_dp.planning.schedule import TRAINING, VALIDATION
from cords_dp.planning.statement_page import about_rows, other_totals, statement_page

STATEMENT = ("privacy.json", "privacy.md", "privacy.html")
TEST_METRICS = "metrics of the test set, which is taken as public"
_SEVERAL_RECORDS = (
    "people with several records as if they had one: for k records of one of the sets, (k·ε, k·e^((k−1)·ε)·δ) is what "
    "follows from this guarantee alone; the statement of a run has ε for them at the same δ"
)
NOT_COVERED = (
    "choosing hyper-parameters by looking at results on the same private data (cords_dp tune pays for that)",
    "side channels of floating-point arithmetic",
    "the time and memory that the run took",
    "cached features of private records, which lie in plain files below the data directory",
    "exact metrics of private records, if they were switched on",
    TEST_METRICS,
    _SEVERAL_RECORDS,
    "other runs: ε is per run, and runs on the same records add up (privacy.account keeps the total)",
)


_NOT_PRIVATE = (
    "NOT PRIVATE: privacy.reproducible_noise computes the noise from the seed, which config.yaml and result.json hold, "
    "so anyone who reads them can take the noise away. With noise from the operating system the following would hold. "
)


def privacy_report(
    plan: PrivacyPlan,
    ledger: Ledger,
    *,
    unused_keys: Sequence[str] = (),
    about: Mapping[str, Any] | None = None,
    tested: bool = True,
) -> dict[str, Any]:
    """Collect everything that ``privacy.json`` holds. Public values only.

    about: which data, when, with which versions, which model and account (`training.provenance`). tested: does the run
    show exact metrics of a test set? An estimator's fit shows none, a private test set's are released and charged.
    """
    known = {} if about is None else {"about": dict(about)}
    if plan.noiseless:
        return {
            "private": False,
            "statement": "NOT PRIVATE: epsilon = inf (or None). This run gives no privacy guarantee.",
            **known,
        }
    planned, charged, events = plan.cost(), plan.spent(ledger), events_of(plan)
    report = {
        "private": not plan.privacy.reproducible_noise,
        "statement": _NOT_PRIVATE * plan.privacy.reproducible_noise + _guarantee(plan, tested=tested),
        "unit": f"{_unit(plan)} of the training set D{_also(plan, ' or of the ', ' V', ' T')}",
        "protects": protected(plan),
        "does_not_protect": unprotected(plan, tested=tested),
        "neighbouring_relation": _RELATIONS[plan.privacy.unit],
        "other_relations": relation_words(plan),
        "epsilon_allowed": plan.privacy.epsilon,
        # what was charged can exceed the plan only if the plan was changed by hand; then it is what counts
        "epsilon": max(planned.epsilon, charged.epsilon),
        "delta": planned.delta,
        "epsilon_training_data": planned.training_data.epsilon,
        "epsilon_validation_data": planned.validation_data.epsilon if planned.validation_data else None,
        "epsilon_test_data": planned.test_data.epsilon if planned.test_data else None,
        "accountant": planned.training_data.accountant,
        "composition": plan.privacy.composition,
        "phases": {name: _bound(bound) for name, bound in planned.phases.items()},
        "charged_so_far": {"epsilon": charged.epsilon, "delta": charged.delta},
        "meaning": _risk(plan).text(plan.privacy.unit),
        "membership_risk": _risk(plan).to_dict(),
        "nist_sp_800_226": _evaluation_fields(plan),
        "validation_set": _validation_sentence(plan),
        "published_subset": _published_sentence(plan),
        "price_of_selection": price_sentence(plan),
        "several_records_of_one_person": group_rows(plan),
        "mechanisms": mechanism_rows(plan),
        "unused_keys": list(unused_keys),
        "ledger": ledger.to_dict(),
        "plan": plan.facts(),
        "events": events,
        "measures": measures_of(plan, events["datasets"]),
        "not_covered": _not_covered(plan, tested=tested),
        "exact_metrics_of_private_records": plan.privacy.exact_metrics,
        **known,
    }
    return {**report, "dp_deployments_registry": registry_fields(report)}


def write_statement(folder: Path, report: dict[str, Any]) -> str:
    """Write a report as privacy.json, as privacy.md and as a page to print, privacy.html; return privacy.md."""
    data, text, page = STATEMENT
    markdown = privacy_markdown(report)
    write_durably(folder / data, json.dumps(report, indent=2))
    write_durably(folder / text, markdown)
    write_durably(folder / page, statement_page(report))
    return markdown


def privacy_markdown(report: dict[str, Any]) -> str:
    """Render ``privacy.md``: the same facts for a reader."""
    if "mechanisms" not in report:  # no noise at all
        return f"# Privacy\n\n{report['statement']}\n"
    lines = ["# Privacy", "", report["statement"], "", *_about_lines(report), "## What was done", ""]
    lines += ["| phase | mechanism | parameters | count |", "|---|---|---|---|"]
    for m in report["mechanisms"]:
        lines.append(f"| {m['phase']} | {m['mechanism']} | {m['parameters']} | {m['count']} |")
    lines += ["", "## What it cost", "", "| phase, taken alone | ε | δ | accountant |", "|---|---|---|---|"]
    for phase, bound in report["phases"].items():
        lines.append(f"| {phase} | {bound['epsilon']:.4f} | {bound['delta']:.3g} | {bound['accountant']} |")
    lines.append(
        f"| **D in total** | **{report['epsilon_training_data']:.4f}** | {report['delta']:.3g} "
        f"| {report['accountant']}, {report['composition']} composition |"
    )
    for name, epsilon in other_totals(report).items():
        lines.append(f"| **{name} in total** | **{epsilon:.4f}** | {report['delta']:.3g} | |")
    lines += [
        "",
        "Phases are bounded alone; under joint composition the total is less than their sum. All values are "
        "upper bounds, the larger of both directions of the neighbouring relation.",
        "",
        *([report["price_of_selection"], ""] if report["price_of_selection"] else []),
        f"Charged so far: ε = {report['charged_so_far']['epsilon']:.4f}.",
        "",
        "## What it means",
        "",
        report["meaning"],
        "",
        "## In other measures",
        "",
        *(f"- {line}" for line in measure_lines(report["measures"])),
        "",
        "## For people with several records",
        "",
        group_sentence(report["several_records_of_one_person"], report["delta"]),
        "",
        "## For an evaluation by NIST SP 800-226",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in report["nist_sp_800_226"].items()),
        "",
        "## For a registry of deployments",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in report["dp_deployments_registry"].items()),
        "",
        "## In which sense",
        "",
        f"- Unit: {report['unit']}.",
        f"- Neighbouring relation: {report['neighbouring_relation']}.",
        *([f"- {report['other_relations']}"] if report.get("other_relations") else []),
        f"- Validation set: {report['validation_set']}",
        *([f"- Published subset: {report['published_subset']}"] if report.get("published_subset") else []),
        *_unused_sentence(report.get("unused_keys") or ()),
        "",
        "## Not covered",
        "",
        *(f"- {item}" for item in report["not_covered"]),
        "",
    ]
    return "\n".join(lines)


def _about_lines(report: Mapping[str, Any]) -> list[str]:
    """Render which run it is, whom it protects and whom not."""
    rows = about_rows(report.get("about") or {})
    lines = ["## Which run", "", "| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows), ""]
    lines = lines if rows else []
    for title, items in (("Whom it protects", "protects"), ("Whom it does not protect", "does_not_protect")):
        if report.get(items):
            lines += [f"## {title}", "", *(f"- {item}" for item in report[items]), ""]
    return lines


def _guarantee(plan: PrivacyPlan, *, tested: bool = True) -> str:
    cost = plan.cost()
    both = _also(plan, " and of the ")
    exceptions = [*(["the metrics of the test set"] if tested else []), "the times shown"]
    if plan.privacy.exact_metrics:
        exceptions.append("the exact metrics of private records that were switched on")
    shown = rounded_up(cost.epsilon)
    conditions = " Which class each index belongs to is declared public." if plan.privacy.labels_public else ""
    if plan.subset.secret_subset:
        inside = before_amplification(cost.epsilon, plan.inclusion)
        conditions += (
            f" This holds as long as the subset stays secret; to anyone who knows it, the run is (ε = {inside:.4f}, "
            f"δ = {cost.delta / plan.inclusion:.3g})-differentially private for the records in it."
        )
    return (
        f"The released model and every other output of this run, except {_listed(exceptions)}, are "
        f"(ε = {shown}, δ = {cost.delta:.3g})-differentially private for zero-out of {_unit(plan)} of the "
        f"training set{both}.{conditions} This is the cost of the whole planned schedule; stopping early does not "
        "lower it."
    )


def _not_covered(plan: PrivacyPlan, *, tested: bool) -> list[str]:
    left_out = {*(() if tested else (TEST_METRICS,)), *(() if plan.privacy.unit == "record" else (_SEVERAL_RECORDS,))}
    return [item for item in NOT_COVERED if item not in left_out]


def _unit(plan: PrivacyPlan) -> str:
    cap = plan.privacy.records_per_owner
    if cap is None:
        return "one record"
    return f"one owner with all of its records (of which a step uses at most {cap:,})"


_RELATIONS = {
    "record": "zero-out: one record is replaced by a null record that contributes the zero vector to every query; "
    "the number of records and their indices are public",
    "owner": "zero-out: all records of one owner are replaced by null records that contribute the zero vector to every "
    "query; the number of owners is public, how many records each has is not",
}


def _listed(things: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(things[:-1]), things[-1]]))


def _risk(plan: PrivacyPlan) -> MembershipRisk:
    """Bound the membership risk of the records of whichever set has the larger one."""
    risks = [_risk_of(plan, side, bound) for side, bound in plan.cost().of_sets.items()]
    return max(risks, key=lambda risk: risk.advantage)


def _risk_of(plan: PrivacyPlan, side: str, bound: Bound) -> MembershipRisk:
    """Bound the risk of a set's records; under RDP, which is chosen for speed, from ε and δ alone."""
    if plan.privacy.accountant == "rdp" or (plan.inclusion < 1 and side == TRAINING_DATA):
        return risk_of_bound(bound.epsilon, bound.delta)
    events = [e.event for e in plan.entries() if e.dataset == side]
    return membership_risk(events, bound.epsilon, bound.delta)


def group_rows(plan: PrivacyPlan) -> list[dict[str, Any]]:
    """Return ε for several records of one person; None where no bound is useful. Of owners the one ε says it all."""
    if plan.privacy.unit == "owner":
        return []
    costs = plan.group_cost().items()
    return [{"records": size, "epsilon": epsilon if math.isfinite(epsilon) else None} for size, epsilon in costs]


def group_sentence(rows: Sequence[dict[str, Any]], delta: float) -> str:
    """Say what people with several records have, at the δ of one record."""
    if not rows:
        return "The figures above are those of a person: of an owner with all of its records, however many there are."
    return (
        f"At the same δ = {delta:.3g}, however a person's records lie in the sets: {group_words(rows)}. These are "
        "upper bounds, computed from the mechanisms above; k·ε at the same δ is none."
    )


def group_words(rows: Sequence[dict[str, Any]]) -> str:
    """List ε by the number of records; the numbers without a useful bound together."""
    bounded = [f"ε = {row['epsilon']:.4f} for {row['records']} records" for row in rows if row["epsilon"] is not None]
    without = [str(row["records"]) for row in rows if row["epsilon"] is None]
    if without:
        bounded.append(f"no useful bound (ε would exceed {MOST_USEFUL:g}) for {' or '.join(without)} records")
    return ", ".join(bounded)


def _evaluation_fields(plan: PrivacyPlan) -> dict[str, str]:
    """Answer what NIST's guidelines for evaluating differential privacy ask a claim to say."""
    cost = plan.cost()
    return {
        "privacy parameters": f"ε = {rounded_up(cost.epsilon)}, δ = {cost.delta:.3g}, per run",
        "unit of privacy": "one owner with all of its records (user level)"
        if plan.privacy.unit == "owner"
        else "one record (event level); see below for people with several",
        "variant": "approximate differential privacy, computed numerically as an upper bound",
        "neighbouring relation": "zero-out, both directions; n is public",
        "trust model": "central: those who run the training see the records, those who get the model do not",
        "what is released": "the model, every step's weights, and the values listed under “What was done”",
        "mechanisms and sensitivity": f"{_used(plan)}; listed with sensitivities",
        "implementation": "float64 noise from AES-128 in counter mode, keyed by the operating system"
        + ("; drawn as a sum of four" if plan.privacy.secure_noise else ""),
        "data collection and security": "not covered: the records, cached features and logs of the machine itself",
        "side channels": "time and memory are not covered",
    }


def _used(plan: PrivacyPlan) -> str:
    """Name the mechanisms that the run uses."""
    return ", ".join(dict.fromkeys(row["mechanism"].partition(",")[0] for row in mechanism_rows(plan)))


def _also(plan: PrivacyPlan, link: str, v: str = "", t: str = "") -> str:
    """Name the sets beside D that are charged."""
    named = [(plan.sigma_validation, f"validation set{v}"), (plan.sigma_test, f"test set{t}")]
    return "".join(f"{link}{name}" for sigma, name in named if sigma is not None)


def _validation_sentence(plan: PrivacyPlan) -> str:
    if not plan.validation_is_read:
        return "not read by any mechanism of this run."
    if plan.privacy.validation == "public":
        return "declared PUBLIC by the user; its records have no protection."
    steps = " Its records come into the training steps as well, which V pays for at its own rate." if plan.pace else ""
    return f"private; what is read of it is released by the Gaussian mechanism and charged to V's own ledger.{steps}"


def _published_sentence(plan: PrivacyPlan) -> str:
    if not plan.subset.publish_subset:
        return ""
    public = (
        "That a record has its row number and that it is in D is taken as public: in a file that is sorted by its "
        "labels, or from which records were left out for their labels, row numbers tell labels."
    )
    if not plan.shape.rounds:
        return f"subset.json, drawn without looking at the records; the draw tells nothing about them. {public}"
    return (
        "subset.json, one of the outputs that the guarantee covers. Subset and model together cost what D costs in "
        f"total. {public}"
    )


def price_sentence(plan: PrivacyPlan) -> str:
    """Say what selection does to the training noise; nothing where nothing is selected."""
    if not plan.shape.rounds:
        return ""
    text = (
        f"The releases of selection raise the training noise by {100 * price_of_selection(plan):.2f} % over that of "
        "the same steps without them."
    )
    assert plan.mechanism is not None
    more = plan.mechanism.describe_price(
        lambda rate: price_of_selection(plan, rate=rate), plan.shape.sizes, plan.shape.rate
    )
    return f"{text} {more}".strip()


_EVENT_NAMES = {
    "poisson_gaussian": "Poisson-subsampled Gaussian",
    "exponential_picks": "exponential mechanism, picks",
    "gumbel_freeze": "exponential mechanism, one Gumbel draw per selection",
}


def mechanism_rows(plan: PrivacyPlan) -> list[dict[str, Any]]:
    """Return a row per kind of release: its phase, mechanism, parameters, sensitivity and count over the whole run."""
    rows: dict[tuple[str, str, str], int] = {}

    def add(phase: str, event: Event, words: str, times: int) -> None:
        name, parameters, count = _describe_event(event)
        key = (phase, name, f"{parameters}, sensitivity: {words}")
        rows[key] = rows.get(key, 0) + times * count

    for release in plan.preparation_releases():
        if release.event is not None:
            add(release.phase, release.event, release.description, 1)
    for release in plan.releases() if plan.shape.rounds else ():
        if release.event is not None:
            add(release.phase, release.event, release.description, plan.shape.rounds)
    for release in (
        *plan.head_start_releases(),
        *plan.temperature_releases(),
        *plan.test_releases(),
    ):
        if release.event is not None:
            add(release.phase, release.event, release.description, 1)
    clip = f"{plan.privacy.max_grad_norm:g} (clip norm)"
    for epoch in plan.shape.epochs:
        if epoch.steps and not epoch.branched:
            add(epoch.phase, plan.step_event(epoch), clip, 1)
    if plan.branches:
        options = ", or ".join(f"sigma {b.sigma:.4g}, rate {b.rate:.4g}" for b in plan.branches)
        name = "Poisson-subsampled Gaussian, one of several as a release advises"
        rows[(TRAINING, name, f"{options}, sensitivity: {clip}")] = plan.shape.branched_steps
    if plan.pace:
        words = f"the same steps, at {plan.pace:g} times their rates"
        rows[(VALIDATION, _EVENT_NAMES["poisson_gaussian"], words)] = plan.shape.steps
    return [
        {"phase": phase, "mechanism": name, "parameters": parameters, "count": count}
        for (phase, name, parameters), count in rows.items()
    ]


def _describe_event(event: Event) -> tuple[str, str, int]:
    fields = to_dict(event)
    kind, count = fields.pop("kind"), fields.pop("count", 1)
    plain = kind == "poisson_gaussian" and fields["rate"] == 1
    told = {key: value for key, value in fields.items() if not (plain and key == "rate")}
    parameters = ", ".join(f"{key} {value:.6g}" for key, value in told.items() if isinstance(value, (int, float)))
    return "Gaussian" if plain else _EVENT_NAMES.get(kind, kind.replace("_", " ")), parameters, count


def _unused_sentence(keys: Sequence[str]) -> list[str]:
    return [f"- Keys of the config that had no effect: {', '.join(keys)}."] if keys else []


def _bound(bound: Bound) -> dict[str, Any]:
    return {"epsilon": bound.epsilon, "delta": bound.delta, "accountant": bound.accountant}
