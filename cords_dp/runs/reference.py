"""The configuration reference as Markdown, made from the code that reads a config.

``python -m cords_dp.runs.reference`` prints it; with ``docs/configuration.md`` after it, it is written into that
page, below the mark.

Everything comes from `config.keys`, the mechanisms' fields and the sources' keys. What a value may be is what the check
itself says when it refuses one.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from cords_dp.config.keys import COMMON_STRATEGY_KEYS, CORDS_STRATEGY_KEYS, SECTIONS, SOURCE_KEYS, TOP_LEVEL
from cords_dp.config.presets import config_for
from cords_dp.config.values import Check, Key, keys_of
from cords_dp.data.sources.base import find_source, source_names
from cords_dp.errors import ConfigError
from cords_dp.planning.mechanism import registered_mechanisms

MARK = "<!-- Below this line: made by python -m cords_dp.runs.reference docs/configuration.md -->\n\n"
_OF_CORDS = (
    "Each is an argument of CORDS' own strategies, which private ones do not use; those that select name it in the "
    "log, except where a mechanism above has a key of that name."
)


def reference() -> str:
    """Render all sections, keys, values, defaults and meanings."""
    parts = ["## The top level", _keys_table(TOP_LEVEL)]
    for name, section in SECTIONS.items():
        parts += [f"## `{name}`", section.doc, *_section(name, section.keys)]
    return "\n\n".join(parts) + "\n"


def write_reference(page: Path) -> None:
    """Replace what stands below the mark of the page."""
    page.write_text(page.read_text().partition(MARK)[0] + MARK + reference())


def documented_keys() -> dict[str, set[str]]:
    """Return the keys that the reference names, by section; a test compares them with what the reader accepts."""
    found: dict[str, set[str]] = {}
    section = "top level"
    for line in reference().splitlines():
        if heading := re.match(r"## (?:`(\w+)`|The top level)", line):
            section = heading[1] or "top level"
        elif row := re.match(r"\| `(\w+)` \|", line):
            found.setdefault(section, set()).add(row[1])
    return found


# --- sections --------------------------------------------------------------------------------------------------------


def _section(name: str, keys: Mapping[str, Key]) -> list[str]:
    if name == "dss_args":
        return _strategy_parts()
    usual = config_for("digits", "GLISTERDP", privacy={}).get(name, {})
    table = _keys_table(keys, {} if name == "privacy" else usual)
    return [table, *_source_parts()] if name == "dataset" else [table]


def _strategy_parts() -> list[str]:
    parts = [_keys_table(COMMON_STRATEGY_KEYS)]
    for mechanism in registered_mechanisms():
        keys = keys_of(mechanism)
        table = _keys_table(keys) if keys else "It has no keys of its own."
        parts += [f'### `mechanism="{mechanism.name}"`', _sentence(mechanism.summary), table]
    rows = [(_code(name), _values(key.check)) for name, key in sorted(CORDS_STRATEGY_KEYS.items())]
    return [*parts, "### CORDS' own keys", _wrapped(_OF_CORDS), _table(("key", "value"), rows)]


def _source_parts() -> list[str]:
    parts = []
    for name in source_names():
        find_source(name)  # registers its keys
        parts += [f'### `name="{name}"`', _keys_table(SOURCE_KEYS[name])]
    return parts


def _keys_table(keys: Mapping[str, Key], usual: Mapping[str, Any] | None = None) -> str:
    """Render a row for each key. ``usual``: what `config_for` gives, where it is worth a column."""
    shown = {name: _code(repr(value)) for name, value in (usual or {}).items() if value is not None}
    rows = [
        (_code(name), _values(key.check), _default(key), *([shown.get(name, "")] if usual else []), key.doc)
        for name, key in keys.items()
    ]
    return _table(("key", "value", "default", *(["in `config_for`"] if usual else []), "what"), rows)


def _default(key: Key) -> str:
    return "must be given" if key.default is MISSING else "" if key.default is None else _code(repr(key.default))


# --- Markdown --------------------------------------------------------------------------------------------------------


def _values(check: Check) -> str:
    """Return what a check says about a value that it refuses."""
    words, automatic = [], _accepts(check, "auto") and not _accepts(check, "no such value")
    if automatic:
        words.append('`"auto"`')
    try:
        check("", object())
        words.append("anything")
    except ConfigError as error:
        words.append(error.fix.removeprefix("must be ").partition("; ")[0])
    return " or ".join(words)


def _accepts(check: Check, value: Any) -> bool:
    try:
        check("", value)
    except ConfigError:
        return False
    return True


def _sentence(words: str) -> str:
    return _wrapped(words[0].upper() + words[1:] + ".")


def _wrapped(prose: str) -> str:
    return textwrap.fill(prose, width=120, break_long_words=False, break_on_hyphens=False)


def _code(text: str) -> str:
    return f"`{text}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [header, tuple("---" for _ in header), *(tuple(_cell(cell) for cell in row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    if sys.argv[1:]:
        write_reference(Path(sys.argv[1]))
    else:
        print(reference(), end="")
