"""Says whom a run protects and whom it does not, and how zero-out compares with the other two usual relations."""

from __future__ import annotations

import math

from cords_dp.planning.plan import PrivacyPlan


def protected(plan: PrivacyPlan) -> list[str]:
    """List whose records the guarantee speaks of."""
    words = [f"every single record of the training set D ({plan.shape.n:,} records)"]
    if plan.sigma_validation is not None:
        words.append(f"every single record of the validation set V ({plan.shape.n_validation:,} records)")
    elif not plan.validation_is_read:
        words.append("the records of the validation set V, which no mechanism has read")
    return words


def unprotected(plan: PrivacyPlan) -> list[str]:
    """List whom it does not protect, or less than the figures say."""
    words = [
        "records of the test set: their exact metrics are shown",
        "people with several records: each record by itself is protected, the person less (see “Not covered”)",
    ]
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
    cost = plan.cost()
    if plan.mechanism is None or plan.mechanism.secret_pool:
        removed = (
            "Add/remove, under which the record is absent instead of null, charges the same events and gives the same "
            "ε and δ; it would also hide the number of records, which is public here."
        )
    else:
        removed = (
            "Add/remove, under which the record is absent instead of null, has no counterpart here: the number of "
            "records is public, and a subset is picked from all of their indices."
        )
    delta = min(1.0, (1 + math.exp(min(cost.epsilon, 700.0))) * cost.delta)
    return (
        f"{removed} Replace-one, under which another record takes its place, is two steps of zero-out: what follows "
        f"for it is ε = {2 * cost.epsilon:.4f} and δ = {delta:.3g}, not the figures above."
    )
