"""Trains one config into one folder of results: config, log, statement, model, metrics and summary."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from dotmap import DotMap

from cords_dp.config import thawed_copy
from cords_dp.files import remove_stale, write_durably
from cords_dp.planning.statement import STATEMENT
from cords_dp.processes import current_world, keep_freed_memory
from cords_dp.progress import quiet
from cords_dp.report.metrics import metric_numbers
from cords_dp.runs.model_readme import write_model_readme
from cords_dp.runs.result import RunResult, about_run, measured_metrics, published_rows
from cords_dp.training.handover import explaining_full_disks, model_card
from cords_dp.training.log import console
from cords_dp.training.metrics import History
from cords_dp.training.provenance import config_text, versions, weights
from cords_dp.training.resolve import resolve
from cords_dp.training.trainer import TrainClassifier

__all__ = ["RunResult", "console", "measured_metrics", "run_and_hand_over", "run_experiment"]

# What is not to be shared, or is written by other programs (locks, tensorboard, Weights & Biases).
_UNLISTED = re.compile(r"(^|/)(private|wandb)/|\.lock$|\.tmp$|(^|/)events\.out\.tfevents|^files\.json$")


def run_experiment(cfg: DotMap | dict[str, Any], out: str | Path, *, progress: bool = True) -> RunResult:
    """Train as the config says and write everything about the run into ``out``.

    config.yaml (resolved: with the batch size and learning rate that were used), metrics.csv (one row per evaluated
    epoch), CORDS' log, the privacy statement (privacy.json, privacy.md, and privacy.html to print), model.pt (a plain
    state_dict) and model.json (what a prediction needs beside it), README.md (a model card), about.json (for the
    report), result.json (the summary), files.json (digests, for ``cords-dp verify``); subset.json only where the config
    asks to publish it. The privacy statement is there before the model is. ``progress=False`` is quiet: only warnings
    are shown, on stderr.
    """
    return run_and_hand_over(cfg, out, progress=progress)[1]


def run_and_hand_over(
    cfg: DotMap | dict[str, Any], out: str | Path, *, progress: bool = True
) -> tuple[TrainClassifier, RunResult]:
    """Do what `run_experiment` does; also return the trainer, with its model and data."""
    with nullcontext() if progress else console(False), quiet(not progress):
        return _run_and_hand_over(cfg, out, progress=progress)


def _run_and_hand_over(
    cfg: DotMap | dict[str, Any], out: str | Path, *, progress: bool
) -> tuple[TrainClassifier, RunResult]:
    keep_freed_memory()
    out = Path(out)
    cfg = _into(cfg, out)
    trainer = TrainClassifier(resolve(cfg))
    trainer.show_progress = progress
    if not current_world().main:  # the other ranks train along and write nothing
        trainer.train()
        return trainer, _summary(trainer, out)
    trainer.output_dir = out
    if out.is_dir():
        remove_stale(out)  # of an attempt that was killed
    trainer.train()  # the statement is there when it ends
    with explaining_full_disks(trainer):
        return trainer, _written(trainer, out)


def _written(trainer: TrainClassifier, out: Path) -> RunResult:
    """Write what a run leaves besides its statement; the summary last."""
    write_durably(out / "config.yaml", config_text(trainer))
    card = model_card(trainer)
    measured = measured_metrics(trainer, card.classes)
    _add_to_last_row(trainer.history, measured)
    trainer.history.to_csv(out / "metrics.csv")
    assert trainer.model is not None
    write_durably(out / "model.pt", weights(trainer.model))
    if trainer.run.subset.publish_subset:
        write_durably(out / "subset.json", json.dumps(published_rows(trainer.session)))
    if about := about_run(trainer, out, card.classes):
        write_durably(out / "about.json", json.dumps(about, indent=2))
    result = replace(_summary(trainer, out), metrics=measured)
    facts = {**result.facts(), "classes": list(card.classes), "versions": versions()}
    statement = out / STATEMENT[0]
    report = json.loads(statement.read_text()) if statement.is_file() else {}
    write_model_readme(out, json.loads(card.to_json()), facts, report)
    write_durably(out / "result.json", json.dumps(_json_safe(facts), indent=2))
    write_manifest(out)
    return result


def write_manifest(folder: Path) -> None:
    """Write files.json: the SHA-256 of each file, for ``cords-dp verify``, when nothing else is going to be written.

    Released are digests of files that lie beside it and are released themselves.
    """
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    digests = {n: hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in names if not _UNLISTED.search(n)}
    write_durably(folder / "files.json", json.dumps({"format": 1, "sha256": digests}, indent=1) + "\n")


def _into(cfg: DotMap | dict[str, Any], out: Path) -> DotMap:
    """Copy the config, with results, checkpoints and ledger in ``out``."""
    copy = thawed_copy(cfg)
    for section, key in (("train_args", "results_dir"), ("ckpt", "dir")):
        if not isinstance(copy.get(section, {}), dict):
            continue  # found and named by resolve
        copy[section] = {**copy.get(section, {}), key: str(out)}
    return DotMap(copy)


def _summary(trainer: TrainClassifier, out: Path) -> RunResult:
    plan, history = trainer.plan, trainer.history
    private = plan is not None and not plan.noiseless
    cost = trainer.spent() if private else None
    errors: dict[str, Any] = {name: float(history.last(f"tst_{name}", math.nan)) for name in ("rmse", "r2")}
    return RunResult(
        dataset=trainer.run.config["dataset"]["name"],
        strategy=trainer.run.strategy.name,
        fraction=1.0 if trainer.run.strategy.uses_all else float(trainer.run.config["dss_args"].get("fraction") or 1.0),
        seed=trainer.run.seed,
        accuracy=float(history.last("tst_acc", math.nan)),
        **(errors if trainer.run.regression else {}),
        loss=float(history.last("tst_loss", math.nan)),
        epsilon=cost.epsilon if cost else math.inf,
        epsilon_allowed=plan.privacy.epsilon if plan else math.inf,
        delta=cost.delta if cost else 0.0,
        train_seconds=trainer.session.shown_seconds(trainer.session.train_seconds),
        selection_seconds=trainer.session.shown_seconds(trainer.session.selection_seconds),
        out=str(out),
    )


def _json_safe(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _json_safe(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_json_safe(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _add_to_last_row(history: History, measured: Mapping[str, Any]) -> None:
    """Let the last row of metrics.csv have the numbers that are measured at the end alone."""
    if history.rows:
        numbers = metric_numbers({"metrics": measured})
        history.rows[-1] |= {name: value for name, value in numbers.items() if name not in ("accuracy", "rmse", "r2")}
