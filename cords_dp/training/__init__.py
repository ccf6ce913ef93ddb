"""Training: CORDS' loop with private strategies."""

from cords_dp.training.run import Run, resolve
from cords_dp.training.trainer import TrainClassifier

__all__ = ["Run", "TrainClassifier", "resolve"]
