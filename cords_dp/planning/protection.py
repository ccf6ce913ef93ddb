"""Says whom a run protects and whom it does not, and how zero-out compares with the other two usual relations."""

from __future__ import annotations

import math

from cords_dp.planning.plan import PrivacyPlan


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
