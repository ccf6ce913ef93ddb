"""What is measured after an epoch, and who is told: the log, metrics.csv, W&B or TensorBoard, Ray Tune.

Nothing is released here: metrics of private records are left out before (`logs.allowed_metrics`) unless the user asked
for them, and ε follows from the ledger.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from torch import nn

from cords_dp import toolkit
from cords_dp.accounting import Ledger
from cords_dp.datasets import Splits
from cords_dp.distributed import World
from cords_dp.planning import PrivacyPlan
from cords_dp.training.evaluation import History, evaluate
from cords_dp.training.records import evaluation_batches
from cords_dp.training.run import Run
from cords_dp.training.weights_and_biases import RowLogger


@dataclass(frozen=True)
class Measuring:
    """``shown``: the metrics that may be measured and logged. ``rows``: where rows go besides the history."""

    run: Run
    plan: PrivacyPlan | None
    ledger: Ledger
    data: Splits
    world: World
    history: History
    shown: list[str]
    rows: RowLogger
    logger: logging.Logger

    def metrics(self, model: nn.Module, criterion: nn.Module) -> dict[str, float]:
        """Losses and accuracies of the sets that are shown; all processes measure together."""
        found: dict[str, float] = {}
        for prefix, dataset in (("trn", self.data.train), ("val", self.data.validation), ("tst", self.data.test)):
            if f"{prefix}_loss" in self.shown or f"{prefix}_acc" in self.shown:
                found[f"{prefix}_loss"], found[f"{prefix}_acc"] = evaluate(
                    model,
                    evaluation_batches(dataset, self.run),
                    criterion,
                    self.run.device,
                    is_regression=self.run.regression,
                    world=self.world,
                )
        return found

    def costs(self, epoch: int) -> dict[str, float]:
        """ε so far: of D and V together, of each, and of each phase."""
        if self.plan is None:
            return {}
        cost = self.plan.spent(self.ledger, quick=epoch < self.run.epochs)  # the last row is the statement's
        found = {"epsilon": cost.epsilon, "epsilon_D": cost.training_data.epsilon}
        if cost.validation_data is not None:
            found["epsilon_V"] = cost.validation_data.epsilon
        found.update({f"epsilon_{phase.replace(' ', '_')}": bound.epsilon for phase, bound in cost.phases.items()})
        return found

    def tell(self, row: dict[str, Any]) -> None:
        """Write down a row. The main process alone does."""
        self.history.rows.append(row)
        self.logger.info(self.history.line(self.shown, best=toolkit.IS_CHECKOUT))
        self.rows.log(row)
        if self.run.config.get("report_tune"):
            from ray import tune

            tune.report({"mean_accuracy": row.get("val_acc", row.get("tst_acc", 0.0))})
