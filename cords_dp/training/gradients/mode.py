"""What a gradient mode is: a way to clip every record's gradient and sum them.

A mode is an object with one small contract (`GradientMode`), found by its name. The engine, the choice of a mode and
the audits know modes through this contract only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from cords_dp.config.settings import GRADIENT_MODES
from cords_dp.errors import MechanismError, UnsupportedModelError
from cords_dp.noise.clipping import clip_factors, rounded_down

LossPerExample = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Clipping:
    """The bound C on a record's part of the sum, and the room that it leaves for rounding (`slack`)."""

    max_norm: float
    normalise: bool = False
    slack: float = 0.0

    def factors(self, norms: Tensor, weights: Tensor, dtype: torch.dtype) -> Tensor:
        """Return weight times clip factor of each record, rounded down to ``dtype``."""
        factors = clip_factors(norms, self.max_norm, normalise=self.normalise, slack=self.slack)
        return rounded_down(factors * weights.double(), dtype)


@dataclass(frozen=True)
class Piece:
    """Some records of a batch. ``views`` rows of ``x`` in a row belong to one record, and so to one weight.

    owners: whose each record is, those of one owner in a row, where owners' vectors are clipped and not records'; no
        owner is in two pieces. ``weights`` then multiply the records' gradients before they are added up.
    """

    x: Tensor
    y: Tensor
    weights: Tensor
    views: int = 1
    owners: Tensor | None = None

    @property
    def records(self) -> int:
        return len(self.weights)


class GradientMode(ABC):
    """Clip and sum the gradients of single records.

    name: the word in ``privacy.grad_sample_mode``.
    rank: modes of a lower rank are preferred; of right ones of the same rank the quickest is taken.
    proved: `clipped_sums` is proved to hold its bound for the numbers as they are in memory. A mode that is not
        (ghost clipping) is taken only where the config names it.
    averages_views: it can average the views of a record before it clips.
    sums_owners: it can add up the gradients of an owner's records before it clips (`Piece.owners`).
    extra_slack: room for rounding that it needs beyond that of forming one clipped vector.
    """

    name: ClassVar[str]
    rank: ClassVar[int]
    proved: ClassVar[bool] = True
    averages_views: ClassVar[bool] = True
    sums_owners: ClassVar[bool] = False
    extra_slack: ClassVar[float] = 0.0

    def prepare(self, model: nn.Module) -> nn.Module:
        """Return the model with what the mode needs around it, or raise `UnsupportedModelError`."""
        return model

    def piece_size(self, model: nn.Module, x: Tensor, wanted: int) -> int:
        """Return how many records to take at a time, where ``wanted`` were asked for."""
        return wanted

    @abstractmethod
    def clipped_sums(
        self,
        model: nn.Module,
        parameters: Sequence[nn.Parameter],
        criterion: LossPerExample,
        piece: Piece,
        clipping: Clipping,
    ) -> list[Tensor]:
        """Return Σ weight · clip(gradient) over a piece with at least one record, one tensor for each parameter.

        Formal guarantee of an implementation: a record's part of all tensors together has L2 norm at most
        ``clipping.max_norm``; a record whose gradient is not finite adds zero. Sums are in float64 where ``proved``.
        With ``piece.owners`` the same holds of owners: Σ clip(Σ weight · gradient), the inner sum over an owner's
        records.
        """

    def __str__(self) -> str:
        return self.name


_MODES: dict[str, GradientMode] = {}


def register_gradient_mode(mode: GradientMode, *, force: bool = False) -> GradientMode:
    """Let ``privacy.grad_sample_mode`` name this mode, and ``auto`` choose it."""
    if not isinstance(mode, GradientMode):
        raise MechanismError("a gradient mode is an object of a class derived from GradientMode")
    if mode.name in _MODES and not force:
        raise MechanismError(f"there is a gradient mode {mode.name!r} already; pass force=True to replace it")
    _MODES[mode.name] = mode
    if mode.name not in GRADIENT_MODES:
        GRADIENT_MODES.append(mode.name)
    return mode


def unregister_gradient_mode(name: str) -> None:
    """Forget a mode, for instance after a test."""
    _MODES.pop(name, None)
    GRADIENT_MODES.remove(name)


def gradient_modes() -> tuple[GradientMode, ...]:
    """Return all modes, in the order of registration."""
    return tuple(_MODES.values())


def gradient_mode(name: str) -> GradientMode:
    """Return the mode of this name."""
    if name not in _MODES:
        raise UnsupportedModelError(f"there is no gradient mode {name!r}; known are {', '.join(_MODES)}")
    return _MODES[name]
