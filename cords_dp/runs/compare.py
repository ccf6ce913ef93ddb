"""Trains one config privately and without privacy, with and without selection, and says what that costs.

Each row is a run of its own on the same records. The private ones add up: their joint cost is told beside the table.
Those without privacy (``privacy.epsilon=None``) give no guarantee at all, so their models and figures are for the owner
of the data alone, and a choice that follows them is not covered by any ε.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from dotmap import DotMap

from cords_dp.accounting import Entry, epsilon_bound
from cords_dp.accounting.account import SETTLED, Holding, paid_events
from cords_dp.config import thawed_copy
from cords_dp.config.keys import COMMON_STRATEGY_KEYS, CORDS_STRATEGY_KEYS
from cords_dp.config.settings import SELECTION_PRIVACY_KEYS
from cords_dp.errors import ConfigError
from cords_dp.files import write_durably
from cords_dp.planning.statement import rounded_up
from cords_dp.runs.result import RunResult
from cords_dp.runs.run import run_and_hand_over
from cords_dp.training.resolve import resolve
from cords_dp.training.run import Run

_FILE = "comparison.json"
_WITHOUT = "not private"


@dataclass(frozen=True)
class Comparison:
    """Rows by the name of their run, and what all private ones cost together."""

    rows: dict[str, RunResult]
    epsilon: float
    delta: float
    equal_compute: bool

    def table(self) -> pd.DataFrame:
        """Return a row for each run: how good it is, and its ε."""
        return pd.DataFrame([self._row(name, result) for name, result in self.rows.items()])

    @staticmethod
    def _row(name: str, result: RunResult) -> dict[str, str]:
        if result.r2 is None:
            measured = {"accuracy": f"{100 * result.accuracy:.2f} %"}
        else:
            measured = {"R²": f"{result.r2:.4f}", "RMSE": f"{result.rmse:.4g}"}
        private = math.isfinite(result.epsilon_allowed)
        cost = {"ε": rounded_up(result.epsilon) if private else "none"}
        return {"run": name, **measured, "loss": f"{result.loss:.4f}", **cost}

    def text(self) -> str:
        """Return the table for people, with what it has cost below it."""
        table = self.table()
        widths = {name: max(map(len, [name, *table[name]])) for name in table}
        rows = [list(table.columns), *table.to_numpy().tolist()]
        lines = [
            "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths.values(), strict=True)).rstrip()
            for row in rows
        ]
        private = [result for result in self.rows.values() if math.isfinite(result.epsilon_allowed)]
        single = rounded_up(max(result.epsilon for result in private))
        if self.equal_compute:
            lines += [
                "",
                "FullDP takes the same share of gradients (dss_args.compute_fraction), of all records: it reads no",
                "validation set, and trains on its records too unless the config gives dataset.validation_fraction.",
            ]
        lines += [
            "",
            f"What it cost: the {len(private)} private runs read the same records, so together they are "
            f"(ε = {rounded_up(self.epsilon)}, δ = {self.delta:.3g}), not ε = {single}.",
            "The runs without privacy protect nobody: their models and figures tell of single records. Keep them to",
            "yourself; whoever chooses by them, or publishes this table of private records, has no guarantee.",
        ]
        return "\n".join(lines)

    def facts(self) -> dict[str, Any]:
        """Return the same for programs."""
        rows = [{"run": name, **result.facts()} for name, result in self.rows.items()]
        plain = [
            {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in rows
        ]
        return {"runs": plain, "epsilon_together": self.epsilon, "delta": self.delta}


def compare(config: Mapping[str, Any], out: Path, *, progress: bool = True) -> Comparison:
    """Train every variant of a config into a folder of its own below ``out``."""
    run = resolve(DotMap(thawed_copy(config)), plan=False)
    variants = variants_of(config, run)
    for variant in variants.values():
        resolve(DotMap(variant), plan=False)  # all mistakes before the first run
    rows: dict[str, RunResult] = {}
    spent: dict[str, tuple[Entry, ...]] = {}
    delta = 0.0
    for name, variant in variants.items():
        trainer, rows[name] = run_and_hand_over(
            variant, out / name.replace(", ", "-").replace(" ", "-"), progress=progress
        )
        assert trainer.plan is not None
        if not trainer.plan.noiseless:
            spent[name], delta = trainer.plan.entries(), max(delta, trainer.plan.delta)
    result = Comparison(rows, _together(spent, delta), delta, run.subset.fraction < 1 and not run.strategy.uses_all)
    write_durably(out / _FILE, json.dumps(result.facts(), indent=2))
    return result


def _together(spent: Mapping[str, tuple[Entry, ...]], delta: float) -> float:
    """Bound ε of all private runs, composed jointly; a record may be in D of one and in V of another."""
    holdings = [Holding(name, "", "", SETTLED, False, entries) for name, entries in spent.items()]
    return epsilon_bound(paid_events(holdings), delta, "quick").epsilon


def variants_of(config: Mapping[str, Any], run: Run) -> dict[str, dict[str, Any]]:
    """Return the configs that are compared, by name: FullDP, the config's own strategy or GLISTERDP, each twice."""
    if run.privacy is None or run.privacy.noiseless:
        fix = "the comparison trains without privacy by itself: give a private strategy and its budget"
        raise ConfigError("privacy.epsilon", config.get("privacy"), fix)
    own = thawed_copy(config)
    private = {"FullDP": _full(own, run)}
    if not run.strategy.uses_all:
        private[run.strategy.name] = own
    elif not run.regression:
        private["GLISTERDP"] = _selecting(own)
    without = {f"{name}, {_WITHOUT}": _without_privacy(variant) for name, variant in private.items()}
    return {**private, **without}


def _full(config: dict[str, Any], run: Run) -> dict[str, Any]:
    """Return the config with FullDP, which does not select, and as many gradients as the config's own strategy."""
    if run.strategy.uses_all:
        return config
    known = {*COMMON_STRATEGY_KEYS, *CORDS_STRATEGY_KEYS} - {"mechanism", "fraction", "secret_subset", "publish_subset"}
    section = {key: value for key, value in config["dss_args"].items() if key in known}
    section |= {"type": "FullDP", "compute_fraction": run.subset.fraction}
    privacy = {key: value for key, value in config["privacy"].items() if key not in SELECTION_PRIVACY_KEYS}
    return {**config, "dss_args": section, "privacy": privacy}


def _selecting(config: dict[str, Any]) -> dict[str, Any]:
    section = {key: value for key, value in config["dss_args"].items() if key != "compute_fraction"}
    return {
        **config,
        "dss_args": {**section, "type": "GLISTERDP", "fraction": config["dss_args"].get("compute_fraction") or 1.0},
    }


def _without_privacy(config: dict[str, Any]) -> dict[str, Any]:
    section = {key: value for key, value in config["privacy"].items() if key != "account"}
    return {**config, "privacy": {**section, "epsilon": None}}
