"""Models that keep CORDS' contract and Opacus'."""

from cords_dp.models.build import build_model, check_input, check_model, check_outputs, model_names, register_model
from cords_dp.models.convolutional import TanhCNN, WideResNet
from cords_dp.models.frozen import register_features
from cords_dp.models.heads import LinearHead, MLPHead
from cords_dp.models.private import make_private_ready
from cords_dp.models.scattering import ScatterCNN, ScatterLinear

register_model("LinearHead", LinearHead)
register_model("MLPHead", MLPHead)
register_model("ScatterLinear", ScatterLinear)
register_model("ScatterCNN", ScatterCNN)
register_model("TanhCNN", TanhCNN)
register_model("WideResNet", WideResNet)

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
