"""Models that keep CORDS' contract and Opacus'."""

from typing import TYPE_CHECKING

from cords_dp.late import late_names

if TYPE_CHECKING:
    from cords_dp.models.build import build_model, check_input, check_outputs
    from cords_dp.models.frozen import register_features
    from cords_dp.models.names import check_model, model_names, register_model
    from cords_dp.models.private import make_private_ready

__all__ = [
    "build_model",
    "check_input",
    "check_model",
    "check_outputs",
    "make_private_ready",
    "model_names",
    "register_features",
    "register_model",
]

# Each comes when it is asked for: a model needs torch, and the name of one does not.
__getattr__ = late_names(
    __name__,
    {
        "build": ("build_model", "check_input", "check_outputs"),
        "names": ("check_model", "model_names", "register_model"),
        "frozen": ("register_features",),
        "private": ("make_private_ready",),
    },
)
