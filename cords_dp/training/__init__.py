"""Training: CORDS' loop with private strategies."""

from cords_dp.training.setup import RunSetup, check_config
from cords_dp.training.trainer import TrainClassifier

__all__ = ["RunSetup", "TrainClassifier", "check_config"]
