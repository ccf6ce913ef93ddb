"""Where a run's randomness comes from: streams of its own for each attempt, plan and config."""

from __future__ import annotations

import secrets

from cords_dp.accounting import Ledger
from cords_dp.config import config_digest
from cords_dp.distributed import World
from cords_dp.planning import PrivacyPlan
from cords_dp.seeding import Streams
from cords_dp.training.run import Run


def run_streams(run: Run, plan: PrivacyPlan | None, ledger: Ledger, world: World) -> Streams:
    context = f"{plan.fingerprint} {config_digest(run.config)}" if plan else ""
    # One process alone asks the operating system for each stream; several share one secret.
    entropy = secrets.randbits(256) if world.size > 1 else None
    free = run.seed is not None and (plan is None or plan.noiseless)  # there is nothing to protect
    return Streams(
        run.seed,
        attempt=ledger.attempts,
        context=context,
        entropy=world.share(entropy),
        reproducible=free or (plan is not None and plan.privacy.reproducible_noise),
    )
