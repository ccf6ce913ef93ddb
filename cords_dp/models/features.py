"""Frozen features: any fixed function of one record, and a scaling of that record by itself.

A small head on features that somebody else has learned in public, or that nobody has learned, makes far more of a
small budget than a network that must learn its features from noisy gradients.

Formal guarantee
----------------
Row i of what `FrozenFeatures` returns is a function of record i and of public constants: the backbone's weights and
the sizes of records and batches. So zeroing one record changes one row of the features, and whatever is proved for a
head trained on rows holds for the records. Proof: the backbone is in evaluation mode and stays in it (it is no
submodule of the model, so ``model.train()`` does not reach it), where BatchNorm applies its stored statistics and
does not update them and dropout is the identity; every other layer of the backbones here acts on each row of a batch
by itself, and a text goes through its backbone alone. Its weights take no gradient. What follows is done row by row:
scaling to mean square 1, and NaN for a record that is not finite, whatever the backbone makes of it, so that it
contributes nothing. Libraries choose kernels, hence the last digit, by the sizes of a batch, which are public, never
by values. Modules that are not ours are tried first: `_refuse_mixing` compares rows alone with rows among others.

Nothing is fitted on data, and nothing of a backbone is saved with a model: `model.pt` holds the head.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from cords_dp.errors import MechanismError, UnsupportedModelError

_MIXED = 1e-3  # of a row's length: far above rounding, far below what other records in a batch would change
_PROBES = 3
_TINY = 1e-30


class Features(Protocol):
    """What a head is given. ``settings`` name the features on disk; ``feature_shape`` never equals ``input_shape``."""

    @property
    def name(self) -> str: ...
    @property
    def settings(self) -> tuple[Any, ...]: ...
    @property
    def input_shape(self) -> tuple[int, ...]: ...
    @property
    def feature_shape(self) -> tuple[int, ...]: ...
    def __call__(self, records: Tensor) -> Tensor: ...


def unit_mean_square(x: Tensor) -> Tensor:
    """Scale rows to mean square 1, each by itself. Zeros stay zeros; a row that is not finite becomes NaN."""
    rows = x.flatten(1)
    rows = rows if rows.is_floating_point() else rows.float()
    peak = rows.abs().amax(dim=1, keepdim=True)  # first, so that squares neither overflow nor vanish
    rows = rows / peak.clamp_min(_TINY)
    size = rows.square().mean(dim=1, keepdim=True).sqrt()
    scaled = rows / torch.where(size > 0, size, 1.0)
    return torch.where(torch.isfinite(peak), scaled, torch.nan)


@dataclass(frozen=True)
class FrozenFeatures:
    """``function`` of whole batches, made safe: by rows, scaled, without gradients. No module, so in no state_dict."""

    name: str
    settings: tuple[Any, ...]
    input_shape: tuple[int, ...]
    feature_shape: tuple[int, ...]
    function: Callable[[Tensor], Tensor]
    batch: int = 256

    def __deepcopy__(self, _: dict[int, Any]) -> FrozenFeatures:
        return self  # it never changes, and a backbone is large

    @torch.no_grad()
    def __call__(self, records: Tensor) -> Tensor:
        numbers = records.float() if records.is_floating_point() else records
        rows = unit_mean_square(self.function(numbers))
        if records.is_floating_point():
            finite = torch.isfinite(records).flatten(1).all(dim=1, keepdim=True)
            rows = torch.where(finite, rows, torch.nan).to(records)
        return rows.reshape(len(records), *self.feature_shape)


def freeze(module: nn.Module) -> nn.Module:
    """Put a module into evaluation mode without gradients, for good."""
    return module.eval().requires_grad_(False)


def module_features(
    name: str,
    module: nn.Module | Callable[[Tensor], Tensor],
    input_shape: Sequence[int],
    *,
    prepare: Callable[[Tensor], Tensor] | None = None,
    settings: Sequence[Any] = (),
    batch: int = 32,
) -> FrozenFeatures:
    """Use a torch module, or a function of batches, as features; refuse it if rows depend on each other."""
    frozen = freeze(module) if isinstance(module, nn.Module) else module
    shape = tuple(input_shape)

    def function(records: Tensor) -> Tensor:
        if isinstance(frozen, nn.Module):
            frozen.to(records.device)
        return frozen(prepare(records) if prepare else records).flatten(1)

    with torch.no_grad():
        length = _refuse_mixing(name, function, shape)
    feature_shape = (length,) if shape != (length,) else (1, length)
    digest = weights_digest(module.state_dict()) if isinstance(module, nn.Module) else ""
    return FrozenFeatures(name, (*settings, digest, shape), shape, feature_shape, function, batch)


def weights_digest(state: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for key, value in state.items():
        digest.update(key.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:24]


def _refuse_mixing(name: str, function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> int:
    """Return how many features a record has. Made-up records alone must give what they give among others."""
    probes = torch.randn(_PROBES, *shape, generator=torch.Generator().manual_seed(0))
    try:
        together = function(probes)
        alone = torch.cat([function(probe[None]) for probe in probes])
    except Exception as error:  # a layer's complaint about shapes, which are public
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnsupportedModelError(f"features {name!r} cannot read records of shape {shape}: {why}") from error
    if together.dim() != 2 or together.shape != alone.shape or len(together) != _PROBES:
        raise UnsupportedModelError(f"features {name!r} do not give one row for each record")
    allowed = _MIXED * alone.norm(dim=1) + _TINY
    if not bool(((together - alone).norm(dim=1) <= allowed).all()):
        raise UnsupportedModelError(
            f"features {name!r} of a record depend on the other records of its batch, which no budget pays for; "
            "BatchNorm needs stored statistics (track_running_stats=True)"
        )
    return together.shape[1]


# --- features of the user's own --------------------------------------------------------------------------------------

FeatureBuilder = Callable[..., "nn.Module | Callable[[Tensor], Tensor]"]


class Registered(NamedTuple):
    builder: FeatureBuilder
    version: str


_REGISTERED: dict[str, Registered] = {}


def register_features(name: str, builder: FeatureBuilder, *, version: str = "1", force: bool = False) -> None:
    """Make ``model.features = name`` use ``builder(input_shape=…)``: a module, or a function of batches to rows.

    It must be a fixed function of one record: nothing in it may have been fitted on the private data. ``version`` is
    part of the name of cached features; change it with what a function computes (a module's weights are part anyway).
    """
    if ":" in name or name in ("scattering", "leaves") or (name in _REGISTERED and not force):
        raise MechanismError(f"there are features {name!r} already, or the name holds a colon; force=True replaces")
    _REGISTERED[name] = Registered(builder, version)


def registered_features() -> dict[str, Registered]:
    return _REGISTERED
