"""One DP-SGD step.

``θ ← θ − η · ( Σ_{j∈batch} w_j clip_C(∇ℓ_j) + N(0, σ²C²I) ) / b̄``, with weights
in [0, 1] and ``b̄`` the *expected* batch size, a public constant.

Formal guarantees
-----------------
Unit: one record, zero-out. Each step is one Poisson-subsampled Gaussian event (q, σ), provided the batch
holds each record independently with probability at most q. A record's part of the sum has L2 norm at most C: weights
are brought into [0, 1] before they multiply the clipped gradient, and a record whose gradient is not finite contributes
nothing. An empty batch still takes a step and adds noise. Noise is float64 from a source that the caller hands over
(`noisy_sum`). The event is charged by the caller before the step.

Rounding: norms and sums are float64. Without a record the sum, as it is in memory before its noise, is at most C away:
the record's own part is C/(1 + slack) at most, and the slack also holds what its absence can change in the rounding of
the others (`clipping.rounding_slack`, `clipping.sum_slack`, `GradientMode.extra_slack`; all together some 1e-5). It
rests on the parts of other records being the same numbers, bit for bit, which is tested: under zero-out a null record
keeps its place in the batch. Without that place the others move up by one, and libraries may round a narrow layer by
place: 3,000 aligned records moved by 2.5e-6 C together, 5e-7 C beyond the slack. That matters for add/remove, which is
not what is promised. Ghost clipping has no proof at all, and has to be asked for.

Weights or buffers that change while the model computes would carry records past the noise
(``nn.Embedding(max_norm=…)`` rewrites the rows it looks up). Every step compares them before and after, bit by bit, and
stops.

Opacus' optimizer is used with sums and noise in float64: Opacus draws noise with ``torch.normal``, whose float32 values
end at 5.77 deviations. Here everything between the clipped sum of a piece and the finished, noisy step is float64.

Formal guarantee: ``p.grad`` is a function of Σ parts + σ·C·z, formed in float64 with z standard normal; dividing by the
public batch size and rounding to the weights' type come after the noise. Rank 0 alone adds it, before the sums of all
ranks are added up, so that no rank ever holds the sum without noise.

Where the unit is an owner, the batch holds owners, each with probability at most q and with some of its records, and
the sum is one of owners: Σ clip_C(Σ_j w_j ∇ℓ_j), the inner sum over an owner's records. No piece cuts an owner in two.

A step that was not charged gets no noise (`ChargedSteps`), and so is not taken. Random views of images are drawn for
each record by itself (`augmented_views`).
"""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np
import torch
from opacus.optimizers import DPOptimizerFastGradientClipping
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from cords_dp.accounting import Ledger
from cords_dp.errors import MechanismError, UnsupportedModelError
from cords_dp.models.unchanged import refuse_changes, state_of
from cords_dp.noise.clipping import rounding_slack, sum_slack
from cords_dp.noise.generators import Noise, Shape
from cords_dp.planning import EpochPlan, PrivacyPlan
from cords_dp.processes import World
from cords_dp.training.gradients import GradientMode, gradient_mode
from cords_dp.training.gradients.contributions import SUM_SLACK
from cords_dp.training.gradients.mode import Clipping, LossPerExample, Piece
from cords_dp.training.gradients.owners import void


