"""How many records a run has."""

from __future__ import annotations

from cords_dp.datasets.published import known_sizes
from cords_dp.seeding import Streams
from cords_dp.training.run import Run


def public_sizes(run: Run) -> tuple[int, int]:
    """(n, |V|): public; those of an imbalanced variant have to be counted."""
    sizes = known_sizes(run.config)
    if sizes is None:
        from cords_dp.datasets.build import build_dataset  # late: it needs torch

        data = build_dataset(run.config, Streams(run.seed).numpy("data"))
        sizes = len(data.train), len(data.validation)  # type: ignore[arg-type]
    return sizes
