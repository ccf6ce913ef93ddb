"""A schema to be filled in, from a file's header: ``cords-dp data describe``.

Formal guarantee: what is written is a function of the file's header (column names and, in Parquet, storage types) and
of what the user declares. No value of any record is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from cords_dp.data.sources.table.files import TableFile
from cords_dp.data.sources.table.schema import TODO
from cords_dp.errors import ConfigError

_HEAD = """\
# What is public about {name}. Fill in every {todo} with knowledge that does not come from the records: a range or
# a category that was read off them tells something about them. Values outside of a range are moved to its ends, other
# categories share a cell, missing values are allowed. A numeric column may have `bins: 16` or `log: true`. A range may
# be one of dates: [2020-01-01, 2030-12-31]. Columns that are not used (an id, free text) belong in `ignore`.
"""
_HINTS = {
    "number": "range: [lowest, highest] that are possible",
    "text": "categories: [...] that are possible",
    "date": "range: [2020-01-01, 2030-12-31], the first and the last that are possible",
    "": "{range: [lowest, highest]} of numbers or dates, or {categories: [...]}",
}


def schema_template(
    file: TableFile,
    *,
    target: str,
    ranges: Mapping[str, tuple[Any, Any]],
    categories: Mapping[str, Sequence[str]],
    ignore: Sequence[str] = (),
    hint: str = "",
) -> str:
    """Write YAML for a file's columns, with what the user has declared. ``hint``: for a column that is not there."""
    for option, names in (
        ("--target", [target]),
        ("--range", ranges),
        ("--categories", categories),
        ("--ignore", ignore),
    ):
        for name in names:
            if name not in file.header:
                raise ConfigError(option, name, f"{file.path.name} has no such column{hint}")
    if twice := sorted(set(ranges) & set(categories)):
        raise ConfigError("--range", twice[0], "has categories, too; give one of them")
    lines = [_HEAD.format(name=file.path.name, todo=TODO), "target:", f"  name: {_quoted(target)}"]
    if target in ranges:
        lines.append(f"  range: {_quoted(list(ranges[target]))}")
    else:
        hint = "" if target in categories else '  # e.g. ["no", "yes"]; or range: [lowest, highest] for a regression'
        lines.append(f"  classes: {_quoted(list(categories[target])) if target in categories else TODO}{hint}")
    lines.append("columns:")
    for name in file.header:
        if name != target and name not in ignore:
            lines.append(f"  {_quoted(name)}: {_template_column(name, file.types.get(name, ''), ranges, categories)}")
    return "\n".join([*lines, f"ignore: {_quoted(list(ignore))}", ""])


def _template_column(name: str, stored: str, ranges: Mapping[str, Any], categories: Mapping[str, Any]) -> str:
    if name in ranges:
        return f"{{range: {_quoted(list(ranges[name]))}}}"
    if name in categories:
        return f"{{categories: {_quoted(list(categories[name]))}}}"
    hint = _HINTS.get(stored, f"is stored as {stored}: store numbers or texts, or move it to ignore")
    kind = {"number": "{range: TODO}", "date": "{range: TODO}", "text": "{categories: TODO}"}.get(stored, TODO)
    return f"{kind}  # {hint}"


def _quoted(value: Any) -> str:
    """Quote a value as JSON, which is YAML that needs no guessing: "no" stays a text."""
    return json.dumps(value, ensure_ascii=False)


def parse_range(text: str) -> tuple[str, tuple[Any, Any]]:
    """Parse ``age=0:100``, or ``born=1900-01-01:2025-12-31``."""
    name, _, values = text.partition("=")
    low, _, high = values.partition(":")
    for read in (float, lambda day: str(date.fromisoformat(day))):
        try:
            return name.strip(), (read(low), read(high))
        except ValueError:
            pass
    raise ConfigError(
        "--range", text, "write it as column=lowest:highest, for instance age=0:100, or with dates as 2020-01-31"
    )


def parse_categories(text: str) -> tuple[str, tuple[str, ...]]:
    """Parse ``sex=Male,Female``."""
    name, separator, values = text.partition("=")
    categories = tuple(value.strip() for value in values.split(",") if value.strip())
    if not separator or not categories:
        raise ConfigError("--categories", text, "write it as column=one,other, for instance sex=Male,Female")
    return name.strip(), categories
