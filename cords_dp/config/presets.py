"""The base that the files in configs/ start from: CORDS' config format with sound defaults.

``config_for("mnist", "RandomDP", dss_args=dict(fraction=0.1), privacy=dict(epsilon=3.0))`` is a complete CORDS config.
"""

from __future__ import annotations

import copy
from typing import Any

from cords_dp.errors import ConfigError

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

# A linear classifier on scattering features; the features have norm √dim, hence the small clip norm. The batch and the
# learning rate follow the plan. On digits filters from dead leaves add nothing to scattering; on photographs they do.
_SCATTERING: dict[str, Any] = {
    "dss_args": {"select_every": 3},
    "model": {"architecture": "ScatterLinear"},
    "dataloader": {"batch_size": "auto"},
    "optimizer": {"lr": "auto"},
    # δ as in what is published on these sets
    "privacy": {"max_grad_norm": 0.1, "ema_decay": 0.9, "delta": 1e-5, "head_start": "auto"},
}
_LINEAR: dict[str, Any] = {
    "model": {"architecture": "LogisticRegNet"},
    "dataset": {"type": "tabular"},
    "dataloader": {"batch_size": 128},
    "optimizer": {"lr": 0.2},
    "privacy": {"ema_decay": 0.9},
}
# The user's own records: vectors of a known length. The batch and the learning rate follow the plan.
_OWN: dict[str, Any] = {
    "model": {"architecture": "LinearHead"},
    "dataset": {"type": "tabular"},
    "dataloader": {"batch_size": "auto"},
    "optimizer": {"lr": "auto"},
    "privacy": {"ema_decay": 0.9},
}
# The gradients of a classifier on records of length 1 have lengths up to 2, and those of rare classes are the longest:
# clipped to 1 they count half, and their probabilities come out too low (benchmarks/classifier_rates.py). Those of a
# hidden layer come on top.
_CLASSIFIER_CLIPS = {"LinearHead": 1.4, "MLPHead": 4.0}
# The vector of an owner is the mean of its records' gradients, of which some cancel: a clip norm that is made for
# single records adds noise and clips nothing (benchmarks/people.py).
_OF_OWNERS = 0.5
# Features of known length √dim, hence the small clip norm, as above.
_EMBEDDED: dict[str, Any] = {
    **_OWN,
    "dataset": {"type": None},
    "privacy": {"max_grad_norm": 0.1, "ema_decay": 0.9},
}
_IMAGES: dict[str, Any] = {
    **_EMBEDDED,
    "dss_args": {"select_every": 3},
    "model": {"architecture": "LinearHead", "features": "leaves"},
}
_PHOTOGRAPHS: dict[str, Any] = {
    **_SCATTERING,
    "model": {"architecture": "LinearHead", "features": "leaves:steady"},
    "train_args": {"num_epochs": 30},
    "dss_args": {"select_every": 5},
    "privacy": {"max_grad_norm": 0.1, "ema_decay": 0.9, "delta": 1e-5},  # a head start gains nothing here
}
_DATASETS: dict[str, tuple[dict[str, Any], int]] = {
    "mnist": (_SCATTERING, 10),
    "cifar10": (_PHOTOGRAPHS, 10),
    "cifar100": (_PHOTOGRAPHS, 100),
    "digits": (_LINEAR, 10),
    "synthetic": (_LINEAR, 2),
}
_SOURCES: dict[str, dict[str, Any]] = {
    "folder": _IMAGES,
    "arrays": _EMBEDDED,
    "embeddings": _EMBEDDED,
    "text": _EMBEDDED,  # and model.features="sentence:FOLDER"
    "huggingface": _EMBEDDED,
}


# The paper names its data and methods but no models' sizes, learning rates or batches; these are ours.
_PAPER_MODELS: dict[str, tuple[str, int, float]] = {
    "mnist": ("MnistNet", 256, 0.1),
    "cifar10": ("ResNet18", 1024, 0.5),
    "cifar100": ("ResNet18", 1024, 0.5),
    "synthetic": ("LogisticRegNet", 128, 0.5),
}


def paper_model(dataset: str) -> dict[str, Any]:
    """Return changes to a config that train a network from scratch at the paper's scale (images need a GPU)."""
    if dataset not in _PAPER_MODELS:
        raise ConfigError("dataset.name", dataset, f"the paper has {', '.join(_PAPER_MODELS)}")
    architecture, batch, lr = _PAPER_MODELS[dataset]
    return {
        "model": {"architecture": architecture, "features": None},
        "dataloader": {"batch_size": batch},
        "optimizer": {"lr": lr, "momentum": 0.9},
        "train_args": {"num_epochs": 40},
        "dss_args": {"select_every": 20},
        "privacy": {"max_grad_norm": 1.0, "ema_decay": 0.0, "head_start": 0},
    }


# How the paper selects: by the exponential mechanism, half of the budget for selection, added up by basic composition.
PAPER_SELECTION: dict[str, Any] = {
    "dss_args": {"mechanism": "exponential", "greedy": "RGreedy", "r": 15, "linear_layer": True},
    "privacy": {"composition": "basic", "split": 0.5, "validation": "public"},
}


def paper_config(dataset: str, strategy: str, *, fraction: float = 0.1, epsilon: float = 3.0) -> dict[str, Any]:
    """Build the paper's own setting for one dataset and strategy: what the files in configs/paper hold."""
    config = config_for(dataset, strategy, privacy={"epsilon": epsilon, "delta": 1e-5})
    merge_into(config, paper_model(dataset))
    if strategy != "FullDP":
        config["dss_args"]["fraction"] = fraction
    if strategy == "GLISTERDP":
        merge_into(config, copy.deepcopy(PAPER_SELECTION))
    return config


def config_for(dataset: str, strategy: str, /, **changes: dict[str, Any]) -> dict[str, Any]:
    """Build a complete config for one dataset and strategy; ``changes`` are sections with the keys that differ."""
    config = copy.deepcopy(_COMMON)
    merge_into(config, {"dataset": {"name": dataset}, "dss_args": {"type": strategy}})
    # other names are those of sources (datasets.sources)
    base, classes = _DATASETS.get(dataset, (_SOURCES.get(dataset, _OWN), None))
    merge_into(config, copy.deepcopy(base))
    if classes is not None:
        config["model"]["numclasses"] = classes
    if "privacy" not in changes:  # a strategy that is not private
        config.pop("privacy")
    if "architecture" in changes.get("model", {}):  # another model reads images, or names features of its own
        config["model"].pop("features", None)
        config.get("privacy", {}).pop("head_start", None)  # steps on all of V take long for a network
    merge_into(config, changes)
    if "is_reg" not in changes:
        config["is_reg"] = config["loss"].get("type") == "MeanSquaredLoss"  # the loss decides what is trained
    clip = _CLASSIFIER_CLIPS.get(config["model"].get("architecture"))
    if base is _OWN and "privacy" in config and not config["is_reg"] and clip:
        owned = config["dataset"].get("owner") is not None or config["privacy"].get("records_per_owner") is not None
        config["privacy"].setdefault("max_grad_norm", clip * (_OF_OWNERS if owned else 1.0))
    return config


def merge_into(config: dict[str, Any], changes: dict[str, Any]) -> None:
    """Lay ``changes`` over ``config``, section by section."""
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(config.get(key), dict):
            merge_into(config[key], value)
        else:
            config[key] = value
