"""Loads extensions: modules that register mechanisms, strategies and the like, and sources of records.

An installed package declares them as entry points. Those of the group ``cords_dp.extensions`` are modules, which are
imported before a config is read. Those of ``cords_dp.sources`` are `Source` classes, each under its ``dataset.name``
and loaded when a config asks for that name, since a source may need packages that nothing else does. What comes with
the package, studies included, stands in the table below in the same form, so no room has to import those above it.

An extension is code that runs with the user's rights, as any installed package is.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from cords_dp.errors import MechanismError

MODULES, SOURCES = "cords_dp.extensions", "cords_dp.sources"
_OURS = (
    EntryPoint("selection", "cords_dp.selection", MODULES),
    EntryPoint("match", "cords_dp.studies.match", MODULES),
    EntryPoint("labels", "cords_dp.studies.labels", MODULES),
    EntryPoint("forward", "cords_dp.studies.forward", MODULES),
    EntryPoint("folder", "cords_dp.data.sources.folder:FolderSource", SOURCES),
    EntryPoint("arrays", "cords_dp.data.sources.arrays:ArraySource", SOURCES),
    EntryPoint("embeddings", "cords_dp.data.sources.arrays:EmbeddingSource", SOURCES),
    EntryPoint("text", "cords_dp.data.sources.texts:TextSource", SOURCES),
    EntryPoint("huggingface", "cords_dp.data.sources.huggingface:HubSource", SOURCES),
    EntryPoint("table", "cords_dp.data.sources.table:TableSource", SOURCES),
    EntryPoint("uci_adult", "cords_dp.studies.adult:AdultSource", SOURCES),
)
_state = "new"  # then "loading", then "loaded"


def load_extensions() -> None:
    """Import the modules that register something, ours first, each once. What they register while they are imported
    is looked up, which leads here again: then there is nothing to do."""
    global _state
    if _state != "new":
        return
    _state = "loading"
    try:
        for entry in _entries(MODULES):
            load(entry)
        _state = "loaded"
    finally:
        _state = "loaded" if _state == "loaded" else "new"  # after a failure the next one to ask is told as well


def offered_sources() -> dict[str, EntryPoint]:
    """Return the sources by their ``dataset.name``, none of them loaded. No extension takes a name of ours."""
    return {entry.name: entry for entry in reversed(_entries(SOURCES))}


def load(entry: EntryPoint) -> Any:
    """Import what an entry point names."""
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise MechanismError(f"the extension {entry.name!r} ({entry.value}) cannot be loaded: {error}") from error


def _entries(group: str) -> list[EntryPoint]:
    ours = [entry for entry in _OURS if entry.group == group]
    return [*ours, *sorted(entry_points(group=group), key=lambda entry: entry.name)]
