"""Datasets: how they are fetched, made and split. Only fixed public constants touch the records."""

from cords_dp.datasets.adult import AdultSource
from cords_dp.datasets.arrays import ArrayDataset, PixelConstants, Splits
from cords_dp.datasets.batches import records_at, sequential_batches
from cords_dp.datasets.binding import data_binding
from cords_dp.datasets.build import (
    DATASETS,
    build_dataset,
    check_dataset,
    dataset_name,
    has_classes,
    holds_images,
    known_sizes,
    public_facts,
)
from cords_dp.datasets.features import threads_for, with_features
from cords_dp.datasets.folder import FolderSource
from cords_dp.datasets.hub_folder import HubSource
from cords_dp.datasets.own import GuardedDataset, checked_splits
from cords_dp.datasets.own_arrays import ArraySource, EmbeddingSource
from cords_dp.datasets.own_texts import TextSource
from cords_dp.datasets.padding import is_text, padded_splits, public_length
from cords_dp.datasets.rows import described_rows, rows_of
from cords_dp.datasets.shards import Share, cut_splits, no_records, places, whole_size
from cords_dp.datasets.sources import Facts, Source, find_source, register_source, unregister_source
from cords_dp.datasets.table import TableSource
from cords_dp.datasets.text import glove_file
from cords_dp.datasets.texts import TextRecords

for _source in (FolderSource(), ArraySource(), EmbeddingSource(), TextSource(), HubSource()):
    register_source(_source)

register_source(TableSource())
register_source(AdultSource())

__all__ = [
    "DATASETS",
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
