"""One batch of a user's own loop: from the draw over the check of its loss to its one step.

The step itself is the engine's, on the batch as it was drawn; nothing that the loop computes enters it. So privacy does
not depend on the loop. The check is there for the user: who writes a loss that the step does not follow shall know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from cords_dp.errors import MechanismError

_TOLERANCE = 1e-3  # of the gradient that a sum of weighted losses has
_FIX = (
    "the gradient of this loss is not the sum over records of weight · loss. A private step adds up each record's own "
    "clipped gradient and divides by the public batch size; whoever divides by weights.sum() or by the number of "
    "records lets one record change what the others count. Write  loss = torch.dot(losses, weights)  with losses by "
    "the loss in dss_args, reduction='none'"
)


@dataclass
class Turn:
    """A drawn batch. ``checked``: its loss was seen to be the right one. ``taken``: its step was taken."""

    x: Tensor
    y: Tensor
    weights: Tensor
    checked: bool = False
    taken: bool = False

    def watch(self, model: nn.Module, inputs: tuple[object, ...], outputs: object, loss: nn.Module) -> None:
        """A forward pass in training: its records must be this batch's, and what flows back is checked."""
        if not (model.training and torch.is_grad_enabled() and isinstance(outputs, Tensor) and not self.taken):
            return
        given = inputs[0] if inputs else None
        if not isinstance(given, Tensor) or not _same(given, self.x):
            raise MechanismError(
                "the model was given other records than the batch that was drawn: steps are taken on the batch as it "
                "is. Change records in the dataset (or use privacy.augmentations), and evaluate in model.eval()"
            )
        outputs.register_hook(partial(self._check, outputs.detach(), loss))

    def _check(self, outputs: Tensor, loss: Callable[[Tensor, Tensor], Tensor], gradient: Tensor) -> None:
        logits = outputs.clone().requires_grad_()
        with torch.enable_grad():
            losses = loss(logits, self.y.to(logits.device))
            total = (losses.reshape(len(self.y), -1).sum(dim=1) * self.weights.to(losses)).sum()
        (expected,) = torch.autograd.grad(total, logits)
        # a record that is not finite is the engine's to leave out; it must not show here
        finite = torch.isfinite(expected).reshape(len(expected), -1).all(dim=1)
        expected, gradient = expected[finite], gradient[finite]
        if not float((gradient - expected).norm()) <= _TOLERANCE * float(expected.norm()):
            raise MechanismError(_FIX)
        self.checked = True

    def take(self) -> None:
        """Claim this batch's step: once, and after its loss."""
        if self.taken:
            raise MechanismError(
                "each batch is good for one step, and this one was taken: a second would be charged to nobody"
            )
        if not self.checked:
            raise MechanismError("call loss.backward() on this batch's loss before optimizer.step()")
        self.taken = True


def _same(given: Tensor, drawn: Tensor) -> bool:
    return given.shape == drawn.shape and bool(
        torch.equal(given.detach().to(drawn.device).nan_to_num(), drawn.nan_to_num())
    )
