"""Building models by name: ours, third parties', and everything CORDS has, in CORDS' contract.

The contract: ``forward(x, last=False, freeze=False)`` returning logits, or with ``last`` also the input of
the last layer, and ``get_embedding_dim()``.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cords_dp.config.values import suggest, whole
from cords_dp.data.published import public_facts
from cords_dp.data.store import PixelConstants
from cords_dp.data.text_sets import glove_file
from cords_dp.errors import ConfigError, CordsDPError, MechanismError
from cords_dp.models.backbones import OUR_FEATURES, build_features

ModelBuilder = Callable[..., "nn.Module"]
_SEEDED = threading.Lock()  # torch's global generator is shared by all threads: one model at a time draws from it


def build_model(
    cfg: Mapping[str, Any],
    *,
    seed: int,
    num_classes: int | None = None,
    input_shape: Sequence[int] | None = None,
    constants: PixelConstants | None = None,
    input_norm: float | None = None,
) -> nn.Module:
    """Build the model of a config with weights drawn from ``seed``, leaving torch's global RNG alone.

    ``num_classes`` and ``input_shape`` are those of data that the config does not name. ``constants``: by which the
    pixels of the records are normalised; ``input_norm``: a length that none exceeds; where they are known.
    """
    check_model(cfg, own_data=True)
    section = cfg["model"]
    name, info = section["architecture"], public_facts(cfg)
    shape = input_shape or (info.shape if info else None)
    if num_classes is not None and not cfg.get("is_reg"):
        whole("num_cls", num_classes, low=2)
    # what a regression predicts is no class, and CORDS' configs call the number of outputs numclasses
    of_data = None if cfg.get("is_reg") else num_classes
    classes = class_count(section, of_data) or num_classes or (info.num_classes if info else None)
    if classes is None:
        raise ConfigError("model.numclasses", None, "say how many classes the data has")
    with _SEEDED, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if is_registered(name):
            builder = builder_of(name)
            args: dict[str, Any] = {"num_classes": classes, "input_shape": shape}
            if input_norm is None and info and info.shape == tuple(shape or ()):
                input_norm = info.norm
            if input_norm and takes(builder, "input_norm"):
                args["input_norm"] = input_norm
            if takes_features(name):
                args["features"] = build_features(section, shape or (), constants)
            return _built(name, builder, args, section.get("args") or {})
        return _build_cords(name, section, classes, shape)


def _built(name: str, builder: ModelBuilder, args: Mapping[str, Any], own: Mapping[str, Any]) -> nn.Module:
    """Call ``builder`` with arguments and with ``model.args``; what it cannot use is told as the config's mistake."""
    parameters = inspect.signature(builder).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for key in own:
            if key not in parameters:
                raise ConfigError(f"model.args.{key}", own[key], suggest(key, parameters))
    try:
        model = builder(**{**args, **own})
    except CordsDPError:
        raise
    except Exception as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConfigError("model.architecture", name, f"cannot be built with the other keys of model: {why}") from error
    if not isinstance(model, nn.Module):
        raise ConfigError("model.architecture", name, f"builds a {type(model).__name__}, not a torch module")
    return model


def check_input(model: nn.Module, record: torch.Tensor) -> None:
    """Refuse a model that cannot read such records. It is shown zeros: nothing depends on what the record holds."""
    training, problem = model.training, ""
    try:
        _predicted(model, record)
    except Exception as error:  # a layer's complaint about shapes or types, which are public
        problem = str(error).splitlines()[0] if str(error) else type(error).__name__
    finally:
        model.train(training)
    if problem:
        shape = f"records of shape {tuple(record.shape)} and type {str(record.dtype).removeprefix('torch.')}"
        raise ConfigError("model.architecture", type(model).__name__, f"cannot read {shape}: {problem}")


def check_outputs(model: nn.Module, record: torch.Tensor, wanted: int) -> None:
    """Refuse a regression whose model does not predict as many numbers as a record's target has."""
    training = model.training
    predicted = _predicted(model, record).numel()
    model.train(training)
    if predicted != wanted:
        raise ConfigError("model.numclasses", predicted, f"a record's target has {wanted} numbers to predict")


