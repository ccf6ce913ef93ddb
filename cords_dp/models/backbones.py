"""``model.features``, resolved: scattering, leaves, a torchvision network, a sentence model, or what was registered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cords_dp.config.values import suggest
from cords_dp.data.store import IMAGENET, PixelConstants
from cords_dp.errors import ConfigError
from cords_dp.models.features import Features, FrozenFeatures, module_features, registered_features
from cords_dp.models.scattering import Scattering
from cords_dp.models.sentences import check_sentence_model, sentence_features

OUR_FEATURES = ("scattering", "leaves", "leaves:mirrored", "leaves:steady")  # of images, from nothing but their names
_SIDE = 224  # what torchvision's classifiers were trained on
_SMALLEST = 8  # pixels a side that two scales of wavelets need
_KINDS = ", ".join(map(repr, OUR_FEATURES)) + ", 'torchvision:NAME', 'sentence:FOLDER', or a registered name"


def check_features(section: Mapping[str, Any]) -> None:
    """Refuse a ``model.features`` that cannot be used; nothing is loaded."""
    name, weights = section.get("features"), section.get("weights")
    kind, _, what = (name or "").partition(":")
    if weights is not None and kind != "torchvision":
        raise ConfigError("model.weights", str(weights), "is the weights file of features='torchvision:NAME'")
    if name is None or name in OUR_FEATURES or name in registered_features():
        return
    if kind == "torchvision" and what:
        _check_torchvision(name, what, weights)
    elif kind == "sentence" and what:
        check_sentence_model(Path(what).expanduser())
    else:
        close = suggest(name, [*OUR_FEATURES, *registered_features()]).removeprefix("unknown key; ")
        raise ConfigError("model.features", name, f"must be {_KINDS}; {close}")


def build_features(
    section: Mapping[str, Any], input_shape: Sequence[int], constants: PixelConstants | None
) -> Features | None:
    """Build the features that a config names, for records of this shape. ``constants``: their pixels', if known."""
    check_features(section)
    name = section.get("features")
    if name is None:
        return None
    if name == "scattering":
        if len(input_shape) != 3 or min(input_shape[1:]) < _SMALLEST:
            raise ConfigError("model.features", name, f"is for images of at least {_SMALLEST}×{_SMALLEST} pixels")
        return Scattering(input_shape)
    kind, _, what = name.partition(":")
    if kind == "leaves" and name not in registered_features():
        return _leaves(name, input_shape)
    if kind == "sentence" and name not in registered_features():
        return sentence_features(Path(what).expanduser(), input_shape)
    if kind == "torchvision" and name not in registered_features():
        return _torchvision_features(name, what, section.get("weights"), input_shape, constants)
    known = registered_features()[name]
    return module_features(name, known.builder(input_shape=tuple(input_shape)), input_shape, settings=[known.version])


def _leaves(name: str, input_shape: Sequence[int]) -> Features:
    from cords_dp.models.leaves import Leaves, readable  # late: it compiles

    if not readable(input_shape):
        raise ConfigError("model.features", name, "is for grey or colour images of at least 8×8 pixels")
    return Leaves(input_shape, name.partition(":")[2] or "plain")


# --- torchvision -----------------------------------------------------------------------------------------------------


def _check_torchvision(name: str, what: str, weights: Any) -> None:
    from torchvision import models as networks  # most runs need none of it, and it takes seconds

    classifiers = networks.list_models(module=networks)
    if what not in classifiers:
        raise ConfigError("model.features", name, suggest(what, classifiers).replace("key", "network"))
    if weights is not None and not Path(weights).expanduser().is_file():
        raise ConfigError("model.weights", str(weights), "no such file: a state_dict that torch.save has written")


def _torchvision_features(
    name: str, what: str, weights: Any, input_shape: Sequence[int], constants: PixelConstants | None
) -> FrozenFeatures:
    """Return the input of the network's last linear layer, on images of 224×224, minus its own mean."""
    if len(input_shape) != 3 or input_shape[0] not in (1, 3):
        raise ConfigError("model.features", name, f"is for images, not for records of shape {tuple(input_shape)}")
    from torchvision import models as networks

    network = networks.get_model(what, weights=None)
    _load_weights(network, what, weights)
    last = [(path, layer) for path, layer in network.named_modules() if isinstance(layer, nn.Linear)]
    if not last:
        raise ConfigError("model.features", name, "this network ends in no linear layer; take another one")
    parent, _, attribute = last[-1][0].rpartition(".")
    setattr(network.get_submodule(parent), attribute, nn.Identity())
    prepare = partial(_prepared, constants=constants)
    settings = [_SIDE, "centred", constants]
    return module_features(name, _Centred(network), input_shape, prepare=prepare, settings=settings)


class _Centred(nn.Module):
    """A network's features of one image minus their mean: after a ReLU all are positive, which tells nothing."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        rows = self.network(images).flatten(1)
        return rows - rows.mean(dim=1, keepdim=True)


def _prepared(images: Tensor, constants: PixelConstants | None) -> Tensor:
    """Prepare images as the network knows them: by ImageNet's constants, in colour, of its size."""
    if constants is not None:
        images = images * _by_channel(constants.std, images) + _by_channel(constants.mean, images)
    images = images.expand(-1, 3, -1, -1)
    if constants is not None:
        images = (images - _by_channel(IMAGENET.mean, images)) / _by_channel(IMAGENET.std, images)
    return F.interpolate(images, size=(_SIDE, _SIDE), mode="bilinear", align_corners=False, antialias=True)


def _by_channel(values: Sequence[float], images: Tensor) -> Tensor:
    return torch.tensor(values, dtype=images.dtype, device=images.device).reshape(1, -1, 1, 1)


def _load_weights(network: nn.Module, what: str, weights: Any) -> None:
    if weights is None:
        network.load_state_dict(_downloaded(what))
        return
    problem = "is no state_dict that torch.save has written"
    try:
        state = torch.load(Path(weights).expanduser(), map_location="cpu", weights_only=True)
        problem = f"holds other weights than those of torchvision's {what}"
        network.load_state_dict(state)
    except Exception:  # torch and pickle raise many kinds, with pages of keys
        raise ConfigError("model.weights", str(weights), problem) from None


def _downloaded(what: str) -> Mapping[str, Tensor]:
    from torchvision import models as networks

    published = networks.get_model_weights(what).DEFAULT
    try:
        return published.get_state_dict(progress=False, check_hash=True)
    except Exception:  # the host does not answer: many kinds
        file = published.url.rsplit("/", 1)[-1]
        fix = f"torchvision's host does not answer; fetch {file} elsewhere and name it here (a local file)"
        raise ConfigError("model.weights", None, fix) from None
