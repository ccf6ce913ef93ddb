"""Datasets: how they are fetched, made and split. Only fixed public constants touch the records."""

from cords_dp.datasets.arrays import ArrayDataset, Splits
from cords_dp.datasets.batches import records_at, sequential_batches
from cords_dp.datasets.binding import data_binding
from cords_dp.datasets.build import DATASETS, build_dataset, check_dataset, dataset_name, holds_images, known_sizes
from cords_dp.datasets.features import with_features
from cords_dp.datasets.own import GuardedDataset, checked_splits

__all__ = [
    "DATASETS",
    "ArrayDataset",
    "GuardedDataset",
    "Splits",
    "build_dataset",
    "check_dataset",
    "checked_splits",
    "data_binding",
    "dataset_name",
    "holds_images",
    "known_sizes",
    "records_at",
    "sequential_batches",
    "with_features",
]
