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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cords_dp.accounting import TEST_DATA, Account, Entry, Event, Ledger, calibrate, epsilon_bound, gaussian
from cords_dp.config.values import number
from cords_dp.errors import ConfigError, DataError
from cords_dp.estimators.repeats import Repeated
from cords_dp.evaluation.measured import metrics_released
from cords_dp.evaluation.released import ReleasedTest
from cords_dp.noise.generators import secure_generator
from cords_dp.planning.mechanism import Release
from cords_dp.planning.plan import TEST_RELEASE
from cords_dp.planning.schedule import EVALUATION
from cords_dp.planning.statement import rounded_up
from cords_dp.report.metrics import metric_rows
from cords_dp.selection.releases import Releases
from cords_dp.selection.session import charging


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


def share_of_budget(epsilon: float, delta: float | None, count: int) -> tuple[float, float]:
    """Return the (ε, δ) of an evaluation of so many units of privacy, checked."""
    if not count:
        raise DataError("there are no rows to evaluate on")
    epsilon = number("epsilon", epsilon, low=0, high=500)
    delta = min(1e-5, 0.1 / count) if delta is None else number("delta", delta, low=0, high=1)
    if delta >= 1 / count:
        fix = f"must be below 1/n = {1 / count:.3g}: a mechanism that publishes one record in full passes otherwise"
        raise ConfigError("delta", delta, fix)
    return epsilon, delta


def evaluated(
    total: np.ndarray,
    *,
    names: Sequence[str],
    groups: tuple[str, ...],
    span: float,
    epsilon: float,
    delta: float,
    count: int,
    unit: str,
    account: str | Path | None,
    repeated: Repeated | None,
) -> Evaluation:
    """Release the sum of the rows' vectors.

    ``names``: of the classes, ``groups``: of a column. ``span``: the width of a regression's public range.
    """
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
    released = ReleasedTest(len(names), event.sigma, vector, groups, span / 2)
    metrics = metrics_released(released, classes=names)
    return Evaluation(metrics, _cost([event], delta), delta, count, unit, ledger.to_dict(), repeated)


def _cost(events: Sequence[Event], delta: float) -> float:
    return epsilon_bound(events, delta, "auto").epsilon
