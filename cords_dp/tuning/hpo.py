"""`HyperParamTuning` of CORDS' HPO example, by private tuning: the same two configs, the same two calls."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cords_dp.errors import ConfigError
from cords_dp.runs.sweep import Backend
from cords_dp.tuning.statement import TuningResult
from cords_dp.tuning.tune import tune

# CORDS' names of what its example tunes.
_KEYS = {
    "learning_rate": "optimizer.lr",
    "learning_rate1": "optimizer.lr1",
    "learning_rate2": "optimizer.lr2",
    "learning_rate3": "optimizer.lr3",
    "optimizer": "optimizer.type",
    "nesterov": "optimizer.nesterov",
    "scheduler": "scheduler.type",
    "gamma": "scheduler.gamma",
    "trn_batch_size": "dataloader.batch_size",
    "epochs": "train_args.num_epochs",
    "hidden_size": "model.hidden_size",
    "num_layers": "model.num_layers",
}


class HyperParamTuning:
    """``HyperParamTuning(hpo_config, train_config).start_eval()`` tunes the private strategy of ``train_config``.

    Of the HPO config count ``space``, ``num_evals`` (now the mean of a random number), ``log_dir`` and ``resources``.
    Trials are random and independent and run to their end: ``search_algo`` and ``scheduler`` would look at more than
    is paid for. The best model is kept, so that ``final_train`` has nothing to do.
    """

    def __init__(self, config_file_data: Mapping[str, Any], train_config_data: Mapping[str, Any]):
        self.cfg, self.train_config = config_file_data, train_config_data
        space = self.cfg.get("space") or {}
        unknown = [key for key in space if key not in _KEYS]
        if unknown:
            raise ConfigError(f"space.{unknown[0]}", space[unknown[0]], f"known are {', '.join(_KEYS)}")
        self.search = {_KEYS[key]: law for key, law in space.items()}

    def start_eval(self, backend: Backend | None = None) -> TuningResult:
        """Tune on Ray, as CORDS does, or on the backend given; print the best settings."""
        unused = [key for key in ("search_algo", "scheduler", "final_train") if self.cfg.get(key)]
        if unused:
            warnings.warn(f"a private tuning does not use {', '.join(unused)} of the HPO config", stacklevel=2)
        best = tune(
            self.train_config,
            self.search,
            trials=self.cfg.get("num_evals") or 10,
            out=Path(self.cfg.get("log_dir") or "RayLogs") / str(self.train_config["dss_args"]["type"]),
            backend=backend or self._ray(),
        )
        print("Best Config: ", best.settings)
        return best

    def _ray(self) -> Backend:
        import torch

        from cords_dp.runs.workers import RayTasks

        wanted = self.cfg.get("resources") or {}
        gpus = float(wanted.get("gpu") or 0) if torch.cuda.is_available() else 0.0
        return RayTasks(cpus=float(wanted.get("cpu") or 1), gpus=gpus)
