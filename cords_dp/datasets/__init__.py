"""Datasets: how they are fetched, made and split. Only fixed public constants touch the records."""

from cords_dp.datasets.arrays import ArrayDataset, Splits
from cords_dp.datasets.batches import records_at, sequential_batches
from cords_dp.datasets.binding import data_binding
from cords_dp.datasets.build import DATASETS, build_dataset, check_dataset, dataset_name, known_sizes
from cords_dp.datasets.features import with_features

__all__ = [
    "DATASETS",
    "ArrayDataset",
    "Splits",
    "build_dataset",
    "check_dataset",
    "data_binding",
    "dataset_name",
    "known_sizes",
    "records_at",
    "sequential_batches",
    "with_features",
]
