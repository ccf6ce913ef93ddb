"""Tables: CSV, Parquet and .npz files with a public schema. Needs pyarrow, which an extra installs."""

from cords_dp.extras import need

need("pyarrow", extra="table", what="a table")

# below: modules that import pyarrow
from cords_dp.data.sources.table.schema import Categorical, Schema, load_schema  # noqa: E402
from cords_dp.data.sources.table.source import TableSource  # noqa: E402
from cords_dp.data.sources.table.store import TableStore  # noqa: E402

__all__ = ["Categorical", "Schema", "TableSource", "TableStore", "load_schema"]
