"""``train_args.tensorboard``: the rows of metrics.csv as TensorBoard's event files.

Released and where it is charged: nothing new. A row holds what the log shows (metrics of the test set, rounded times,
ε); no histogram of weights or gradients is written, and no batch is traced. Events have the time of day in whole
seconds, as log lines do: left alone, the library notes microseconds, and how long an epoch took follows the size of a
secret pool.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cords_dp.errors import ConfigError

_KEY = "train_args.tensorboard"
_GROUPS = {"epsilon": "privacy", "tst": "test", "val": "validation", "trn": "training", "subtrn": "subset"}


class TensorBoardRows:
    """One scalar for each number of a row, at its epoch."""

    def __init__(self, folder: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            fix = "TensorBoard is not installed: pip install 'cords-dp[tensorboard]', or set the key to False"
            raise ConfigError(_KEY, True, fix) from error
        self._writer = SummaryWriter(str(folder))

    def log(self, row: Mapping[str, Any]) -> None:
        now = float(int(time.time()))
        for key, value in row.items():
            if key != "epoch" and isinstance(value, (int, float)) and math.isfinite(value):
                self._writer.add_scalar(scalar_name(key), value, row["epoch"], walltime=now)
        self._writer.flush()  # a run that is killed has shown what it measured


def scalar_name(key: str) -> str:
    """TensorBoard groups names by what stands before the slash."""
    head, _, rest = key.partition("_")
    return f"{_GROUPS[head]}/{key if head == 'epsilon' else rest}" if head in _GROUPS else key
