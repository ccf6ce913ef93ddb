"""Runs that the tests make in one process and in several: ``python ranks.py FOLDER CASE…`` is one of the processes.

A case trains and says what came of it, as plain values; ``size`` is the number of processes. Noise is reproducible, so
that one process and several draw the same; coins are not the same, since every rank tosses its own.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

SMALL = {"num_samples": 1000}


def config_of(folder: Path, strategy: str, *, data: str = "synthetic", **changes: Any) -> dict[str, Any]:
    from cords_dp.config.presets import config_for, merge_into

    config = config_for(
        data,
        strategy,
        dss_args={"fraction": 0.3, "select_every": 2},
        train_args={"num_epochs": 4, "print_every": 4, "device": "cpu", "seed": 3, "results_dir": str(folder)},
        ckpt={"is_save": False, "dir": str(folder)},
        privacy={"epsilon": 3.0, "accountant": "rdp", "grad_sample_mode": "hooks", "reproducible_noise": True},
    )
    if strategy == "FullDP":
        config["dss_args"].pop("fraction")
    merge_into(config, changes)
    return config


def trained(config: dict[str, Any]) -> dict[str, Any]:
    from cords_dp.training.trainer import TrainClassifier

    trainer = TrainClassifier(config)
    trainer.show_progress = False
    trainer.train()
    return outcome(trainer)


def outcome(trainer: Any) -> dict[str, Any]:
    folder = None if trainer.ledger.path is None else trainer.ledger.path.parent
    import torch

    released = {} if folder is None else {p.stem.split("-")[-1]: torch.load(p) for p in folder.glob("selection-*.pt")}
    return {
        "weights": {name: value.numpy() for name, value in trainer.model.state_dict().items()},
        "ledger": [entry.to_dict() for entry in trainer.ledger.entries],
        "epsilon": trainer.spent().epsilon,
        "accuracy": trainer.history.last("tst_acc"),
        "own": [len(part) for part in trainer.data[:3]],
        "released": released,
    }


# -- cases ----------------------------------------------------------------------------------------------------------


def everybody(folder: Path, size: int) -> dict[str, Any]:
    """Every record in every step: nothing is left to coins, so one process and several take the same steps."""
    return trained(config_of(folder, "FullDP", dataset=SMALL, dataloader={"batch_size": 800}))


def everybody_without_noise(folder: Path, size: int) -> dict[str, Any]:
    return trained(
        config_of(folder, "FullDP", dataset=SMALL, dataloader={"batch_size": 800}, privacy={"epsilon": float("inf")})
    )


def align(folder: Path, size: int) -> dict[str, Any]:
    return trained(config_of(folder, "GLISTERDP"))


def full(folder: Path, size: int) -> dict[str, Any]:
    return trained(config_of(folder, "FullDP", data="digits", train_args={"num_epochs": 8}, privacy={"epsilon": 8.0}))


def empty_part(folder: Path, size: int) -> dict[str, Any]:
    """The last rank has no records at all. One process alone does not look at shares."""
    shares = [1.0] * (size - 1) + [0.0]
    return trained(
        config_of(folder, "GLISTERDP", dataset=SMALL, dss_args={"mechanism": "match"}, train_args={"shares": shares})
    )


def threshold(folder: Path, size: int) -> dict[str, Any]:
    keys = {"mechanism": "threshold"}
    return trained(config_of(folder, "GLISTERDP", dataset=SMALL, dss_args=keys))


def class_weights(folder: Path, size: int) -> dict[str, Any]:
    return trained(config_of(folder, "ClassWeightsDP", dataset=SMALL))


def group_rates(folder: Path, size: int) -> dict[str, Any]:
    return trained(config_of(folder, "GroupRatesDP", dataset=SMALL))


def random(folder: Path, size: int) -> dict[str, Any]:
    return trained(config_of(folder, "RandomDP", dataset=SMALL))


def refused(folder: Path, size: int) -> dict[str, Any]:
    from cords_dp.errors import ConfigError

    messages = {}
    for mechanism in ("exponential", "top_k"):
        try:
            trained(config_of(folder / mechanism, "GLISTERDP", dataset=SMALL, dss_args={"mechanism": mechanism}))
        except ConfigError as error:
            messages[mechanism] = str(error)
    return messages


def _interrupted(at_epoch: int, how: Any) -> Any:
    """`PrivateSession.train_epoch` that comes to an end after two steps of an epoch."""
    from cords_dp.training.private_session import PrivateSession

    original = PrivateSession.train_epoch

    def train(self: Any, epoch: int, after_step: Any) -> Any:
        steps = []

        def counting() -> None:
            steps.append(1)
            if epoch == at_epoch and len(steps) == 2:
                how()
            after_step()

        return original(self, epoch, counting)

    PrivateSession.train_epoch = train  # type: ignore[method-assign]
    return lambda: setattr(PrivateSession, "train_epoch", original)


def resumed(folder: Path, size: int) -> dict[str, Any]:
    """All processes are interrupted in the third epoch, and started again."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    config = config_of(folder, "GLISTERDP", dataset=SMALL, ckpt={"is_save": True})
    restore = _interrupted(3, interrupt)
    try:
        trained(config)
    except KeyboardInterrupt:
        pass
    finally:
        restore()
    config["ckpt"]["is_load"] = True
    return trained(config)


def dies(folder: Path, size: int) -> dict[str, Any]:
    """The last rank dies in the second epoch; the others say so, and the ledger has two epochs."""
    from cords_dp.accounting import Ledger
    from cords_dp.errors import LostProcessError
    from cords_dp.processes import current_world

    world = current_world()
    if world.rank == world.size - 1:
        _interrupted(2, lambda: os._exit(9))
    try:
        trained(config_of(folder, "FullDP", dataset=SMALL, dataloader={"batch_size": 160}))
    except LostProcessError as error:
        ledgers = [Ledger.load(path) for path in sorted(folder.rglob("ledger.jsonl"))] if world.main else []
        entries = [entry.to_dict() for ledger in ledgers for entry in ledger.entries]
        return {"message": str(error), "ledger": entries, "steps": 800 // 160}
    return {}


CASES = {
    case.__name__: case
    for case in (
        everybody, everybody_without_noise, align, full, empty_part, threshold, class_weights, group_rates, random,
        refused, resumed, dies,
    )
}  # fmt: skip


def main(folder: Path, cases: list[str]) -> None:
    from cords_dp.processes import joined_world

    with joined_world() as world:
        for case in cases:
            result = CASES[case](folder / case, world.size)
            (folder / f"{case}-{world.rank}.pickle").write_bytes(pickle.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
    os._exit(0)  # a group that has lost a process cannot be left in good order
