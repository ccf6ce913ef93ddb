"""``train_args.wandb``: the rows of metrics.csv, sent to Weights & Biases.

CORDS also lets it watch the model, which would send gradients of private batches without noise, and the share of
records that were drawn. Neither is done here, whatever the strategy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from cords_dp.errors import ConfigError

_KEY = "train_args.wandb"


class RowLogger(Protocol):
    """Takes a row of the metrics, which holds nothing that the log does not show."""

    def log(self, row: Mapping[str, Any]) -> None: ...


class _Nowhere:
    def log(self, row: Mapping[str, Any]) -> None:
        return None


class _CordsNames:
    """Rows under the names that CORDS gives them."""

    def __init__(self, wandb: Any):
        self._wandb, self._best = wandb, 0.0

    def log(self, row: Mapping[str, Any]) -> None:
        renamed = {{"epoch": "Epoch", "time": "Time"}.get(key, key): value for key, value in row.items()}
        if "tst_acc" in row:
            self._best = renamed["best_acc"] = max(self._best, row["tst_acc"])
        self._wandb.log(renamed)


def wandb_logger(train_args: Mapping[str, Any], *, main: bool = True) -> RowLogger:
    """Where the rows go. Of several processes only the main one logs."""
    if not train_args.get("wandb") or not main:
        return _Nowhere()
    try:
        import wandb
    except ImportError as error:
        raise ConfigError(_KEY, True, "wandb is not installed: pip install wandb, or set the key to False") from error
    if wandb.run is None:
        raise ConfigError(_KEY, True, "no run is open: call wandb.init(project=...) before train(), as with CORDS")
    return _CordsNames(wandb)
