"""Broken configs by the hundred: every key of every section, with every kind of wrong value."""

from __future__ import annotations

import copy
import datetime
import math
from typing import Any

import numpy as np
import torch
from dotmap import DotMap
from hypothesis import strategies as st

from cords_dp.config.keys import KEYS, TOP_LEVEL
from cords_dp.planning.mechanism import mechanism_keys


class BadRepr:
    """A live object that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def keys_of(section: str) -> list[str]:
    """Every key that a section may have."""
    return sorted({*KEYS[section], *(mechanism_keys() if section == "dss_args" else ())})


ALL_KEYS = [(section, key) for section in KEYS for key in keys_of(section)]

ODD_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 10**9, 10**400, -(10**400), 0.0, -0.0, 0.5, 1.0, 1.5, -0.5, 1e-300, 1e300,
    math.nan, math.inf, -math.inf, "", " ", "0.5", "3", "auto", "nan", "None", "foo", "a/b", "..", "\0", "x" * 5000,
    "\udcff", b"bytes", [], [1], ["foo"], [None], [[1]], (0.8, 1.0), (1.0, 0.5), ("tst_acc",), {}, {"a": 1},
    {"a": {"b": {}}}, set(), {1}, 1j, object(), BadRepr(), int, len, lambda *_: None, np.float64(0.5), np.int64(1),
    np.float64("nan"), np.zeros(3), np.array([]), np.array(0.5), torch.zeros(2), torch.tensor(1), torch.device("cpu"),
    torch.nn.Linear(2, 2), datetime.date(2026, 1, 1), DotMap(), DotMap(a=1), range(3), Ellipsis, NotImplemented,
]  # fmt: skip

odd_values = st.one_of(
    st.sampled_from(ODD_VALUES),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.one_of(st.integers(), st.floats(), st.text(max_size=5)), max_size=3),
)


def mutated(config: dict[str, Any], section: str, key: str, value: Any) -> dict[str, Any]:
    changed = copy.copy(config)
    changed[section] = {**changed.get(section, {}), key: value}
    return changed


def mutations(config: dict[str, Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """(what was changed, the config): one key of one section, a whole section, a key that nobody knows."""
    one_key = st.tuples(st.sampled_from(ALL_KEYS), odd_values).map(
        lambda pair: (".".join(pair[0]), mutated(config, *pair[0], pair[1]))
    )
    names = st.sampled_from([*KEYS, *TOP_LEVEL])
    whole_section = st.tuples(names, odd_values).map(lambda pair: (pair[0], {**config, pair[0]: pair[1]}))
    missing = st.sampled_from(list(KEYS)).map(lambda name: (name, {k: v for k, v in config.items() if k != name}))
    unknown = st.tuples(st.sampled_from(list(KEYS)), st.one_of(st.text(max_size=8), st.integers()), odd_values).map(
        lambda triple: (f"{triple[0]}.{triple[1]}", mutated(config, *triple))
    )
    return st.one_of(one_key, one_key, one_key, whole_section, missing, unknown)
