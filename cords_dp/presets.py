"""The base that the files in configs/ start from: CORDS' config format with sound defaults.

``config_for("mnist", "RandomDP", dss_args=dict(fraction=0.1), privacy=dict(epsilon=3.0))`` is a complete CORDS config.
"""

from __future__ import annotations

import copy
from typing import Any

_COMMON: dict[str, Any] = {
    "setting": "SL",
    "is_reg": False,
    "dataset": {"datadir": "data", "feature": "dss", "type": "image"},
    "dataloader": {"shuffle": True, "pin_memory": True},
    "model": {"type": "pre-defined"},
    "ckpt": {"is_load": False, "is_save": True, "dir": "results/", "save_every": 5},
    "loss": {"type": "CrossEntropyLoss", "use_sigmoid": False},
    "optimizer": {"type": "sgd", "momentum": 0.9, "weight_decay": 0.0, "nesterov": False},
    "scheduler": {"type": None},
    "dss_args": {"select_every": 5, "kappa": 0, "selection_type": "Supervised", "collate_fn": None},
    "train_args": {
        "num_epochs": 20,
        "device": "cuda",
        "print_every": 5,
        "run": 1,
        "results_dir": "results/",
        "wandb": False,
        "print_args": ["tst_loss", "tst_acc", "time"],
        "return_args": [],
    },
}

_SCATTERING: dict[str, Any] = {
    "model": {"architecture": "ScatterLinear"},
    "dataloader": {"batch_size": 1024},
    "privacy": {"max_grad_norm": 0.1},
}

_DATASETS: dict[str, dict[str, Any]] = {
    "mnist": {
        **_SCATTERING,
        "model": {"architecture": "ScatterLinear", "numclasses": 10},
        "optimizer": {"lr": 1.0},
    },
    "cifar10": {
        **_SCATTERING,
        "model": {"architecture": "ScatterLinear", "numclasses": 10},
        "optimizer": {"lr": 1.0},
    },
    "cifar100": {
        **_SCATTERING,
        "model": {"architecture": "ScatterLinear", "numclasses": 100},
        "optimizer": {"lr": 1.0},
    },
    "digits": {
        "model": {"architecture": "LogisticRegNet", "numclasses": 10},
        "dataset": {"type": "tabular"},
        "dataloader": {"batch_size": 128},
        "optimizer": {"lr": 1.0},
    },
    "synthetic": {
        "model": {"architecture": "LogisticRegNet", "numclasses": 2},
        "dataset": {"type": "tabular"},
        "dataloader": {"batch_size": 128},
        "optimizer": {"lr": 0.5},
    },
}


def config_for(dataset: str, strategy: str, **changes: dict[str, Any]) -> dict[str, Any]:
    """A complete config for one dataset and strategy; ``changes`` are sections with the keys that differ."""
    config = copy.deepcopy(_COMMON)
    merge_into(config, {"dataset": {"name": dataset}, "dss_args": {"type": strategy}})
    merge_into(config, copy.deepcopy(_DATASETS[dataset]))
    merge_into(config, changes)
    return config


def merge_into(config: dict[str, Any], changes: dict[str, Any]) -> None:
    """Lay ``changes`` over ``config``, section by section."""
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(config.get(key), dict):
            merge_into(config[key], value)
        else:
            config[key] = value
