"""Configs as CORDS' users have them, small data for them, and where a checkout of CORDS is, if there is one."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cords_dp import cords as toolkit
from cords_dp.config.presets import merge_into

VECTOR_LENGTH = 6
WORDS = ("the", "good", "bad", "film", "plot", "is", "was", "a", "it", "n't", "?", "!")


def checkout() -> Path | None:
    """A checkout of CORDS: the one that is imported, or the one that the environment names."""
    named = os.environ.get("CORDS_CHECKOUT")
    found = Path(named).expanduser() if named else toolkit.cords_root if toolkit.IS_CHECKOUT else None
    return found if found is not None and (found / "configs" / "SL").is_dir() else None


CHECKOUT = checkout()
needs_checkout = pytest.mark.skipif(CHECKOUT is None, reason="no checkout of CORDS")


def cords_config(name: str, **changes: dict[str, Any]) -> dict[str, Any]:
    """A config in CORDS' format, with the keys that its files have for image sets; ``changes`` by section."""
    config: dict[str, Any] = {
        "setting": "SL",
        "is_reg": False,
        "dataset": {"name": name, "datadir": "../data", "feature": "dss", "type": "image"},
        "dataloader": {"shuffle": True, "batch_size": 20, "pin_memory": True},
        "model": {"architecture": "ResNet18", "type": "pre-defined", "numclasses": 10},
        "ckpt": {"is_load": False, "is_save": True, "dir": "results/", "save_every": 20},
        "loss": {"type": "CrossEntropyLoss", "use_sigmoid": False},
        "optimizer": {"type": "sgd", "momentum": 0.9, "lr": 0.05, "weight_decay": 5e-4, "nesterov": True},
        "scheduler": {"type": "cosine_annealing", "T_max": 300},
        "dss_args": {"type": "GLISTER", "fraction": 0.1, "select_every": 20, "kappa": 0, "linear_layer": False,
                     "selection_type": "Supervised", "greedy": "Stochastic", "collate_fn": None},
        "train_args": {"num_epochs": 300, "device": "cuda", "print_every": 10, "run": 1, "wandb": False,
                       "results_dir": "results/", "return_args": [],
                       "print_args": ["trn_loss", "trn_acc", "val_loss", "val_acc", "tst_loss", "tst_acc", "time"]},
    }  # fmt: skip
    merge_into(config, copy.deepcopy(changes))
    return config


def text_config(name: str, classes: int, **changes: dict[str, Any]) -> dict[str, Any]:
    words = {"wordvec_dim": 300, "weight_path": "../data/glove.6B/"}
    collate = toolkit.data_utils.collate.collate_fn_pad_batch
    config = cords_config(
        name,
        dataset={"type": "text", **words},
        dataloader={"batch_size": 16, "collate_fn": collate},
        model={"architecture": "LSTM", "numclasses": classes, "hidden_size": 128, "num_layers": 1, **words},
        optimizer={"type": "adam", "lr": 0.001, "nesterov": False},
        scheduler={"type": None},
        dss_args={"collate_fn": collate},
    )
    merge_into(config, changes)
    return config


def regression_config(name: str, **changes: dict[str, Any]) -> dict[str, Any]:
    model = {"architecture": "ThreeLayerNet", "input_dim": 5, "numclasses": 1, "h1": 8, "h2": 4}
    config = cords_config(
        name,
        dataset={"type": "tabular"},
        model=model,
        loss={"type": "MeanSquaredLoss"},
        optimizer={"type": "adam", "lr": 0.01, "nesterov": False},
        scheduler={"type": "none"},
        train_args={"print_args": ["val_loss", "tst_loss", "trn_loss", "time"]},
    )
    merge_into(config, changes)
    return {**config, "is_reg": True}


def made_private(config: dict[str, Any], strategy: str, folder: Path, **changes: dict[str, Any]) -> dict[str, Any]:
    """The word changed and a budget added, small enough for a test."""
    config = copy.copy(config)
    merge_into(config, {"dss_args": {"type": strategy, "fraction": 0.5, "select_every": 1}})
    merge_into(config, {"train_args": {"num_epochs": 1, "device": "cpu", "print_every": 1, "results_dir": str(folder)}})
    merge_into(config, {"ckpt": {"is_save": False, "dir": str(folder)}})
    merge_into(config, {"privacy": {"epsilon": 8.0, "accountant": "rdp", "grad_sample_mode": "hooks"}})
    merge_into(config, changes)
    return config


def write_vectors(folder: Path) -> str:
    """Made-up vectors in GloVe's format."""
    rng = np.random.default_rng(0)
    lines = [" ".join([word, *(f"{v:.4f}" for v in rng.normal(size=VECTOR_LENGTH))]) for word in WORDS]
    folder.mkdir(exist_ok=True)
    (folder / f"glove.6B.{VECTOR_LENGTH}d.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"{folder}/"


def sentences(count: int, seed: int = 0) -> list[tuple[str, int]]:
    """Sentences of one to nine words with a label that one of the words tells."""
    rng = np.random.default_rng(seed)
    made = []
    for label in rng.integers(0, 2, count):
        words = [*rng.choice(["film", "plot", "is", "a", "unknown"], rng.integers(0, 8)), ("bad", "good")[label]]
        made.append((" ".join(rng.permutation(words)), int(label)))
    return made
