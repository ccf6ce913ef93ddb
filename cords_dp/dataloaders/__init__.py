"""Dataloaders with Poisson batches of (x, y, weight)."""

from cords_dp.dataloaders.poisson import fetch, poisson_batches, sequential_batches

__all__ = ["fetch", "poisson_batches", "sequential_batches"]
