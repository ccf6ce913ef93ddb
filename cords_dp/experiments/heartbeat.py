"""A display that says that work goes on and for how long, and nothing about the work."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_WORDS = "trials are running; how many there are is secret"


@contextmanager
def heartbeat(title: str, *, show: bool = True, every: float = 1.0) -> Iterator[None]:
    """Show the seconds that have passed, at its own pace: a display that moves with the work could be counted."""
    if not show:
        yield
        return
    if not sys.stderr.isatty():
        print(f"{title}: {_WORDS}", file=sys.stderr)
        yield
        return
    ended, start = threading.Event(), time.monotonic()

    def beat() -> None:
        while not ended.wait(every):
            minutes, seconds = divmod(int(time.monotonic() - start), 60)
            print(f"\r{title}: {minutes}:{seconds:02d}, {_WORDS}", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        print("\r\033[K", end="", file=sys.stderr)
