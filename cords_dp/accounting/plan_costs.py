"""What plans cost at the orders of a filter, remembered in a file beside an account.

To parse ten thousand different plans and to compute their divergences takes ten seconds, to add up known ones a
fraction of one. What a plan costs is a function of its JSON, so an entry that is found under the plan's SHA-256 cannot
be out of date; the file as a whole is bound to the orders and to the code that computes divergences.

What cannot be trusted is computed anew: a file that is damaged, or that other code wrote; events of kinds that other
packages registered, whose code may change unseen; and all of it, if one of some plans that are drawn at random each
time costs something else. Like the journal's chain this finds accidents and careless edits, not a forger, who could as
well write the account anew. `verify` does not read this file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from cords_dp.accounting.events import registered_kinds
from cords_dp.accounting.ledger import Entry
from cords_dp.files import write_durably

Sides = dict[str, tuple[float, ...]]  # by data set: the divergence of all events of a plan, at each order
_CHECKED = 16  # plans that are computed anew each time
_NEW = 100  # so many unknown plans are worth a file
_KIND = re.compile(rb'"kind":"(\w+)"')


class PlanCosts:
    """The costs of plans at ``orders``, by the plan's JSON."""

    def __init__(self, account: Path, orders: Sequence[int]):
        self._path, self._orders = account.with_name(account.name + ".costs"), tuple(orders)
        self._bound_to = {"orders": [*self._orders], "code": _code()}

    def of(self, plans: Mapping[bytes, Callable[[], Iterable[Entry]]], *, remember: bool = False) -> dict[bytes, Sides]:
        """Return each plan's costs. A plan that is not remembered is parsed, by the function that is given for it."""
        keys = {plan: hashlib.sha256(plan).hexdigest()[:32] for plan in plans}
        known = self._read() if len(plans) >= _NEW else {}
        found = [plan for plan in plans if keys[plan] in known]
        for plan in secrets.SystemRandom().sample(found, min(_CHECKED, len(found))):
            if not _same(known[keys[plan]], self.computed(plans[plan]())):
                known = {}
                break
        costs = {plan: known.get(key) or self.computed(plans[plan]()) for plan, key in keys.items()}
        lasting = {key: costs[plan] for plan, key in keys.items() if key in known or _is_ours(plan)}
        if remember and len(lasting.keys() - known.keys()) >= _NEW:
            self._write(lasting)
        return costs

    def computed(self, entries: Iterable[Entry]) -> Sides:
        """Add up the divergences of these events, for each data set."""
        events: dict[str, list[tuple[float, ...]]] = {}
        for entry in entries:
            if count := entry.event.count:
                once = tuple(count * entry.event.rdp(float(order)) for order in self._orders)
                events.setdefault(entry.dataset, []).append(once)
        return {name: tuple(map(math.fsum, zip(*listed, strict=True))) for name, listed in events.items()}

    def _read(self) -> dict[str, Sides]:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
            digest, _, body = self._path.read_bytes().partition(b"\n")
            if digest.decode() == hashlib.sha256(body).hexdigest():
                content = json.loads(body)
                if content.pop("bound_to") == self._bound_to:
                    return dict(content["plans"])
        return {}

    def _write(self, plans: Mapping[str, Sides]) -> None:
        body = json.dumps({"bound_to": self._bound_to, "plans": plans}).encode()
        with contextlib.suppress(OSError):  # the account can do without
            write_durably(self._path, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def _same(one: Mapping[str, Sequence[float]], other: Sides) -> bool:
    """Return whether two programs, or two processors, may have computed this from one plan."""
    return one.keys() == other.keys() and all(
        math.isclose(a, b, rel_tol=1e-9) for name in other for a, b in zip(one[name], other[name], strict=True)
    )


def _is_ours(plan: bytes) -> bool:
    """Return whether all events are of kinds whose code `_code` reads."""
    known, kinds = registered_kinds(), {kind.decode() for kind in _KIND.findall(plan)}
    return bool(kinds) and all(known[kind].__module__.startswith(f"{__package__}.") for kind in kinds)


@lru_cache
def _code() -> str:
    """Return a digest of all code that divergences come from."""
    sources = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    others = [sys.version, *(version(package) for package in ("dp-accounting", "numpy", "scipy"))]
    return hashlib.sha256(b"\0".join([*sources, *map(str.encode, others)])).hexdigest()
