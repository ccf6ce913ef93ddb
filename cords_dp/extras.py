"""Packages that only some uses need. Each belongs to an extra: ``pip install '.[EXTRA]'`` in the clone.

Code that needs one asks here, so that an error names what is missing and the command that installs it, and importing
`cords_dp` needs none of them.
"""

from __future__ import annotations

import importlib
import importlib.util
import types
from typing import Any

from cords_dp.errors import MissingExtraError


def need(package: str, *, extra: str, what: str) -> None:
    """Refuse what needs a package that is not installed. ``what`` is the user's word for it: a key, an option."""
    try:
        found = importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # an import that was blocked; a module without a spec
        found = False
    if not found:
        raise MissingExtraError(what, package, extra)


def on_first_use(module: str, *, extra: str, what: str) -> Any:
    """Return a module that is imported when a name in it is first used."""
    return _OnFirstUse(module, extra, what)


class _OnFirstUse(types.ModuleType):
    def __init__(self, module: str, extra: str, what: str):
        super().__init__(module)
        self._extra, self._what = extra, what

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        package = self.__name__.split(".")[0]
        try:
            value = getattr(importlib.import_module(self.__name__), name)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != package:
                raise
            raise MissingExtraError(self._what, package, self._extra) from error
        setattr(self, name, value)  # the next use finds it at once
        return value
