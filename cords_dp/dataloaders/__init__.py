"""CORDS' dataloaders, private and not, and Poisson batches of (x, y, weight)."""

from cords_dp.dataloaders.poisson import Batch, poisson_batches

__all__ = ["Batch", "poisson_batches"]
