"""Building models by name: ours, third parties', and everything CORDS has, in CORDS' contract.

The contract: ``forward(x, last=False, freeze=False)`` returning logits, or with ``last`` also the input of
the last layer, and ``get_embedding_dim()``.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cords_dp.config.values import suggest, whole
from cords_dp.datasets.pixels import PixelConstants
from cords_dp.datasets.published import public_facts
from cords_dp.datasets.text import glove_file
from cords_dp.errors import ConfigError, CordsDPError
from cords_dp.models.backbones import build_features
from cords_dp.models.names import (
    RENAMED,
    ModelBuilder,
    builder_of,
    check_model,
    class_count,
    is_registered,
    takes,
    takes_features,
)


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
    with torch.random.fork_rng(devices=[]):
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
    """``builder`` with arguments and with ``model.args``; what it cannot use is told as the config's mistake."""
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
    """What the model, in evaluation mode, makes of zeros."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with torch.no_grad():
        return model.eval()(torch.zeros_like(record, device=device)[None])


# --- CORDS' own models ---------------------------------------------------------------------------


def _build_cords(name: str, section: Mapping[str, Any], classes: int, shape: Sequence[int] | None) -> nn.Module:
    from cords_dp.toolkit import cords_models

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
    """What CORDS' train loop does to ImageNet's stem for small images; and a last layer as wide as its input.

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
    """How many numbers reach a layer, tried on zeros."""
    seen: list[int] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[-1]))
    with contextlib.suppress(RuntimeError), torch.no_grad():
        model.eval()(torch.zeros(1, *shape))
    handle.remove()
    model.train()
    return seen[0] if seen else None