class PlainEngine:
    """A step without clipping and noise: ε = ∞, on the same batches and with the same normaliser.

    As in a private step a record whose loss is not finite, such as one without a known label, contributes nothing.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        criterion: LossPerExample,
        *,
        batch_size: int,
        world: World = World(),  # noqa: B008 - frozen
    ):
        self.model, self.optimizer, self.criterion, self.batch_size = model, optimizer, criterion, batch_size
        self.world = world

    def step(self, x: Tensor, y: Tensor, weights: Tensor, owners: Tensor | None = None) -> None:
        self.optimizer.zero_grad()
        if len(y):
            losses = self.criterion(self.model(x), y)
            if not bool((finite := losses.isfinite()).all()):  # left out of the pass: 0 · NaN would be NaN
                x, y, weights = x[finite], y[finite], weights[finite]
                losses = self.criterion(self.model(x), y)
            ((losses * weights).sum() / self.batch_size).backward()
        if self._add_up(len(y)):
            self.optimizer.step()

    def _add_up(self, records: int) -> bool:
        """Give every process the sum of all gradients; return whether there is any record in the batch."""
        if self.world.size == 1:
            return records > 0
        for p in self.model.parameters():
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                self.world.add_up(p.grad)
        return bool(self.world.total(np.array([records])).item())


@dataclass(frozen=True)
class Views:
    """Random views of each image, averaged before clipping ("augmentation multiplicity", De et al. 2022)."""

    count: int
    rng: np.random.Generator

    def draw(self, x: Tensor) -> Tensor:
        return augmented_views(x, self.count, self.rng)


class PrivateEngine:
    """Clipped, noisy steps on one model. Wraps the model once, for the whole run.

    ``noise`` gives standard normals (`noise.generators.noise_source`). It may be left out where ``sigma`` is 0, and
    must be: an engine that adds no noise has to be meant.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        criterion: LossPerExample,
        *,
        sigma: float,
        max_grad_norm: float,
        batch_size: int,
        mode: GradientMode | str,
        noise: Noise | None = None,
        normalise: bool = False,
        max_physical_batch_size: int = 512,
        views: Views | None = None,
        by_owner: bool = False,
        most_at_once: int = 0,
        world: World = World(),  # noqa: B008 - frozen
    ):
        """Prepare the model. ``most_at_once``: records or owners in the largest sum, if that is not a batch's."""
        _check_noise(sigma, max_grad_norm, noise)
        self.by_owner = by_owner
        self.mode = gradient_mode(mode) if isinstance(mode, str) else mode
        if views and not self.mode.averages_views:
            raise UnsupportedModelError(f"mode {self.mode} cannot average views before clipping; use another one")
        if by_owner and (views or not self.mode.sums_owners):
            raise UnsupportedModelError(
                f"mode {self.mode} cannot add up the gradients of one owner's records before clipping; use another "
                "one, without augmentations"
            )
        self.criterion, self.views = criterion, views
        self.piece = max(1, max_physical_batch_size // (views.count if views else 1))
        self.model = self.mode.prepare(model)
        self.optimizer = NoisySumOptimizer(
            optimizer,
            noise_multiplier=sigma,
            max_grad_norm=max_grad_norm,
            expected_batch_size=batch_size,
            noise=noise,
            world=world,
        )
        weights = self.optimizer.params
        elements = sum(p.numel() for p in weights)
        slack = max(rounding_slack(elements, p.dtype) for p in weights) + sum_slack(
            max(batch_size, most_at_once), 1 if by_owner else self.piece
        )
        extra = max(self.mode.extra_slack, SUM_SLACK) if by_owner else self.mode.extra_slack
        self.clipping = Clipping(max_grad_norm, normalise, slack + extra)

    def set_noise_multiplier(self, sigma: float) -> None:
        """Set other noise for the steps that follow, as the plan's branches have it."""
        _check_noise(sigma, self.clipping.max_norm, self.optimizer.noise)
        self.optimizer.noise_multiplier = sigma

    def step(self, x: Tensor, y: Tensor, weights: Tensor, owners: Tensor | None = None) -> None:
        """Take one noisy step on a Poisson batch of any size, none included. ``owners``: whose each record is."""
        self.optimizer.zero_grad(set_to_none=True)
        for sums in self._sums_of_pieces(x, y, weights, owners):
            self.optimizer.add(sums)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def clipped_sums(self, x: Tensor, y: Tensor, weights: Tensor, owners: Tensor | None = None) -> list[Tensor]:
        """Return Σ clip_C(gradient) in float64, a tensor for each weight. Private: it has no noise yet."""
        totals: list[Tensor] = []
        for sums in self._sums_of_pieces(x, y, weights, owners):
            parts = [part.double() for part in sums]
            totals = [total + part for total, part in zip(totals, parts, strict=True)] if totals else parts
        return totals

    def _sums_of_pieces(self, x: Tensor, y: Tensor, weights: Tensor, owners: Tensor | None) -> Iterator[list[Tensor]]:
        if (owners is not None) != self.by_owner:
            raise MechanismError("a step clips either records or owners, as it was planned")
        weights = weights.nan_to_num(0.0).clamp(0.0, 1.0)
        before = state_of(self.model)
        if owners is None:
            for piece in _pieces(len(y), self.mode.piece_size(self.model, x, self.piece)):
                yield self._clipped_sums(x[piece], y[piece], weights[piece])
        else:
            x, weights = _without_void(x, weights)
            for piece in _owner_pieces(owners, min(self.piece, self.mode.piece_size(self.model, x, self.piece))):
                yield self._clipped_sums(x[piece], y[piece], weights[piece], owners[piece])
        refuse_changes(self.model, before)

    def _clipped_sums(self, x: Tensor, y: Tensor, weights: Tensor, owners: Tensor | None = None) -> list[Tensor]:
        parameters = self.optimizer.params
        if not len(y):
            return [p.new_zeros(p.shape, dtype=torch.float64) for p in parameters]
        if self.views:
            x, y = self.views.draw(x), y.repeat_interleave(self.views.count)
        piece = Piece(x, y, weights, self.views.count if self.views else 1, owners)
        return self.mode.clipped_sums(self.model, parameters, self.criterion, piece, self.clipping)


def _check_noise(sigma: float, max_grad_norm: float, noise: Noise | None) -> None:
    """Refuse a noise multiplier that got lost: it must not become a step without noise."""
    if not isinstance(sigma, Real) or not (math.isfinite(sigma) and sigma >= 0):
        raise MechanismError(f"the noise multiplier of a step must be a finite number of at least 0, not {sigma!r}")
    if not (math.isfinite(max_grad_norm) and max_grad_norm > 0):
        raise MechanismError(f"the clip norm must be positive and finite, not {max_grad_norm!r}")
    if sigma > 0 and noise is None:
        raise MechanismError("an engine with a noise multiplier needs a noise source; see mechanisms.noise")
    if sigma == 0 and noise is not None:
        raise MechanismError("noise multiplier 0 beside a noise source: an engine without noise gets none")


def _pieces(size: int, piece: int) -> Iterator[slice]:
    """Return slices that cover a batch; one empty slice for an empty batch."""
    for start in range(0, max(size, 1), piece):
        yield slice(start, min(start + piece, size))


def _owner_pieces(owners: Tensor, piece: int) -> Iterator[slice]:
    """Return slices of about so many records that cut no owner in two; one empty slice for an empty batch."""
    ends = np.append(np.flatnonzero(np.diff(owners.cpu().numpy())) + 1, len(owners)).tolist()
    start = taken = 0
    while taken < len(ends):
        taken = max(bisect_right(ends, start + piece), taken + 1)
        yield slice(start, ends[taken - 1])
        start = ends[taken - 1]


def _without_void(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Let records that are not finite weigh nothing: the others of their owners count as they are."""
    gone = void(x)
    if not bool(gone.any()):
        return x, weights
    shape = (-1, *[1] * (x.dim() - 1))
    return torch.where(gone.reshape(shape), torch.zeros_like(x), x), torch.where(
        gone, torch.zeros_like(weights), weights
    )


class NoisySumOptimizer(DPOptimizerFastGradientClipping):
    """Adds up the clipped sums of the pieces of a batch (`add`); `step` adds noise and takes the step."""

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        noise_multiplier: float,
        max_grad_norm: float,
        expected_batch_size: int,
        noise: Noise | None,
        world: World,
    ):
        super().__init__(
            optimizer,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            expected_batch_size=expected_batch_size,
            loss_reduction="sum",  # the division is ours, in float64 and after the noise
        )
        self.noise, self.world = noise, world

    def add(self, sums: Sequence[Tensor]) -> None:
        """Add a piece's clipped sums, one for each weight."""
        for p, total in zip(self.params, sums, strict=True):
            if p.summed_grad is None:  # type: ignore[attr-defined]
                p.summed_grad = total.double()  # type: ignore[attr-defined]
            else:
                p.summed_grad += total  # type: ignore[attr-defined]

    def accumulate(self) -> None:
        """Do nothing: `add` has."""

    def add_noise(self) -> None:
        for p in self.params:  # in place: on a large model making arrays takes longer than adding them
            total: Tensor = p.summed_grad  # type: ignore[attr-defined]
            if self.noise is not None and self.world.main:
                total = self._noise_like(p).add_(total)
            self.world.add_up(total)
            p.grad = total.div_(self.expected_batch_size).to(p.dtype).view_as(p)

    def _noise_like(self, p: nn.Parameter) -> Tensor:
        """Draw σ·C·z in float64, on the CPU wherever the weights are."""
        assert self.noise is not None
        z = self.noise(tuple(p.shape))
        if z.shape != tuple(p.shape) or z.dtype != np.float64:
            raise MechanismError(f"the noise source gave {z.dtype} of shape {z.shape}, not float64 of {tuple(p.shape)}")
        return torch.from_numpy(z).to(p.device).mul_(self.noise_multiplier * self.max_grad_norm)


class ChargedSteps:
    """The engine's only source of noise.

    Formal guarantee: noise is handed out inside a step (`one`) and nowhere else; there are as many steps as were
    charged to the ledger before the first of them, and no more.
    """

    def __init__(self, ledger: Ledger, noise: Noise):
        self._ledger, self._noise = ledger, noise
        self._left, self._inside = 0, False

    def begin(self, plan: PrivacyPlan, epoch: EpochPlan) -> None:
        """Pay for the steps of an epoch, on D and, where it takes part, on V. Steps left of an earlier one are forgone.

        The steps of all branched epochs are one event, charged when the first of them begins; which of them have begun
        is on record, so that a run that resumes does not take more.
        """
        self._left = 0
        for entry in plan.step_entries(epoch):
            known = [event.with_count(1) for event in self._ledger.events(entry.dataset)]
            if not (epoch.branched and entry.event.with_count(1) in known):
                self._ledger.charge(entry.dataset, entry.phase, entry.event)
        if epoch.branched:
            self._ledger.begin_steps(epoch.steps, plan.shape.branched_steps)
        self._left = epoch.steps

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Take one of the steps that were charged."""
        if self._left < 1:
            raise MechanismError("a training step was not charged: charge the epoch before its steps")
        self._left -= 1
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def __call__(self, shape: Shape) -> np.ndarray:
        if not self._inside:
            raise MechanismError("noise of a training step can only be had inside a step that was charged")
        return self._noise(shape)


def augmented_views(images: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """Draw ``count`` random views of each image, one after the other: N×C×H×W → (N·count)×C×H×W.

    A view is shifted by up to an eighth of its side, the border being reflected, and colour images are mirrored by a
    coin. Which view is drawn depends on chance alone, so a view is a function of one record and its own randomness.
    """
    n, channels, height, width = images.shape
    pad = max(1, height // 8)
    padded = F.pad(images, (pad, pad, pad, pad), mode="reflect").repeat_interleave(count, dim=0)
    total = n * count

    def draw(high: int) -> Tensor:
        return torch.from_numpy(rng.integers(0, high, total)).to(images.device)

    rows = draw(2 * pad + 1)[:, None] + torch.arange(height, device=images.device)
    columns = draw(2 * pad + 1)[:, None] + torch.arange(width, device=images.device)
    if channels == 3:
        mirrored = draw(2).bool()[:, None]
        columns = torch.where(mirrored, columns.flip(1), columns)
    pick = torch.arange(total, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[pick, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
