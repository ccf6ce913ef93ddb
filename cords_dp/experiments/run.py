"""One config → one folder of results."""

from __future__ import annotations

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

from cords_dp.config import to_plain
from cords_dp.distributed import current_world
from cords_dp.report.statement import privacy_markdown, privacy_report
from cords_dp.training import TrainClassifier, check_config


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
        lines.append(f"seconds         {self.train_seconds:.1f} training, {self.selection_seconds:.1f} selecting")
        lines.append(f"results in      {self.out}")
        return "\n".join(lines)


def run_experiment(cfg: DotMap, out: Path, *, progress: bool = True) -> RunResult:
    """Train as the config says and write everything about the run into ``out``.

    config.yaml (resolved), metrics.csv (a row an evaluated epoch), CORDS' log, privacy.json and privacy.md,
    model.pt (a plain state_dict), result.json (the summary); subset.json only where the config asks to publish it.
    """
    check_config(cfg)
    if not current_world().main:
        return _help_training(cfg, out)
    out.mkdir(parents=True, exist_ok=True)
    cfg.train_args.results_dir = cfg.ckpt.dir = str(out)
    trainer = TrainClassifier(cfg)
    trainer.output_dir, trainer.show_progress = out, progress
    resolved = to_plain(cfg)
    (out / "config.yaml").write_text(yaml.safe_dump(resolved, sort_keys=False))
    trainer.train()
    assert trainer.model is not None
    torch.save(trainer.model.state_dict(), out / "model.pt")
    trainer.history.to_csv(out / "metrics.csv")
    if trainer.setup.selection.publish_subset:
        (out / "subset.json").write_text(json.dumps(sorted(trainer.published_subset())))
    result = _summary(trainer, out)
    if trainer.plan is not None:
        report = privacy_report(trainer.plan, trainer.ledger, seed_fixed=trainer.setup.seed is not None)
        (out / "privacy.json").write_text(json.dumps(report, indent=2))
        (out / "privacy.md").write_text(privacy_markdown(report))
    facts = {**asdict(result), "versions": versions()}
    (out / "result.json").write_text(json.dumps(_json_safe(facts), indent=2))
    return result


def _help_training(cfg: DotMap, out: Path) -> RunResult:
    """What the ranks other than 0 do: train along and write nothing."""
    trainer = TrainClassifier(cfg)
    trainer.train()
    return _summary(trainer, out)


def _summary(trainer: TrainClassifier, out: Path) -> RunResult:
    plan, history = trainer.plan, trainer.history
    private = plan is not None and not plan.noiseless
    cost = trainer.spent() if private else None
    return RunResult(
        dataset=trainer.cfg.dataset.name,
        strategy=trainer.setup.strategy.name,
        fraction=float(trainer.cfg.dss_args.get("fraction") or 1.0),
        seed=trainer.setup.seed,
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
