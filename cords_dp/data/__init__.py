"""Records: published sets, sources of your own, how they are split, guarded and stored.

What a source of another kind of records needs is exported here.
"""

from cords_dp.data.record_set import RecordSet, Splits
from cords_dp.data.sources.base import (
    SPLIT_KEYS,
    Facts,
    Source,
    check_split,
    register_source,
    split_rows,
    split_store,
    unregister_source,
)
from cords_dp.data.store import LabelledStore, Store

__all__ = [
    "SPLIT_KEYS",
    "Facts",
    "LabelledStore",
    "RecordSet",
    "Source",
    "Splits",
    "Store",
    "check_split",
    "register_source",
    "split_rows",
    "split_store",
    "unregister_source",
]
