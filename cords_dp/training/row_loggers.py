"""Where the rows of metrics.csv go besides the file, which is always written: W&B, TensorBoard, both or neither."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cords_dp.training.weights_and_biases import RowLogger, wandb_logger


class _All:
    def __init__(self, loggers: Sequence[RowLogger]):
        self._loggers = loggers

    def log(self, row: Mapping[str, Any]) -> None:
        for logger in self._loggers:
            logger.log(row)


def row_logger(train_args: Mapping[str, Any], *, main: bool = True) -> RowLogger:
    """What the config asks for. Of several processes only the main one logs."""
    loggers: list[RowLogger] = [wandb_logger(train_args, main=main)]
    if train_args.get("tensorboard") and main:
        from cords_dp.training.tensorboard import TensorBoardRows

        loggers.append(TensorBoardRows(Path(train_args.get("results_dir") or "results") / "tensorboard"))
    return _All(loggers)
