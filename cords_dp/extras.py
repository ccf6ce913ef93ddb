"""Packages that only some uses need. Each belongs to an extra: ``pip install '.[EXTRA]'`` in the clone.

Whatever needs one asks here, so that an error names the missing package and the command that installs it. Importing
`cords_dp` needs none of them.
"""

from __future__ import annotations

import importlib.util

from cords_dp.errors import MissingExtraError


def need(package: str, *, extra: str, what: str) -> None:
    """Refuse what needs a package that is not installed. ``what`` is the user's word for it: a key, an option."""
    try:
        found = importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # an import that was blocked; a module without a spec
        found = False
    if not found:
        raise MissingExtraError(what, package, extra)
