"""CORDS' dataloaders, private and not, and Poisson batches of (x, y, weight)."""

from typing import TYPE_CHECKING

from cords_dp.late import late_names

if TYPE_CHECKING:
    from cords_dp.dataloaders.poisson import Batch, poisson_batches

__all__ = ["Batch", "poisson_batches"]
__getattr__ = late_names(__name__, {"poisson": ("Batch", "poisson_batches")})
