"""Opacus' optimizers with our clipping and our noise.

Opacus clips by float32 norms and draws noise with ``torch.normal``, whose float32 values end at 5.77 deviations. Here
norms are float64, and so is everything between the clipped sum of a piece and the finished, noisy step.

Formal guarantee: ``p.grad`` is a function of Σ parts + σ·C·z, formed in float64 with z standard normal; dividing by the
public batch size and rounding to the weights' type come after the noise. Rank 0 alone adds it, before the sums of all
ranks are added up, so that no rank ever holds the sum without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cords_dp.distributed import World
from cords_dp.errors import MechanismError, UnsupportedModelError
from cords_dp.mechanisms.clipping import clip_factors, keep_rows, rounded_down, row_norms
from cords_dp.mechanisms.noise import Noise
from cords_dp.opacus_parts import DPOptimizer, DPOptimizerFastGradientClipping


class _NoisySum(DPOptimizer):
    """The end of a step: noise, the other ranks' sums, the public divisor."""

    world = World()
    noise: Noise | None = None

    def add_noise(self) -> None:
        for p in self.params:  # in place: on a large model making arrays takes longer than adding them
            total: Tensor = p.summed_grad
            if self.noise is not None and self.world.main:
                total = self._noise_like(p).add_(total)
            total = total.double()
            self.world.add_up(total)
            p.grad = total.div_(self.expected_batch_size).to(p.dtype).view_as(p)

    def _noise_like(self, p: nn.Parameter) -> Tensor:
        """σ·C·z in float64, drawn on the CPU wherever the weights are."""
        assert self.noise is not None
        z = self.noise(tuple(p.shape))
        if z.shape != tuple(p.shape) or z.dtype != np.float64:
            raise MechanismError(f"the noise source gave {z.dtype} of shape {z.shape}, not float64 of {tuple(p.shape)}")
        return torch.from_numpy(z).to(p.device).mul_(self.noise_multiplier * self.max_grad_norm)

    def _accumulate(self, p: nn.Parameter, total: Tensor) -> None:
        """Add a piece's sum, in float64. The first is kept as it is: float64 has every number of a shorter type."""
        if p.summed_grad is not None:  # type: ignore[attr-defined]
            total = p.summed_grad.double().add_(total)  # type: ignore[attr-defined]
        p.summed_grad = total  # type: ignore[attr-defined]


class ClippedSumOptimizer(_NoisySum, DPOptimizerFastGradientClipping):
    """For modes that leave a clipped sum of each piece: in ``p.grad``, or in ``sums`` if it is in float64."""

    sums: Sequence[Tensor] | None = None

    def accumulate(self) -> None:
        totals, self.sums = self.sums or [p.grad for p in self.params], None
        for p, total in zip(self.params, totals, strict=True):
            assert total is not None
            self._accumulate(p, total)


class PerExampleOptimizer(_NoisySum, DPOptimizer):
    """For modes that leave every example's gradient in ``p.grad_sample``: clips and sums them.

    Formal guarantee: a record's part of the sum has norm at most C. It is the very gradient that was measured, times a
    factor that was rounded down, and the slack is more than rounding can add. A gradient that is not finite becomes
    zero.
    """

    normalise = False
    views = 1
    slack = 0.0
    example_weights: Tensor

    def clip_and_accumulate(self) -> None:
        samples = [self._get_flat_grad_sample(p).to(p.dtype) for p in self.params]
        if self.views > 1:  # the mean over a record's views is one gradient, clipped as one
            samples = [g.reshape(-1, self.views, *g.shape[1:]).mean(dim=1) for g in samples]
        if any(len(g) != len(self.example_weights) for g in samples):
            raise UnsupportedModelError("the model gives more or fewer gradients than there are records")
        norms = torch.linalg.vector_norm(torch.stack([row_norms(g) for g in samples], dim=1), dim=1)
        factors = clip_factors(norms, self.max_grad_norm, normalise=self.normalise, slack=self.slack)
        factors = factors * self.example_weights.double()
        finite = torch.isfinite(norms)
        for p, gradients in zip(self.params, samples, strict=True):
            if not bool(finite.all()):
                gradients = keep_rows(gradients, finite)
            self._accumulate(p, torch.einsum("i,i...", rounded_down(factors, p.dtype), gradients))


def build_optimizer(
    optimizer: Optimizer,
    *,
    sums: bool,
    sigma: float,
    max_grad_norm: float,
    batch_size: int,
    noise: Noise | None,
    world: World,
) -> ClippedSumOptimizer | PerExampleOptimizer:
    """The optimizer for modes that leave a clipped sum (``sums``) or every example's gradient."""
    kind: Callable[..., ClippedSumOptimizer | PerExampleOptimizer] = (
        ClippedSumOptimizer if sums else PerExampleOptimizer
    )
    private = kind(
        optimizer,
        noise_multiplier=sigma,
        max_grad_norm=max_grad_norm,
        expected_batch_size=batch_size,
        loss_reduction="sum",  # the division is ours, in float64 and after the noise
    )
    private.noise, private.world = noise, world
    return private