def _predicted(model: nn.Module, record: torch.Tensor) -> torch.Tensor:
    """Return what the model, in evaluation mode, makes of zeros."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with torch.no_grad():
        return model.eval()(torch.zeros_like(record, device=device)[None])


# --- names -----------------------------------------------------------------------------------------

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


def register_model(name: str, builder: ModelBuilder, *, force: bool = False) -> None:
    """Make ``model.architecture = name`` build ``builder(num_classes=…, input_shape=…, **model.args)``.

    A builder with an argument ``input_norm`` is also told the length that no record exceeds, where it is known, and one
    with an argument ``features`` is given what ``model.features`` names (`features.Features`, or None).
    """
    if is_registered(name) and not force:
        raise MechanismError(f"there is a model {name!r} already; pass force=True to replace it")
    _BUILDERS[name] = builder


def model_names() -> list[str]:
    """List every name that ``model.architecture`` may have."""
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
    """Return how many classes the model tells apart, which must be those of the data; None where nobody says."""
    counts = {f"model.{key}": section[key] for key in ("numclasses", "num_classes") if section.get(key) is not None}
    for key, count in counts.items():
        if of_data is not None and count != of_data:
            raise ConfigError(key, count, f"the data has {of_data} classes; say so, or leave the key out")
    if len(set(counts.values())) > 1:
        raise ConfigError("model.num_classes", section["num_classes"], "contradicts model.numclasses; give one of them")
    return next(iter(counts.values()), of_data)


def is_registered(name: Any) -> bool:
    """Say whether it is one of ours, or a third party's. The others are CORDS'."""
    return name in _BUILDERS or name in _OURS


def builder_of(name: str) -> ModelBuilder:
    """Return what builds a model that is registered."""
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
    from cords_dp.models.backbones import check_features

    check_features(section)


# --- CORDS' own models ---------------------------------------------------------------------------

RENAMED = {"LSTM": "LSTMClassifier"}
_COMMON = frozenset({"LogisticRegNet", "TwoLayerNet", "MnistNet", "ResNet18"})  # every CORDS has them: no need to look


def _cords_names() -> set[str]:
    from cords_dp.cords import cords_models

    names = {n for n in vars(cords_models) if n[0].isupper() and callable(getattr(cords_models, n))}
    return names - {"Inception"} | set(RENAMED)


def _build_cords(name: str, section: Mapping[str, Any], classes: int, shape: Sequence[int] | None) -> nn.Module:
    from cords_dp.cords import cords_models

    builder = getattr(cords_models, RENAMED.get(name, name))
    input_dim = section.get("input_dim") or (shape[0] if shape and len(shape) == 1 else None)
    if builder is getattr(cords_models, "LSTMClassifier", None):
        glove_file(section.get("weight_path"), section.get("wordvec_dim"), "model.weight_path")
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
        "weight_path": f"{Path(section.get('weight_path') or '.').expanduser()}/",  # CORDS appends the file's name
        "num_layers": section.get("num_layers"),
        "hidden_size": section.get("hidden_size"),
    }
    parameters, own = inspect.signature(builder).parameters, section.get("args") or {}
    args = {key: value for key, value in known.items() if key in parameters}
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()) and "num_classes" not in own:
        args["num_classes"] = classes
    missing = [
        p.name
        for p in parameters.values()
        if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD and {**args, **own}.get(p.name) is None
    ]
    if missing:
        raise ConfigError(f"model.{missing[0]}", None, f"{name} needs it (or give it in model.args)")
    model = _built(name, builder, args, own)
    if shape and len(shape) == 3:
        _fit_images(model, shape)
    return model


def _fit_images(model: nn.Module, shape: Sequence[int]) -> None:
    """Do what CORDS' train loop does to ImageNet's stem for small images; make the last layer as wide as its input.

    The ResNets of CORDS' wheel are made for images of 32×32: those of 64×64 leave four times as many features.
    """
    stem = getattr(model, "conv1", None)
    if hasattr(model, "maxpool") and isinstance(stem, nn.Conv2d) and shape[1] <= 64:
        model.conv1 = nn.Conv2d(shape[0], stem.out_channels, 3, padding=1, bias=False)
        model.maxpool = nn.Identity()
    last = getattr(model, "linear", None)
    if isinstance(last, nn.Linear) and shape[1] > 32:
        width = _width_at(model, last, shape)
        if width is not None and width != last.in_features:
            model.linear = nn.Linear(width, last.out_features)


def _width_at(model: nn.Module, layer: nn.Module, shape: Sequence[int]) -> int | None:
    """Count the numbers that reach a layer, tried on zeros."""
    seen: list[int] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[-1]))
    with contextlib.suppress(RuntimeError), torch.no_grad():
        model.eval()(torch.zeros(1, *shape))
    handle.remove()
    model.train()
    return seen[0] if seen else None
