"""Gives a custom loop what it holds: a model made ready, an optimizer that looks like the user's, drawn batches.

`loop` has the guarantees. What a loop computes of a batch is compared, and enters the weights nowhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from cords_dp.errors import MechanismError
from cords_dp.models.build import check_input
from cords_dp.models.private import make_private_ready
from cords_dp.models.unchanged import refuse_changes, state_of
from cords_dp.training.poisson import Batch


class LoopOptimizer(Optimizer):
    """Looks like the user's optimizer to loops, schedulers and Lightning; ``step`` hands over to the private engine.

    The user's optimizer stays the one that changes weights, from inside the engine. Called from anywhere else it
    refuses: its gradients would be exact.
    """

    def __init__(self, original: Optimizer, take_step: Callable[[], None]):
        # torch's own constructor would make groups of its own; these stay the original's
        self.original, self._take_step, self._inside = original, take_step, False
        self.defaults = original.defaults
        original.register_step_pre_hook(self._refuse_outside)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.original.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.original.state

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return self.original.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.original.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.original.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take one private step on the batch that was drawn last. ``closure`` computes its loss, as Lightning asks."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._inside = True
        try:
            self._take_step()
        finally:
            self._inside = False
        return loss

    def _refuse_outside(self, *_: Any) -> None:
        if not self._inside:
            raise MechanismError(
                "this optimizer was made private: step with the one that make_private returned, as in "
                "model, optimizer = loader.make_private(model, optimizer)"
            )


def ready_for_loop(model: nn.Module, optimizer: Optimizer, record: Tensor, logger: logging.Logger) -> nn.Module:
    """Replace what mixes records, with a warning; refuse a model that cannot read such records."""
    ready, replaced = make_private_ready(model)
    for what in replaced:
        logger.warning("%s: replaced %s.", type(model).__name__, what)
    follow(optimizer, model, ready)
    ready.to(next(ready.parameters()).device)
    check_input(ready, record)
    return ready


def watch(model: nn.Module, seen: Callable[[nn.Module, tuple[object, ...], object], None]) -> None:
    """Show every forward pass of the loop, by plain functions: copies of the model do not copy the loader.

    One in which the model changes its weights is refused, as in a step: the loop shows it the batch first.
    """
    state: dict[str, Tensor] = {}

    def begins(module: nn.Module, inputs: tuple[object, ...]) -> None:
        state.clear()
        state.update(state_of(module))

    def ends(module: nn.Module, inputs: tuple[object, ...], outputs: object) -> None:
        refuse_changes(module, state)
        seen(module, inputs, outputs)

    model.register_forward_pre_hook(begins)
    model.register_forward_hook(ends)


def follow(optimizer: Optimizer, old: nn.Module, new: nn.Module) -> None:
    """Let an optimizer of ``old``'s weights continue with ``new``'s, by name: layers were replaced."""
    if old is new:
        return
    if optimizer.state:
        raise MechanismError("the optimizer has taken steps already: make it private before the first")
    names = {id(p): name for name, p in old.named_parameters()}
    weights = dict(new.named_parameters())
    for group in optimizer.param_groups:
        try:
            group["params"] = [weights[names[id(p)]] for p in group["params"]]
        except KeyError:
            raise MechanismError("the optimizer holds weights that are not the model's") from None


_TOLERANCE = 1e-3  # of the gradient that a sum of weighted losses has
_FIX = (
    "the gradient of this loss is not the sum over records of weight · loss. A private step adds up each record's own "
    "clipped gradient and divides by the public batch size; a loop that divides by weights.sum() or by the number of "
    "records lets one record change what the others count. Write  loss = torch.dot(losses, weights)  with losses by "
    "the loss in dss_args, reduction='none'"
)


@dataclass
class DrawnBatch:
    """A drawn batch and the labels in it: its loss is checked, then exactly one step is taken.

    ``checked``: its loss was seen to be the right one. ``taken``: its step was taken.
    """

    drawn: Batch
    y: Tensor
    checked: bool = False
    taken: bool = False

    @property
    def x(self) -> Tensor:
        return self.drawn[0]

    @property
    def weights(self) -> Tensor:
        return self.drawn[2]

    def watch(self, model: nn.Module, inputs: tuple[object, ...], outputs: object, loss: nn.Module) -> None:
        """Watch a forward pass in training: its records must be this batch's, and what flows back is checked."""
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
