"""A run in several processes: which records each of them holds, and what such a run refuses."""

from __future__ import annotations

import numpy as np

from cords_dp.config import config_digest
from cords_dp.datasets import Share, Splits
from cords_dp.distributed import World
from cords_dp.errors import ConfigError, MechanismError
from cords_dp.planning import PrivacyPlan
from cords_dp.planning.mechanism import registered_mechanisms
from cords_dp.training.run import Run


def share_of(run: Run, world: World) -> Share:
    """What this process holds of the records."""
    if world.size == 1:
        return Share()
    return Share(world.rank, world.size, tuple(run.config["train_args"].get("shares") or ()))


def refuse_what_needs_all_records(run: Run, plan: PrivacyPlan | None) -> None:
    """Every process holds its own records only, so it can select by what is a sum over records."""
    mechanism = run.mechanism
    if plan is None:
        raise ConfigError("dss_args.type", run.strategy.name, "only private strategies train in several processes")
    if mechanism is not None and not mechanism.sharded:
        others = ", ".join(repr(m.name) for m in registered_mechanisms() if m.sharded)
        raise ConfigError(
            "dss_args.mechanism",
            mechanism.name,
            "compares all records with each other, and of several processes each holds its own only; train in one "
            f"process, or use one of {others}",
        )


def refuse_other_parts(run: Run, plan: PrivacyPlan, world: World, *, share: Share, part: Splits, binding: str) -> None:
    """Processes that were given other configs or other files could hold one record twice. All of this is public."""
    facts = [binding, plan.fingerprint, config_digest(run.config), share.weights]
    world.refuse_disagreement(facts, "config or data", "give all of them the same files")
    sizes = [len(part.train), len(part.validation)]  # type: ignore[arg-type]
    if world.total(np.array(sizes)).tolist() != [plan.shape.n, plan.shape.n_validation]:
        raise MechanismError("the parts of the processes do not add up to the records that were planned for")
