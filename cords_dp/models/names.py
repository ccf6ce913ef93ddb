"""Models by name: which there are, and what the ``model`` section of a config may say. Nothing is built."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from cords_dp.datasets.published import public_facts
from cords_dp.errors import ConfigError, MechanismError

if TYPE_CHECKING:
    from torch import nn

ModelBuilder = Callable[..., "nn.Module"]
_BUILDERS: dict[str, ModelBuilder] = {}
# Ours, with the module of each and whether it takes features: a name can be checked without torch.
_OURS = {
    "LinearHead": ("heads", True),
    "MLPHead": ("heads", True),
    "ScatterLinear": ("scattering", False),
    "ScatterCNN": ("scattering", False),
    "TanhCNN": ("convolutional", False),
    "WideResNet": ("convolutional", False),
}

OUR_FEATURES = ("scattering", "leaves", "leaves:mirrored")  # of images, from nothing but their names


def register_model(name: str, builder: ModelBuilder, *, force: bool = False) -> None:
    """Make ``model.architecture = name`` build ``builder(num_classes=…, input_shape=…, **model.args)``.

    A builder with an argument ``input_norm`` is also told the length that no record exceeds, where it is known, and one
    with an argument ``features`` is given what ``model.features`` names (`frozen.Features`, or None).
    """
    if is_registered(name) and not force:
        raise MechanismError(f"there is a model {name!r} already; pass force=True to replace it")
    _BUILDERS[name] = builder


def model_names() -> list[str]:
    """Every name that ``model.architecture`` may have."""
    return sorted({*_OURS, *_BUILDERS, *_cords_names()})


def check_model(cfg: Mapping[str, Any], *, own_data: bool = False) -> None:
    """Refuse a model section that cannot be used. ``own_data``: the config does not say what the data is."""
    section = cfg["model"]
    name = section.get("architecture")
    if not (is_registered(name) or name in _COMMON or name in _cords_names()):
        raise ConfigError("model.architecture", name, f"unknown; known are {', '.join(model_names())}")
    if is_registered(name) and takes_features(name):
        _check_features(section)
    elif section.get("features") is not None:
        fix = f"{name} has features of its own: leave this key out (None), or use LinearHead or MLPHead"
        raise ConfigError("model.features", section["features"], fix)
    info = None if own_data else public_facts(cfg)
    class_count(section, len(info.classes) or None if info else None)
    inputs = section.get("input_dim")
    if info and inputs is not None and len(info.shape) == 1 and inputs != info.shape[0]:
        raise ConfigError("model.input_dim", inputs, f"a record has {info.shape[0]} numbers; leave the key out")


def class_count(section: Mapping[str, Any], of_data: int | None) -> int | None:
    """How many classes the model tells apart, which must be those of the data; None where nobody says."""
    counts = {f"model.{key}": section[key] for key in ("numclasses", "num_classes") if section.get(key) is not None}
    for key, count in counts.items():
        if of_data is not None and count != of_data:
            raise ConfigError(key, count, f"the data has {of_data} classes; say so, or leave the key out")
    if len(set(counts.values())) > 1:
        raise ConfigError("model.num_classes", section["num_classes"], "contradicts model.numclasses; give one of them")
    return next(iter(counts.values()), of_data)


def is_registered(name: Any) -> bool:
    """Is it one of ours, or a third party's? The others are CORDS'."""
    return name in _BUILDERS or name in _OURS


def builder_of(name: str) -> ModelBuilder:
    """What builds a model that is registered."""
    if name not in _BUILDERS:
        _BUILDERS[name] = getattr(importlib.import_module(f"cords_dp.models.{_OURS[name][0]}"), name)
    return _BUILDERS[name]


def takes_features(name: str) -> bool:
    return takes(_BUILDERS[name], "features") if name in _BUILDERS else _OURS[name][1]


def takes(builder: ModelBuilder, argument: str) -> bool:
    return argument in inspect.signature(builder).parameters


def _check_features(section: Mapping[str, Any]) -> None:
    if section.get("features") in (None, *OUR_FEATURES) and section.get("weights") is None:
        return
    from cords_dp.models.backbones import check_features  # late: it needs torch

    check_features(section)


# --- CORDS' own models ---------------------------------------------------------------------------

RENAMED = {"LSTM": "LSTMClassifier"}
_COMMON = frozenset({"LogisticRegNet", "TwoLayerNet", "MnistNet", "ResNet18"})  # every CORDS has them: no need to look


def _cords_names() -> set[str]:
    from cords_dp.toolkit import cords_models

    names = {n for n in vars(cords_models) if n[0].isupper() and callable(getattr(cords_models, n))}
    return names - {"Inception"} | set(RENAMED)
