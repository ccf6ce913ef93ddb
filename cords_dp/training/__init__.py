"""Training: CORDS' loop with private strategies."""

from typing import TYPE_CHECKING

from cords_dp.late import late_names

if TYPE_CHECKING:
    from cords_dp.training.run import Run, resolve
    from cords_dp.training.trainer import TrainClassifier

__all__ = ["Run", "TrainClassifier", "resolve"]
__getattr__ = late_names(__name__, {"run": ("Run", "resolve"), "trainer": ("TrainClassifier",)})
