"""A file layer that fails on purpose: Python's own calls, below one folder, from the n-th write on."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any


class FullDisk:
    """Python's file layer below ``root``: the n-th call that takes room fails, and every one after it.

    Such calls are those that create a file or folder, rename, write, or wait for the device. ``calls`` counts them.
    """

    def __init__(self, root: Path, nth: int, error: int = errno.ENOSPC):
        self.root, self.nth, self.error, self.calls = str(root.resolve()), nth, error, 0

    def take(self, *paths: Any) -> None:
        if any(self._below(path) for path in paths):
            self.calls += 1
            if self.calls >= self.nth:
                named = [os.fspath(path) for path in paths if not isinstance(path, int)]  # a write knows no name
                raise OSError(self.error, os.strerror(self.error), *named[:1])

    def _below(self, path: Any) -> bool:
        if isinstance(path, int):
            try:
                path = os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return False
        return isinstance(path, str | os.PathLike) and (os.path.abspath(path) + os.sep).startswith(self.root + os.sep)

    def install(self) -> None:
        """Take the place of the calls, for the rest of this process."""
        for name in ("write", "pwrite", "fsync", "replace", "rename", "mkdir", "posix_fallocate"):
            setattr(os, name, self._failing(getattr(os, name)))
        real_open = os.open

        def opened(path: Any, flags: int, *args: Any, **options: Any) -> int:
            if flags & os.O_CREAT and not os.path.exists(path):
                self.take(path)
            return real_open(path, flags, *args, **options)

        os.open = opened
        builtins.open = io.open = partial(self._open, io.open)  # type: ignore[assignment]

    def _failing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            self.take(*args[:2] if real.__name__ in ("replace", "rename") else args[:1])
            return real(*args, **options)

        return wrapped

    def _open(self, real: Callable[..., Any], file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None,
              errors: Any = None, newline: Any = None, closefd: bool = True, opener: Any = None) -> Any:  # fmt: skip
        if not {*mode} & {*"wax+"} or not self._below(file):
            return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if not isinstance(file, int) and not os.path.exists(file):
            self.take(file)
        disk = self

        class Raw(io.FileIO):
            def write(self, content: Any) -> int:
                disk.take(self.fileno())
                return super().write(content) or 0

        raw = Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        buffer = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" in mode:
            return raw if buffering == 0 else buffer
        return io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)
