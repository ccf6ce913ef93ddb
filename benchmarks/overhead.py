"""What a run takes beyond its own steps and evaluations.

    python benchmarks/overhead.py [--config configs/full_dp_mnist.py] [--epochs 20] [--json FILE]

Overhead: the wall time of `train()` after planning, less the time inside of training steps, evaluations and the
reading of their records, over that time; checkpoints every epoch, ledger and evaluation on.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from cords_dp.config import load_config
from cords_dp.processes import keep_freed_memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", default="configs/full_dp_mnist.py")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    keep_freed_memory()
    found = overhead(args.config, args.epochs)
    print(json.dumps(found))
    if args.json:
        args.json.write_text(json.dumps(found, indent=2))


def overhead(config: str, epochs: int) -> dict[str, Any]:
    from cords_dp.training import metrics, private_session, trainer

    cfg = load_config(config)
    cfg.train_args.num_epochs = epochs
    cfg.train_args.print_every = 1
    cfg.ckpt.is_save, cfg.ckpt.save_every = True, 1
    inside = {"steps": 0.0, "evaluations": 0.0, "reading": 0.0}

    def timed(name: str, function: Any) -> Any:
        def run(*positional: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*positional, **named)
            finally:
                inside[name] += time.perf_counter() - start

        return run

    from cords_dp.training import poisson
    from cords_dp.training.step import PrivateEngine

    begun = {}
    PrivateEngine.step = timed("steps", PrivateEngine.step)  # type: ignore[method-assign]
    metrics.evaluate = timed("evaluations", metrics.evaluate)  # type: ignore[attr-defined]
    poisson.records_at = timed("reading", poisson.records_at)  # type: ignore[attr-defined]
    real = private_session.build_engine

    def note_start(*positional: Any, **named: Any) -> Any:
        engine = real(*positional, **named)
        inside.update(steps=0.0)  # what trying the modes took
        begun["at"] = time.perf_counter()
        return engine

    private_session.build_engine = note_start  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        cfg.ckpt.dir = folder
        cfg.train_args.results_dir = folder
        classifier = trainer.TrainClassifier(cfg)
        classifier.show_progress = False
        classifier.train()
    wall = time.perf_counter() - begun["at"]
    work = sum(inside.values())
    return {
        "config": Path(config).name,
        "epochs": epochs,
        "wall_seconds": round(wall, 2),
        **{name: round(seconds, 2) for name, seconds in inside.items()},
        "overhead": round(wall / work - 1, 3),
    }


if __name__ == "__main__":
    main()
