"""A job: one config, the columns it is known by in a table, and the files that running it leaves."""

from __future__ import annotations

import hashlib
import itertools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dotmap import DotMap

from cords_dp.config import apply_override, to_plain
from cords_dp.config.values import whole
from cords_dp.errors import ConfigError

__all__ = ["RESULT", "Job", "Work", "execute", "grid_jobs", "kept_files", "parse_axis"]
RESULT = "result.json"
Work = Callable[[Mapping[str, Any]], dict[str, bytes]]  # a function of a module: it is sent to other processes
# what a table or a report needs; weights and checkpoints stay where the run was made
_KEPT = (RESULT, "config.yaml", "metrics.csv", "privacy.json", "privacy.md", "privacy.html", "about.json")


def execute(config: Mapping[str, Any]) -> dict[str, bytes]:
    """Run a config in a folder of its own; return its files. Works the same on any machine."""
    from cords_dp.runs.run import run_experiment

    with tempfile.TemporaryDirectory(prefix="cords_dp-") as folder:
        run_experiment(DotMap(to_plain(config)), Path(folder), progress=False)
        return kept_files(Path(folder))


def kept_files(folder: Path) -> dict[str, bytes]:
    """Read what a table or a report needs of a run's folder."""
    return {name: (folder / name).read_bytes() for name in _KEPT if (folder / name).is_file()}


@dataclass(frozen=True)
class Job:
    """One run of a sweep. ``labels`` become the leading columns of its row; ``work`` makes files of a config."""

    config: Mapping[str, Any]
    labels: Mapping[str, Any] = field(default_factory=dict)
    work: Work = execute

    @property
    def id(self) -> str:
        """A hash of everything in the config that can change the result."""
        plain = to_plain(self.config)
        for section, key in (("dataset", "datadir"), ("train_args", "results_dir"), ("ckpt", "dir")):
            if isinstance(plain.get(section), dict):
                plain[section].pop(key, None)
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in self.labels.items()) or self.id


def grid_jobs(cfg: DotMap, axes: Sequence[str], seeds: int) -> list[Job]:
    """Make a job of every combination of the axes (``"a.b=1,2"``) and of ``seeds`` seeds; check all of them first."""
    parsed = [parse_axis(axis) for axis in axes]
    keys = [key for key, _ in parsed]
    if len(set(keys)) < len(keys):
        raise ConfigError("--grid", ", ".join(keys), "names a key twice")
    if not isinstance(cfg.get("train_args"), Mapping):
        raise ConfigError("train_args", cfg.get("train_args"), "this is a section: write it as dict(...)")
    seed = cfg["train_args"].get("seed")
    first_seed = 0 if seed is None else whole("train_args.seed", seed, low=0)
    jobs = []
    for values in itertools.product(*(values for _, values in parsed)):
        for seed in range(first_seed, first_seed + seeds):
            config = DotMap(to_plain(cfg))
            for key, value in zip(keys, values, strict=True):
                apply_override(config, f"{key}={value}")
            if not isinstance(config["train_args"], Mapping):
                raise ConfigError("--grid", ", ".join(keys), "train_args is a section, not a value")
            config.train_args.seed = seed
            labels = {key: _number_or_text(value) for key, value in zip(keys, values, strict=True)}
            jobs.append(Job(config.toDict(), {**labels, "seed": seed}))
    return jobs


def parse_axis(axis: str) -> tuple[str, list[str]]:
    """Read ``"a.b=1,2"`` as its key and values."""
    key, sign, values = axis.partition("=")
    parts = [value.strip() for value in values.split(",")]
    if not sign or not key or not all(parts):
        raise ConfigError("--grid", axis, "write KEY=VALUE,VALUE, e.g. dss_args.fraction=0.1,0.3")
    return key.strip(), parts


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
