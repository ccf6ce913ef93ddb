"""The optimizer that a user's own loop holds: every step of it is a private one, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from cords_dp.errors import MechanismError


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
        """One private step on the batch that was drawn last. ``closure`` computes its loss, as Lightning asks."""
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


def follow(optimizer: Optimizer, old: nn.Module, new: nn.Module) -> None:
    """Let an optimizer of ``old``'s weights go on with ``new``'s, by name: layers were replaced."""
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
