"""Tables: CSV, Parquet and .npz files with a public schema. Needs pyarrow, which an extra installs."""

from cords_dp.extras import need

need("pyarrow", extra="table", what="a table")

from cords_dp.data.sources.table.source import TableSource  # noqa: E402 - imports pyarrow

__all__ = ["TableSource"]
