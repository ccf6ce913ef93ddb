"""Progress bars: on a terminal only, and none where somebody has asked for quiet. A pipe or a file gets no bars."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from tqdm import tqdm

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)


@contextlib.contextmanager
def quiet(wanted: bool = True) -> Iterator[None]:
    """Show no bars meanwhile, whoever makes them. ``wanted=False`` leaves things as they are."""
    token = _quiet.set(wanted or _quiet.get())
    try:
        yield
    finally:
        _quiet.reset(token)


def shown_bar(over: Iterable[Any] | None = None, *, shown: bool = True, **options: Any) -> tqdm:
    """Return tqdm's bar, which is silent unless it is shown, nobody asked for quiet, and stderr is a terminal."""
    return tqdm(over, disable=None if shown and not _quiet.get() else True, **options)
