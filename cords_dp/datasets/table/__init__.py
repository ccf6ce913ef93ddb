"""Tables: CSV, Parquet and .npz files with a public schema."""

from cords_dp.datasets.table.source import TableSource

__all__ = ["TableSource"]
