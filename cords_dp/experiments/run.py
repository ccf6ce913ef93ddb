"""One config → one folder of results."""

from __future__ import annotations

import io
import json
import math
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import yaml
from dotmap import DotMap

from cords_dp.config import thawed_copy, to_plain
from cords_dp.datasets import public_facts
from cords_dp.distributed import current_world
from cords_dp.experiments.about_run import about_run
from cords_dp.files import remove_stale, write_durably
from cords_dp.memory import keep_freed_memory
from cords_dp.models.card import FILE as MODEL_CARD
from cords_dp.models.card import ModelCard, features_of
from cords_dp.planning.statement import privacy_markdown, privacy_report
from cords_dp.training import TrainClassifier, resolve


@dataclass(frozen=True)
class RunResult:
    """The summary of a run, one row of a table."""

    dataset: str
    strategy: str
    fraction: float
    seed: int | None
    accuracy: float
    loss: float
    epsilon: float
    epsilon_allowed: float
    delta: float
    train_seconds: float
    selection_seconds: float
    out: str

    def text(self) -> str:
        """What a user wants to see when a run ends."""
        lines = [f"test accuracy   {100 * self.accuracy:.2f} %"]
        if math.isinf(self.epsilon_allowed):
            lines.append("privacy         none (not a private run)")
        else:
            lines.append(f"epsilon         {self.epsilon:.4f} of {self.epsilon_allowed:g}")
            lines.append(f"delta           {self.delta:.3g}")
        training, selecting = _in_words(self.train_seconds), _in_words(self.selection_seconds)
        lines.append(f"seconds         {training} training, {selecting} selecting")
        lines.append(f"results in      {self.out}")
        if math.isfinite(self.epsilon_allowed):
            lines.append(f"the guarantee   {Path(self.out) / 'privacy.md'}")
        return "\n".join(lines)


def _in_words(seconds: float) -> str:
    """Where the pool is secret seconds are whole ones, and 0 would read as if nothing had been done."""
    return f"{seconds:.1f}" if seconds >= 1 else "under 1"


def run_experiment(cfg: DotMap | dict[str, Any], out: str | Path, *, progress: bool = True) -> RunResult:
    """Train as the config says and write everything about the run into ``out``.

    config.yaml (resolved: with the batch size and learning rate that were used), metrics.csv (one row per evaluated
    epoch), CORDS' log, privacy.json and privacy.md, model.pt (a plain state_dict) and model.json (what a prediction
    needs beside it), about.json (for the report), result.json (the summary); subset.json only where the config asks to
    publish it. The privacy statement is there before the model is.
    """
    return run_and_hand_over(cfg, out, progress=progress)[1]


def run_and_hand_over(
    cfg: DotMap | dict[str, Any], out: str | Path, *, progress: bool = True
) -> tuple[TrainClassifier, RunResult]:
    """`run_experiment`, and the trainer with the model and the data, for who has more to do with them."""
    keep_freed_memory()
    out = Path(out)
    cfg = _into(cfg, out)
    resolve(cfg)
    trainer = TrainClassifier(cfg)
    trainer.show_progress = progress
    if not current_world().main:  # the other ranks train along and write nothing
        trainer.train()
        return trainer, _summary(trainer, out)
    trainer.output_dir = out
    if out.is_dir():
        remove_stale(out)  # of an attempt that was killed
    trainer.train()
    _remove_earlier(out)
    write_durably(out / "config.yaml", yaml.safe_dump(to_plain(trainer.run.config), sort_keys=False))
    trainer.history.to_csv(out / "metrics.csv")
    if trainer.plan is not None:
        report = privacy_report(trainer.plan, trainer.ledger, unused_keys=trainer.run.unused)
        write_durably(out / "privacy.json", json.dumps(report, indent=2))
        write_durably(out / "privacy.md", privacy_markdown(report))
    card = _card(trainer)
    write_durably(out / MODEL_CARD, card.to_json())
    write_durably(out / "model.pt", _weights(trainer))
    if trainer.run.subset.publish_subset:
        write_durably(out / "subset.json", json.dumps(trainer.published_rows()))
    if about := about_run(trainer, out, card.classes):
        write_durably(out / "about.json", json.dumps(about, indent=2))
    result = _summary(trainer, out)
    facts = {**asdict(result), "versions": versions()}
    write_durably(out / "result.json", json.dumps(_json_safe(facts), indent=2))
    return trainer, result


# What a run releases, and what is said about it.
_RELEASED = ("model.pt", "model.json", "subset.json", "about.json", "result.json", "privacy.md", "privacy.json")


def _remove_earlier(out: Path) -> None:
    """Files of an earlier run in the same folder: this one may have fewer, and a statement belongs to one model."""
    for name in _RELEASED:
        (out / name).unlink(missing_ok=True)


def _into(cfg: DotMap | dict[str, Any], out: Path) -> DotMap:
    """A copy of the config whose results, checkpoints and ledger go to ``out``."""
    copy = thawed_copy(cfg)
    for section, key in (("train_args", "results_dir"), ("ckpt", "dir")):
        if not isinstance(copy.get(section, {}), dict):
            continue  # found and named by resolve
        copy[section] = {**copy.get(section, {}), key: str(out)}
    return DotMap(copy)


def _weights(trainer: TrainClassifier) -> bytes:
    assert trainer.model is not None
    buffer = io.BytesIO()
    torch.save(trainer.model.state_dict(), buffer)
    return buffer.getvalue()


def _card(trainer: TrainClassifier) -> ModelCard:
    """Public facts about the model, of the config and of its source; none is taken from records."""
    assert trainer.model is not None
    assert trainer.data is not None
    config, run = trainer.run.config, trainer.run
    facts = public_facts(config)
    outputs = trainer.data.num_classes
    section = {key: value for key, value in to_plain(config["model"]).items() if key != "feature_cache"}
    return ModelCard(
        model=section,
        private=run.strategy.private,
        regression=run.regression,
        shape=tuple(trainer.record.shape),
        dtype=str(trainer.record.dtype).removeprefix("torch."),
        outputs=outputs,
        classes=() if run.regression else facts.classes if facts else tuple(map(str, range(outputs))),
        pixels=facts.constants if facts else None,
        input_norm=facts.norm if facts else None,
        features=features_of(trainer.model),
        source=trainer.card(),
    )


def _summary(trainer: TrainClassifier, out: Path) -> RunResult:
    plan, history = trainer.plan, trainer.history
    private = plan is not None and not plan.noiseless
    cost = trainer.spent() if private else None
    return RunResult(
        dataset=trainer.run.config["dataset"]["name"],
        strategy=trainer.run.strategy.name,
        fraction=float(trainer.run.config["dss_args"].get("fraction") or 1.0),
        seed=trainer.run.seed,
        accuracy=float(history.last("tst_acc", math.nan)),
        loss=float(history.last("tst_loss", math.nan)),
        epsilon=cost.epsilon if cost else math.inf,
        epsilon_allowed=plan.privacy.epsilon if plan else math.inf,
        delta=cost.delta if cost else 0.0,
        train_seconds=trainer.shown_seconds(trainer.train_seconds),
        selection_seconds=trainer.shown_seconds(trainer.selection_seconds),
        out=str(out),
    )


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    found = {"python": platform.python_version()}
    for package in ("cords-dp", "cords", "torch", "opacus", "prv-accountant", "dp-accounting"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _json_safe(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _json_safe(v) for k, v in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
