"""Per-example gradients: the modes that clip and sum them, and the choice of one for a model."""

from cords_dp.training.gradients.bookkeeping import Bookkeeping
from cords_dp.training.gradients.choose import choose_mode, refuse_mixing
from cords_dp.training.gradients.linear import LinearHeads
from cords_dp.training.gradients.mode import (
    GradientMode,
    gradient_mode,
    gradient_modes,
    register_gradient_mode,
    unregister_gradient_mode,
)
from cords_dp.training.gradients.opacus import ExpandedWeights, Functorch, GhostClipping, Hooks

__all__ = [
    "Bookkeeping",
    "ExpandedWeights",
    "Functorch",
    "GhostClipping",
    "GradientMode",
    "Hooks",
    "LinearHeads",
    "choose_mode",
    "gradient_mode",
    "gradient_modes",
    "refuse_mixing",
    "register_gradient_mode",
    "unregister_gradient_mode",
]

for _mode in (LinearHeads(), Bookkeeping(), Hooks(), ExpandedWeights(), Functorch(), GhostClipping()):
    register_gradient_mode(_mode)
