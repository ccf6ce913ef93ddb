"""A fifth mechanism in one file: a uniform draw, with one Gaussian release that it does nothing with."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from cords_dp import Mechanism, Pool, Release, SelectionNoise
from cords_dp.accounting import TRAINING_DATA, gaussian


@dataclass(frozen=True, kw_only=True)
class Toy(Mechanism):
    """colour: a key of its own, without meaning."""

    name: ClassVar[str] = "toy"
    summary: ClassVar[str] = "one noisy count of labels"
    use_case: ClassVar[str] = "the example of these tests"
    colour: str = "blue"

    @property
    def reads_validation(self) -> bool:
        return False

    def releases(self, noise: SelectionNoise, privacy: Any, sizes: Any) -> tuple[Release, ...]:
        event = gaussian(noise.on_training)
        return (Release("labels", TRAINING_DATA, event, 1.0, "the toy's count of labels; 1 (one cell)"),)

    def build(self, context: Any) -> "ToySelector":
        return ToySelector(context)


class ToySelector:
    def __init__(self, context: Any):
        self.context, self.counts = context, np.zeros(0)
        self.indices = np.zeros(0, dtype=np.int64)

    def select(self, weights: Any, releases: Any) -> Pool:
        labels = self.context.training.at(weights).labels.numpy()
        self.counts = releases.gaussian("labels", np.bincount(labels, minlength=self.context.num_classes))
        shape = self.context.plan.shape
        self.indices = self.context.coins.choice(shape.n, size=shape.k, replace=False)
        return Pool(self.indices)

    def state(self) -> dict[str, Any]:
        return {"counts": torch.from_numpy(self.counts), "subset": torch.from_numpy(self.indices)}

    def restore(self, state: dict[str, Any]) -> Pool:
        self.counts, self.indices = state["counts"].numpy(), state["subset"].numpy()
        return Pool(self.indices)
