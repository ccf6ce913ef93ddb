"""torch's compiler takes three seconds to import, and nothing here is compiled by it.

torchvision imports it for one question; optimizers, to be left out of what it compiles. As long as nobody has imported
it nothing can be compiled, so both can wait: the question until it is asked, optimizers until the compiler is there. A
process that uses the compiler gets what it would have got.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

_COMPILER, _UTILS = "torch._dynamo", "torch._dynamo.utils"


_lock, _users = threading.Lock(), 0


@contextlib.contextmanager
def compiler_deferred() -> Iterator[None]:
    """While torchvision is imported, or an optimizer takes a step, a stand-in answers for the compiler.

    Threads share it; the last to leave takes it away.
    """
    global _users
    with _lock:
        _users += 1
        if _COMPILER not in sys.modules:
            package, utils = _StandIn(_COMPILER), _StandIn(_UTILS)
            package.graph_break = lambda *_, **__: None  # type: ignore[attr-defined]
            utils.is_compile_supported = _is_compile_supported  # type: ignore[attr-defined]
            sys.modules.update({_COMPILER: package, _UTILS: utils})
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _remove_stand_ins()


class _StandIn(types.ModuleType):
    """Who asks it for anything else, in another thread for instance, gets the compiler."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _remove_stand_ins()
        return getattr(importlib.import_module(self.__name__), name)


def _remove_stand_ins() -> None:
    for name in (_UTILS, _COMPILER):
        if isinstance(sys.modules.get(name), _StandIn):
            sys.modules.pop(name, None)


def _is_compile_supported(device_type: Any) -> Any:
    _remove_stand_ins()
    return importlib.import_module(_UTILS).is_compile_supported(device_type)


def torchvision_networks() -> Any:
    """``torchvision.models``, without the compiler, which it would import."""
    with compiler_deferred():
        return importlib.import_module("torchvision.models")


def free_optimizers_of_compiler() -> None:
    """Let optimizers call their methods directly until somebody imports the compiler."""
    from torch.optim import Optimizer

    for method in list(vars(Optimizer).values()):
        function = getattr(method, "__wrapped__", None)
        kept_out = getattr(getattr(method, "__code__", None), "co_filename", "").endswith("_compile.py")
        if function is not None and kept_out and not hasattr(function, "__dynamo_disable"):
            function.__dynamo_disable = _direct(function)


def _direct(function: Callable[..., Any]) -> Callable[..., Any]:
    kept_out: Callable[..., Any] | None = None

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal kept_out
        compiler = sys.modules.get(_COMPILER)
        if kept_out is None and compiler is not None and not isinstance(compiler, _StandIn):
            if getattr(compiler.__spec__, "_initializing", False):
                return function(*args, **kwargs)  # another thread is importing it
            kept_out = compiler.disable(function, True)
        return (kept_out or function)(*args, **kwargs)

    return call
