"""Averaging the weights of noisy steps: post-processing, so it costs no privacy."""

from __future__ import annotations

import copy

import torch
from torch import nn


class WeightAverage:
    """An exponential moving average of a model's weights.

    The first steps count more (decay (1+t)/(10+t) until the final one is reached), so that the starting
    weights are soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float):
        self.decay, self.steps = decay, 0
        self.model = copy.deepcopy(model)

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        for mean, value in zip(self.model.parameters(), model.parameters(), strict=True):
            mean.lerp_(value, 1 - decay)
