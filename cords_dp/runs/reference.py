"""The configuration reference as Markdown, made from the code that reads a config.

``python -m cords_dp.runs.reference`` prints it; with ``docs/configuration.md`` after it, it is written into that
page, below the mark.

Keys and what their values may be come from `config.keys`, the settings classes, the mechanisms' fields and the sources'
keys; words come from their docstrings and from `config.words`. What a value may be is what the check itself says when
it refuses one.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

import cords_dp.training.resolve  # noqa: F401 - registers mechanisms and strategies
from cords_dp.config.keys import (
    KEY_WORDS,
    KEYS,
    OF_CORDS,
    SECTION_WORDS,
    SOURCE_KEYS,
    SOURCE_WORDS,
    TOP_LEVEL,
    TOP_LEVEL_WORDS,
    Check,
)
from cords_dp.config.presets import config_for
from cords_dp.config.settings import CORDS_STRATEGY_KEYS, PrivacySettings, SubsetSettings
from cords_dp.data.sources.base import find_source, source_names
from cords_dp.errors import ConfigError
from cords_dp.planning.mechanism import Mechanism, registered_mechanisms

MARK = "<!-- Below this line: made by python -m cords_dp.runs.reference docs/configuration.md -->\n\n"
_NAMES = re.compile(r"^(?P<names>\w+(?:, \w+)*): (?P<words>.*)$", re.DOTALL)


def reference() -> str:
    """All sections, keys, values, defaults and meanings."""
    parts = ["## The top level", _table(("key", "value", "what"), _top_level_rows())]
    for section in KEYS:
        parts += [f"## `{section}`", SECTION_WORDS[section], *_section(section)]
    return "\n\n".join(parts) + "\n"


def write_reference(page: Path) -> None:
    """Replace what stands below the mark of the page."""
    page.write_text(page.read_text().partition(MARK)[0] + MARK + reference())


def documented_keys() -> dict[str, set[str]]:
    """The keys that the reference names, by section: what a test holds against what the reader accepts."""
    found: dict[str, set[str]] = {}
    section = "top level"
    for line in reference().splitlines():
        if heading := re.match(r"## (?:`(\w+)`|The top level)", line):
            section = heading[1] or "top level"
        elif row := re.match(r"\| `(\w+)` \|", line):
            found.setdefault(section, set()).add(row[1])
    return found


# --- sections --------------------------------------------------------------------------------------------------------


def _top_level_rows() -> Iterable[tuple[str, ...]]:
    return [(_code(key), _values(check), TOP_LEVEL_WORDS.get(key, "")) for key, check in TOP_LEVEL.items()]


def _section(section: str) -> list[str]:
    if section == "privacy":
        return [_settings_table(PrivacySettings)]
    checks = KEYS[section]
    assert checks is not None
    if section == "dss_args":
        return _strategy_parts(checks)
    table = _table(("key", "value", "in `config_for`", "what"), _key_rows(section, checks))
    return [table, *_source_parts()] if section == "dataset" else [table]


def _key_rows(section: str, checks: Mapping[str, Check]) -> Iterable[tuple[str, ...]]:
    usual = config_for("digits", "GLISTERDP", privacy={})[section]
    for key, check in checks.items():
        default = _code(repr(usual[key])) if key in usual and usual[key] is not None else ""
        yield _code(key), _values(check), default, KEY_WORDS[section].get(key, "")


def _strategy_parts(checks: Mapping[str, Check]) -> list[str]:
    common = {f.name for f in fields(SubsetSettings)}
    first = [key for key in ("type", "mechanism", "score", "collate_fn") if key in checks]
    rows = [(_code(key), _values(checks[key]), "", KEY_WORDS["dss_args"][key]) for key in first]
    parts = [_table(("key", "value", "default", "what"), [*rows, *_setting_rows(SubsetSettings)])]
    for mechanism in registered_mechanisms():
        parts += [f'### `mechanism="{mechanism.name}"`', _sentence(mechanism.summary), _mechanism_table(mechanism)]
    others = sorted(CORDS_STRATEGY_KEYS | set(checks) - common - set(first))
    parts += [
        "### CORDS' own keys",
        _wrapped(f"Each is {OF_CORDS}, except where a mechanism above has a key of that name."),
        _table(
            ("key", "value"),
            [(_code(key), _values(checks[key]) if key in checks else "anything") for key in others],
        ),
    ]
    return parts


def _mechanism_table(mechanism: type[Mechanism]) -> str:
    if not fields(mechanism):
        return "It has no keys of its own."
    return _settings_table(mechanism)


def _source_parts() -> list[str]:
    parts = []
    for name in source_names():
        source, checks = find_source(name), SOURCE_KEYS[name]
        words = {**SOURCE_WORDS, **_explained(type(source))}
        rows = [(_code(key), _values(check), words.get(key, "")) for key, check in checks.items()]
        parts += [f'### `name="{name}"`', _table(("key", "value", "what"), rows)]
    return parts


# --- settings classes ------------------------------------------------------------------------------------------------


def _settings_table(kind: type) -> str:
    return _table(("key", "value", "default", "what"), _setting_rows(kind))


def _setting_rows(kind: type) -> Iterable[tuple[str, ...]]:
    words = _explained(kind)
    for field in fields(kind):
        yield (
            _code(field.name),
            _code(_type(field)),
            _default(field),
            words.get(field.name) or KEY_WORDS["dss_args"].get(field.name, ""),
        )


def _type(field: Field) -> str:
    return str(field.type).replace(" | None", "")


def _default(field: Field) -> str:
    if field.default is MISSING:
        return "must be given"
    return "left out" if field.default is None else _code(repr(field.default))


def _explained(kind: type) -> dict[str, str]:
    """``name, other: words`` of a docstring, by name. Lines that belong to an entry are indented, or follow it."""
    words: dict[str, str] = {}
    for paragraph in inspect.cleandoc(kind.__doc__ or "").split("\n\n"):
        entries = re.split(r"\n(?=\w+(?:, \w+)*: )", paragraph)
        for entry in (part for lines in entries for part in _parts_of(lines)):
            if found := _NAMES.match(" ".join(entry.split())):
                words.update(dict.fromkeys(found["names"].split(", "), _markdown(found["words"])))
    return words


def _parts_of(entry: str) -> list[str]:
    """Entries that share a line: ``path: the file. target: the column.``"""
    return re.split(r"(?<=\.)\s+(?=[a-z]\w*(?:, [a-z]\w*)*: )", entry)


# --- Markdown --------------------------------------------------------------------------------------------------------


def _values(check: Check) -> str:
    """What a check says about a value that it refuses."""
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


def _markdown(words: str) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", words)


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
