"""Models by name: ours, third parties', and everything CORDS has, in CORDS' contract.

The contract: ``forward(x, last=False, freeze=False)`` returning logits, or with ``last`` also the input of
the last layer, and ``get_embedding_dim()``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from cords_dp.datasets import DATASETS, dataset_name
from cords_dp.errors import ConfigError, MechanismError

ModelBuilder = Callable[..., nn.Module]
_BUILDERS: dict[str, ModelBuilder] = {}


def register_model(name: str, builder: ModelBuilder, *, force: bool = False) -> None:
    """Make ``model.architecture = name`` build ``builder(num_classes=…, input_shape=…, **model.args)``."""
    if name in _BUILDERS and not force:
        raise MechanismError(f"there is a model {name!r} already; pass force=True to replace it")
    _BUILDERS[name] = builder


def model_names() -> list[str]:
    """Every name that ``model.architecture`` may have."""
    return sorted({*_BUILDERS, *_cords_names()})


def check_model(cfg: Mapping[str, Any]) -> None:
    name = cfg["model"].get("architecture")
    if name not in _BUILDERS and name not in _cords_names():
        raise ConfigError("model.architecture", name, f"unknown; known are {', '.join(model_names())}")


def build_model(cfg: Mapping[str, Any], *, seed: int, num_classes: int | None = None) -> nn.Module:
    """Build the model of a config with weights drawn from ``seed``, leaving torch's global RNG alone."""
    check_model(cfg)
    section = cfg["model"]
    name = section["architecture"]
    classes = int(section.get("numclasses") or section.get("num_classes") or num_classes or 0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name in _BUILDERS:
            info = DATASETS.get(dataset_name(cfg))
            args = dict(section.get("args") or {})
            return _BUILDERS[name](num_classes=classes, input_shape=info.shape if info else None, **args)
        return _build_cords(name, section, classes, cfg)


# --- CORDS' own models ---------------------------------------------------------------------------

_RENAMED = {"LSTM": "LSTMClassifier"}


def _cords_names() -> set[str]:
    from cords_dp.toolkit import cords_models

    names = {n for n in vars(cords_models) if n[0].isupper() and callable(getattr(cords_models, n))}
    return names - {"Inception"} | set(_RENAMED)


def _build_cords(name: str, section: Mapping[str, Any], classes: int, cfg: Mapping[str, Any]) -> nn.Module:
    from cords_dp.toolkit import cords_models

    builder = getattr(cords_models, _RENAMED.get(name, name))
    info = DATASETS.get(dataset_name(cfg))
    input_dim = section.get("input_dim") or (info.shape[0] if info and len(info.shape) == 1 else None)
    # CORDS' constructors name the same things differently.
    known = {
        "num_classes": classes,
        "num_class": classes,
        "n_out": classes,
        "output_size": classes,
        "input_dim": input_dim,
        "hidden_units": section.get("h1") or 100,
        "h1": section.get("h1") or 100,
        "h2": section.get("h2") or 100,
        "l1": section.get("l1") or 120,
        "l2": section.get("l2") or 84,
        "vgg_name": "VGG16",
        "wordvec_dim": section.get("wordvec_dim"),
        "weight_path": section.get("weight_path"),
        "num_layers": section.get("num_layers"),
        "hidden_size": section.get("hidden_size"),
    }
    parameters = inspect.signature(builder).parameters
    args = {key: value for key, value in known.items() if key in parameters}
    args.update(section.get("args") or {})
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()) and "num_classes" not in args:
        args["num_classes"] = classes
    missing = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD and args.get(p.name) is None
    ]
    if missing:
        raise ConfigError(f"model.{missing[0]}", None, f"{name} needs it (or give it in model.args)")
    return builder(**args)
