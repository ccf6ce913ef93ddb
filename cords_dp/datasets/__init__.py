"""Datasets: how they are fetched, made and split. Only fixed public constants touch the records."""

from typing import TYPE_CHECKING

from cords_dp.late import late_names

if TYPE_CHECKING:
    from cords_dp.datasets.adult import AdultSource
    from cords_dp.datasets.arrays import ArrayDataset, Splits
    from cords_dp.datasets.batches import records_at, sequential_batches
    from cords_dp.datasets.binding import data_binding
    from cords_dp.datasets.build import build_dataset
    from cords_dp.datasets.features import threads_for, with_features
    from cords_dp.datasets.folder import FolderSource
    from cords_dp.datasets.hub_folder import HubSource
    from cords_dp.datasets.own import GuardedDataset, checked_splits
    from cords_dp.datasets.own_arrays import ArraySource, EmbeddingSource
    from cords_dp.datasets.own_texts import TextSource
    from cords_dp.datasets.padding import is_text, padded_splits, public_length
    from cords_dp.datasets.pixels import PixelConstants
    from cords_dp.datasets.published import (
        DATASETS,
        check_dataset,
        dataset_name,
        has_classes,
        holds_images,
        known_sizes,
        public_facts,
    )
    from cords_dp.datasets.rows import described_rows, rows_of
    from cords_dp.datasets.shards import Share, cut_splits, no_records, places, whole_size
    from cords_dp.datasets.sources import Facts, Source, find_source, register_source, unregister_source
    from cords_dp.datasets.table import TableSource
    from cords_dp.datasets.text import glove_file
    from cords_dp.datasets.texts import TextRecords

__all__ = [
    "DATASETS",
    "AdultSource",
    "ArrayDataset",
    "ArraySource",
    "EmbeddingSource",
    "Facts",
    "FolderSource",
    "GuardedDataset",
    "HubSource",
    "PixelConstants",
    "Share",
    "Source",
    "Splits",
    "TableSource",
    "TextRecords",
    "TextSource",
    "build_dataset",
    "check_dataset",
    "checked_splits",
    "cut_splits",
    "data_binding",
    "dataset_name",
    "described_rows",
    "find_source",
    "glove_file",
    "has_classes",
    "holds_images",
    "is_text",
    "known_sizes",
    "no_records",
    "padded_splits",
    "places",
    "public_facts",
    "public_length",
    "records_at",
    "register_source",
    "rows_of",
    "sequential_batches",
    "threads_for",
    "unregister_source",
    "whole_size",
    "with_features",
]

# Each comes when it is asked for: most need torch, and what is public of a set does not.
__getattr__ = late_names(
    __name__,
    {
        "adult": ("AdultSource",),
        "arrays": (
            "ArrayDataset",
            "Splits",
        ),
        "batches": (
            "records_at",
            "sequential_batches",
        ),
        "binding": ("data_binding",),
        "build": ("build_dataset",),
        "pixels": ("PixelConstants",),
        "published": (
            "DATASETS",
            "check_dataset",
            "dataset_name",
            "has_classes",
            "holds_images",
            "known_sizes",
            "public_facts",
        ),
        "features": (
            "threads_for",
            "with_features",
        ),
        "folder": ("FolderSource",),
        "hub_folder": ("HubSource",),
        "own": (
            "GuardedDataset",
            "checked_splits",
        ),
        "own_arrays": (
            "ArraySource",
            "EmbeddingSource",
        ),
        "own_texts": ("TextSource",),
        "padding": (
            "is_text",
            "padded_splits",
            "public_length",
        ),
        "rows": (
            "described_rows",
            "rows_of",
        ),
        "shards": (
            "Share",
            "cut_splits",
            "no_records",
            "places",
            "whole_size",
        ),
        "sources": (
            "Facts",
            "Source",
            "find_source",
            "register_source",
            "unregister_source",
        ),
        "table": ("TableSource",),
        "text": ("glove_file",),
        "texts": ("TextRecords",),
    },
)
