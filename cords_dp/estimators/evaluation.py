"""A private evaluation of a fitted estimator: noisy counts of test rows, and every metric that follows from them.

    found = model.evaluate(X_test, y_test, epsilon=1.0)
    found.metrics["auc"], found.metrics["scores"]; print(found)

Formal guarantee: released is the sum of `evaluation.released` over the rows (sensitivity 1), once, by the Gaussian
mechanism, (ε, δ)-DP for zero-out of one row, or of one owner with all of its rows. It is reserved in the account, if
there is one, and charged before noise is drawn (`selection.releases`). A row whose label is no class contributes
nothing; no row ends an evaluation. Together with the fit, whose rows are others: (max ε, max δ). Rows that were fitted
on as well pay for both, and so do rows that are evaluated twice (`repeats`, or the account).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cords_dp.accounting import (
    TEST_DATA,
    Account,
    Entry,
    Event,
    Ledger,
    PoissonGaussian,
    calibrate,
    epsilon_bound,
    gaussian,
)
from cords_dp.config.values import number
from cords_dp.data.owners import Numbered, named_owners, own_file
from cords_dp.errors import ConfigError, DataError
from cords_dp.estimators.records import Given
from cords_dp.estimators.repeats import Repeated, digests_of, tally
from cords_dp.evaluation.measured import metrics_released
from cords_dp.evaluation.released import ReleasedTest, classifier_sum, regression_sum
from cords_dp.noise.generators import secure_generator
from cords_dp.planning.mechanism import Release
from cords_dp.planning.plan import TEST_RELEASE
from cords_dp.planning.schedule import EVALUATION
from cords_dp.planning.statement import rounded_up
from cords_dp.report.metrics import metric_rows
from cords_dp.selection.releases import Releases
from cords_dp.selection.session import charging
from cords_dp.training.metrics import groups_of


@dataclass(frozen=True)
class Evaluation:
    """What was released of test rows, and its cost. Public values only.

    metrics: as in ``result.json`` (`evaluation.measured`): each number with its 95 % interval, tables, for two classes
    the histogram of scores that `cords_dp.choose_threshold` takes. repeated: as in `Privacy`.
    """

    metrics: Mapping[str, Any]
    epsilon: float
    delta: float
    rows: int
    unit: str
    ledger: Mapping[str, Any]
    repeated: Repeated | None = None

    @property
    def statement(self) -> str:
        return (
            f"These metrics are (ε = {rounded_up(self.epsilon)}, δ = {self.delta:.3g})-differentially private for "
            f"zero-out of one {self.unit} of the {self.rows:,} {self.unit}s that they were measured on."
        )

    def __str__(self) -> str:
        rows = metric_rows({"metrics": self.metrics})
        return "\n".join([*(f"{words:<44}{value}" for words, value in rows), "", self.statement])


def evaluated(
    given: Given,
    y: np.ndarray,
    outputs: Callable[[], np.ndarray],
    *,
    ends: tuple[float, float] | None,
    epsilon: float,
    delta: float | None,
    owners: Any,
    by: str | None,
    account: str | Path | None,
) -> Evaluation:
    """Measure a model's outputs for records with the targets y, and release the sum of the rows' vectors.

    ``ends``: the public range of a regression's target. ``owners``: whose each row is. ``by``: a column, whose groups
    are measured besides.
    """
    whose = None if owners is None else own_file(named_owners(owners, len(y), Numbered()), np.zeros(0))[1]
    count, unit = (len(y), "record") if whose is None else (whose.count, "owner")
    epsilon, delta = _share_of_budget(epsilon, delta, count)
    masses = None if whose is None else whose.masses
    codes, groups = groups_of(given.records, by) or (None, ())
    if by is not None and codes is None:
        raise ConfigError("by", by, "only a DataFrame with a schema has columns")
    places = None if codes is None else (codes, len(groups))
    if ends is None:
        span, total = 2.0, classifier_sum(given.records.targets.numpy(), outputs(), masses, places)
    else:
        low, span = ends[0], ends[1] - ends[0]
        wanted, guessed = (2 * (values - low) / span - 1 for values in (y.astype(np.float64), outputs()))
        total = regression_sum(wanted, guessed, masses, places)
    repeated = tally(digests_of(given.records, owners), epsilon, delta, unit) if account is None else None
    vector, event, ledger = release_sum(total, epsilon=epsilon, delta=delta, unit=unit, account=account)
    classes = given.facts.classes
    metrics = metrics_released(ReleasedTest(len(classes), event.sigma, vector, groups, span / 2), classes=classes)
    return Evaluation(metrics, _cost([event], delta), delta, count, unit, ledger.to_dict(), repeated)


def _share_of_budget(epsilon: float, delta: float | None, count: int) -> tuple[float, float]:
    """Return the (ε, δ) of an evaluation of so many units of privacy, checked."""
    if not count:
        raise DataError("there are no rows to evaluate on")
    epsilon = number("epsilon", epsilon, low=0, high=500)
    delta = min(1e-5, 0.1 / count) if delta is None else number("delta", delta, low=0, high=1)
    if delta >= 1 / count:
        fix = f"must be below 1/n = {1 / count:.3g}: a mechanism that publishes one record in full passes otherwise"
        raise ConfigError("delta", delta, fix)
    return epsilon, delta


def release_sum(
    total: np.ndarray, *, epsilon: float, delta: float, unit: str, account: str | Path | None
) -> tuple[np.ndarray, PoissonGaussian, Ledger]:
    """Release a sum by the Gaussian mechanism, reserved in the account and charged; return it with event and ledger."""
    event = gaussian(calibrate(lambda s: _cost([gaussian(s)], delta), epsilon, start=4 / epsilon, rising=False))
    entry = Entry(TEST_DATA, EVALUATION, event)
    ledger = Ledger((entry,), id=secrets.token_hex(8))
    reservation = None
    if account is not None:
        reservation = Account.read(Path(account).expanduser()).reserve(ledger.id, (entry,), unit=unit)
    releases = Releases(
        (Release(TEST_RELEASE, TEST_DATA, event, 1.0, "1 (all blocks of a row's part together)"),),
        charge=charging(ledger),
        generators={TEST_DATA: secure_generator()},
    )
    try:
        vector = releases.gaussian(TEST_RELEASE, total)
    finally:
        if reservation is not None:
            reservation.settle(ledger.entries)
    return vector, event, ledger


def _cost(events: Sequence[Event], delta: float) -> float:
    return epsilon_bound(events, delta, "auto").epsilon
