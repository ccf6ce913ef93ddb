"""Imports that wait until they are needed: torch and CORDS take seconds, and planning needs neither.

if TYPE_CHECKING:
    import torch
else:
    torch = late_module("torch")
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


def late_module(name: str) -> Any:
    """A module that is imported when a name in it is first used."""
    return _LateModule(name)


class _LateModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(sys.modules.get(self.__name__) or importlib.import_module(self.__name__), name)


class LateName:
    """A class or a function of a module that is imported when it is used. Before that nothing can be an instance."""

    def __init__(self, module: str, name: str, load: Callable[[str], Any] = importlib.import_module):
        self._module, self._name, self._load = module, name, load

    def _real(self) -> Any:
        return getattr(self._load(self._module), self._name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._real()(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._real(), name)

    def __instancecheck__(self, thing: Any) -> bool:
        return self._module in sys.modules and isinstance(thing, self._real())


@contextlib.contextmanager
def standing_in(modules: Mapping[str, types.ModuleType]) -> Iterator[None]:
    """These modules under their names, while something is imported."""
    displaced = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for name, previous in displaced.items():
            if previous is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = previous


def late_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """A package's ``__getattr__``: its public names by the module of the package that each comes from."""
    home = {name: f"{package}.{module}" for module, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name in home:
            return getattr(importlib.import_module(home[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
