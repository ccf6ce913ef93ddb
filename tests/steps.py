"""Small models, batches and engines, and the clipped sum by a plain loop."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from cords_dp.noise.generators import KEY_BYTES, noise_source, secure_generator
from cords_dp.training.step import PrivateEngine

CE = nn.CrossEntropyLoss(reduction="none")


def small_net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


class LinearNet(nn.Module):
    """One linear layer on a fixed embedding: what the closed form is for."""

    def __init__(self, inputs=6, classes=3):
        super().__init__()
        self.linear = nn.Linear(inputs, classes)

    def embed(self, x):
        return 2 * x

    def forward(self, x):
        return self.linear(self.embed(x))


class SequenceNet(nn.Module):
    """A linear layer on every element of a sequence."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x).sum(dim=1)


def net_for(mode, seed=0):
    torch.manual_seed(seed)
    return LinearNet() if mode == "linear" else small_net(seed)


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def seeded_noise(seed=0, *, secure=False):
    return noise_source(secure_generator(seed.to_bytes(KEY_BYTES, "big")), secure=secure)


def engine_for(
    model, mode="hooks", *, sigma=0.0, clip=0.5, batch=4, lr=1.0, piece=512, normalise=False, seed=0, noise=None
):
    return PrivateEngine(
        model,
        torch.optim.SGD(model.parameters(), lr=lr),
        CE,
        sigma=sigma,
        max_grad_norm=clip,
        batch_size=batch,
        mode=mode,
        noise=noise or (seeded_noise(seed) if sigma else None),
        max_physical_batch_size=piece,
        normalise=normalise,
    )


class Recorder(torch.optim.SGD):
    """Keeps the gradient that a step would use, and takes no step."""

    def step(self, closure=None):
        self.seen = [p.grad.clone() for group in self.param_groups for p in group["params"]]

    def norm(self):
        return math.sqrt(sum(float(g.double().square().sum()) for g in self.seen))


def recording_engine(model, mode, *, sigma=0.0, clip=0.5, batch=1, **options):
    recorder = Recorder(model.parameters(), lr=0.0)
    return PrivateEngine(
        model, recorder, CE, sigma=sigma, max_grad_norm=clip, batch_size=batch, mode=mode, **options
    ), recorder


def recorded_step(model, mode, x, y, **options):
    engine, recorder = recording_engine(model, mode, **options)
    engine.step(x, y, torch.ones(len(y)))
    return recorder.seen


def gradients_by_loop(model, x, y):
    """One example at a time, in float64: a row each."""
    model = copy.deepcopy(model).double()
    rows = []
    for i in range(len(y)):
        loss = CE(model(x[i : i + 1].double()), y[i : i + 1]).sum()
        rows.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(rows)


def clipped_sum_by_loop(model, x, y, w, clip):
    """The reference."""
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for gradient, weight in zip(gradients_by_loop(model, x, y), w, strict=True):
        total += gradient * min(1.0, clip / float(gradient.norm())) * min(1.0, float(weight))
    return total


def batch_of(size, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(size, 6, generator=generator)
    y = torch.randint(0, 3, (size,), generator=generator)
    w = 0.1 + 2 * torch.rand(size, generator=generator)
    return x, y, w


class InPlaceResidual(nn.Module):
    """What makes CORDS' ResNet18 fail under Opacus' backward hooks."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        out = self.one(x)
        out += self.two(x)
        return self.head(torch.tanh(out))
