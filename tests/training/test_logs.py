"""What a run shows on the screen."""

from __future__ import annotations

import io
import logging

from tqdm import tqdm

from cords_dp.accounting import Bound
from cords_dp.planning import Cost
from cords_dp.training.log import console_logger


def test_log_lines_stand_above_the_progress_bar(monkeypatch):
    """A line used to be appended to the bar."""
    screen = io.StringIO()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("sys.stderr", screen)
    logger = console_logger()
    with tqdm(total=4, desc="GLISTERDP", file=screen, mininterval=0) as bar:
        bar.update()
        logger.info("Epoch: 1")
    line = next(line for line in screen.getvalue().splitlines() if "Epoch" in line)
    assert "GLISTERDP" not in line.rpartition("\r")[2]


def test_what_is_planned_is_no_warning(make_config, monkeypatch, caplog):
    """A learning rate that the plan has chosen, a CPU: nobody has to do anything about them."""
    import torch

    from cords_dp import TrainClassifier

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    trainer = TrainClassifier(
        make_config("FullDP", model={"architecture": "LinearHead"}, optimizer={"lr": "auto"},
                    train_args={"device": "cuda"})
    )  # fmt: skip
    said = []
    original = logging.Logger.handle
    monkeypatch.setattr(logging.Logger, "handle", lambda self, r: said.append(r) or original(self, r))
    trainer.train()
    assert any("Learning rate by the plan" in record.getMessage() for record in said)
    assert any("No CUDA" in record.getMessage() for record in said)
    assert [r.getMessage() for r in said if r.name == "cords_dp" and r.levelno >= logging.WARNING] == []


def test_a_cost_is_printed_as_a_sentence():
    cost = Cost({"training": Bound(2.9, 1e-5, "prv")}, Bound(2.99, 1e-5, "prv"), None)
    assert str(cost) == "epsilon 2.9900 at delta 1e-05 (phases, taken alone: training 2.9000)"
