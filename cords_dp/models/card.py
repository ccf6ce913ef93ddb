"""``model.json``: what has to be known beside the weights to use a released model.

It holds public facts only: the model section of the config, shape and type of a record, class names, constants of
pixels and the card of the source. Nothing in it was fitted on records, except what a source's card says was released.
No pickle: JSON and, for the weights, a ``state_dict`` that is read as plain tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from cords_dp.config.keys import check_values
from cords_dp.config.values import list_of, number, text, whole
from cords_dp.data.store import PixelConstants
from cords_dp.errors import ModelUnavailableError
from cords_dp.models.build import build_model
from cords_dp.models.private import make_private_ready

FILE = "model.json"
_FORMAT = 1
_DTYPES = {"float32": torch.float32, "uint8": torch.uint8, "int64": torch.int64}
_MOST = 10**8  # numbers in a record: more is a slip, and would fill the memory


@dataclass(frozen=True)
class ModelCard:
    """model: the section of the config. shape, dtype: of a record. classes: empty for a regression. pixels: constants
    by which images are normalised. input_norm: a length that no record exceeds. features: settings of the frozen
    features, which tell two backbones apart. source: the card of the source that read the records."""

    model: Mapping[str, Any]
    private: bool
    regression: bool
    shape: tuple[int, ...]
    dtype: str
    outputs: int
    classes: tuple[str, ...]
    pixels: PixelConstants | None = None
    input_norm: float | None = None
    features: Any = None
    source: Mapping[str, Any] | None = None

    def to_json(self) -> str:
        return json.dumps({"format": _FORMAT, **asdict(self), "model": dict(self.model)}, indent=2)

    @staticmethod
    def from_json(content: str) -> ModelCard:
        """Read a card; raise `ModelUnavailableError` for what no run has written."""
        try:
            facts = json.loads(content)
            version = facts.pop("format")
            pixels = facts.pop("pixels")
            card = ModelCard(
                **{
                    **facts,
                    "shape": list_of("shape", facts["shape"], whole),
                    "classes": list_of("classes", facts["classes"], text, empty=True),
                    "outputs": whole("outputs", facts["outputs"], high=10**6),
                    "pixels": None if pixels is None else PixelConstants(*(_numbers(part) for part in pixels)),
                }
            )
            card._check()
        except Exception as error:  # JSON's own kinds, missing and wrong fields
            raise ModelUnavailableError(f"{FILE} is damaged, or no run has written it") from error
        if version != _FORMAT:
            raise ModelUnavailableError(f"{FILE} has format {version!r}; this version of cords_dp reads {_FORMAT}")
        return card

    def _check(self) -> None:
        check_values({"model": self.model})
        size = 1
        for side in self.shape:
            size *= side
        if size > _MOST or self.dtype not in _DTYPES or not isinstance(self.private, bool):
            raise ValueError
        if self.classes and len(self.classes) != self.outputs:
            raise ValueError
        if self.input_norm is not None:
            number("input_norm", self.input_norm, low=0)

    @property
    def record_type(self) -> torch.dtype:
        return _DTYPES[self.dtype]

    def build(self) -> nn.Module:
        """Build the model as it was trained, without its weights."""
        config = {"model": self.model, "dataset": {"name": "custom"}, "is_reg": self.regression}
        model = build_model(
            config,
            seed=0,
            num_classes=self.outputs,
            input_shape=self.shape,
            constants=self.pixels,
            input_norm=self.input_norm,
        )
        if features_of(model) != self.features:
            raise ModelUnavailableError("the backbone is not the one that the model was trained on (model.features)")
        return make_private_ready(model)[0] if self.private else model


def features_of(model: nn.Module) -> Any:
    """Return settings of a model's frozen features, as JSON gives them back; None where it has none."""
    transform = getattr(model, "input_transform", None)
    return None if transform is None else json.loads(json.dumps([transform.name, *transform.settings]))


def _numbers(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
