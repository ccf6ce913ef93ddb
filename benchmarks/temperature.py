"""What a temperature fitted on V does to probabilities: log loss and calibration error before it and after it.

GLISTERDP by its ready-made configs (a tenth of the gradients; of digits three tenths), tested on held-out training
images where there are that many: the shipped test sets chose nothing here. ``--cut`` cuts three tenths of the classes.

    python benchmarks/temperature.py [mnist cifar10 digits] [--epsilon 1 3 8] [--seeds 100 101] [--cut]
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from typing import Any

import pandas as pd
from torch import nn

from cords_dp import config_for
from cords_dp.data.build import evaluation_batches
from cords_dp.evaluation.metrics import classifier_metrics
from cords_dp.report.tables import to_markdown
from cords_dp.training.metrics import predictions
from cords_dp.training.trainer import TrainClassifier

_SCORES = {"accuracy": "accuracy", "log_loss": "log loss", "calibration_error": "calibration error"}
_HELD_OUT = {"test_from_train": 1 / 6}
_CUT = {"feature": "classimb", "classimb_ratio": 0.3, "balanced_validation": True}


def trained(name: str, epsilon: float, seed: int, *, cut: bool, folder: str) -> TrainClassifier:
    config = config_for(
        name,
        "GLISTERDP",
        dataset={**({} if name == "digits" else _HELD_OUT), **(_CUT if cut else {})},
        dss_args={"fraction": 0.3 if name == "digits" else 0.1},
        privacy={"epsilon": epsilon},
        train_args={"device": "cpu", "seed": seed, "results_dir": folder, "print_every": 1000},
        ckpt={"dir": folder, "is_save": False},
    )
    trainer = TrainClassifier(config)
    trainer.show_progress = False
    trainer.train()
    return trainer


def scored(trainer: TrainClassifier, model: nn.Module) -> dict[str, float]:
    batches = evaluation_batches(trainer.data.test, trainer.run.config, private=True)
    labels, probabilities = predictions(model, batches, "cpu", classes=trainer.data.num_classes)
    return classifier_metrics(labels, probabilities, tuple(_SCORES))


def rows(name: str, epsilon: float, seed: int, *, cut: bool) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        trainer = trained(name, epsilon, seed, cut=cut, folder=folder)
    session = trainer.session
    before = session.model if session.average is None else session.average.model
    about = {"data": f"{name}, cut" if cut else name, "ε": f"{epsilon:g}"}
    return [{**about, "temperature": "before", **scored(trainer, before)},
            {**about, "temperature": "after", **scored(trainer, trainer.model)}]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="*", default=["mnist", "cifar10", "digits"])
    parser.add_argument("--epsilon", nargs="+", type=float, default=[1.0, 3.0, 8.0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[100, 101])
    parser.add_argument("--cut", action="store_true")
    given = parser.parse_args()
    logging.disable(logging.INFO)
    found = [row for name in given.data for epsilon in given.epsilon for seed in given.seeds
             for row in rows(name, epsilon, seed, cut=given.cut)]  # fmt: skip
    frame = pd.DataFrame(found).rename(columns=_SCORES)
    print(to_markdown(frame.groupby(["data", "ε", "temperature"], sort=False).mean().reset_index().round(4)))


if __name__ == "__main__":
    main()
