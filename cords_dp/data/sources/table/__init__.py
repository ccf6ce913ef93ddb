"""Tables: CSV, Parquet and .npz files with a public schema."""

from cords_dp.data.sources.table.source import TableSource

__all__ = ["TableSource"]
