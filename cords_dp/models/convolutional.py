"""Convolutional nets made for per-example gradients: small tanh nets for a CPU, a wide ResNet for a GPU.

Every normalisation looks at one record at a time (GroupNorm), tanh keeps activations and gradients bounded (Papernot et
al. 2021), and standardised weights help networks without BatchNorm (De et al. 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _Contract(nn.Module):
    """CORDS' contract around a ``body`` that embeds and a last ``linear`` layer."""

    body: nn.Module
    linear: nn.Linear

    def forward(self, x: Tensor, last: bool = False, freeze: bool = False) -> Any:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not freeze):
            embedding = self.body(x).flatten(1)
        out = self.linear(embedding)
        return (out, embedding) if last else out

    def get_embedding_dim(self) -> int:
        return self.linear.in_features


class TanhCNN(_Contract):
    """Blocks of two 3×3 convolutions with GroupNorm and tanh, halving the image until it is at most 4×4.

    28×28 images get two blocks and 32×32 three: 0.1 and 0.3 million weights at the default width.
    """

    def __init__(self, num_classes: int, input_shape: Sequence[int], width: int = 32, groups: int = 8):
        super().__init__()
        channels, side = input_shape[0], input_shape[1]
        layers: list[nn.Module] = []
        while side > 7:
            for _ in range(2):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(groups, width), nn.Tanh()]
                channels = width
            layers.append(nn.AvgPool2d(2))
            side, width = side // 2, 2 * width
        self.body = nn.Sequential(*layers)
        self.linear = nn.Linear(channels * side * side, num_classes)


class StandardisedConv2d(nn.Conv2d):
    """A convolution whose filters are brought to mean 0 and variance 1/fan-in before use."""

    def forward(self, x: Tensor) -> Tensor:
        fan_in = self.weight[0].numel()
        mean = self.weight.mean(dim=(1, 2, 3), keepdim=True)
        variance = self.weight.var(dim=(1, 2, 3), keepdim=True)
        weight = (self.weight - mean) / (variance * fan_in + 1e-4).sqrt()
        return F.conv2d(x, weight, self.bias, self.stride, self.padding)


class _Residual(nn.Module):
    def __init__(self, channels: int, width: int, stride: int, groups: int):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(groups, channels), nn.GroupNorm(groups, width)
        self.conv1 = StandardisedConv2d(channels, width, 3, stride=stride, padding=1)
        self.conv2 = StandardisedConv2d(width, width, 3, padding=1)
        same = stride == 1 and channels == width
        self.shortcut = nn.Identity() if same else StandardisedConv2d(channels, width, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.norm1(x)))
        return self.shortcut(x) + self.conv2(F.relu(self.norm2(out)))


class WideResNet(_Contract):
    """WRN-16-4 with GroupNorm and standardised weights: 2.7 million weights, for a GPU."""

    def __init__(self, num_classes: int, input_shape: Sequence[int], depth: int = 16, widen: int = 4, groups: int = 16):
        super().__init__()
        layers: list[nn.Module] = [StandardisedConv2d(input_shape[0], 16, 3, padding=1)]
        channels = 16
        for stage in range(3):
            for number in range((depth - 4) // 6):
                width, stride = 16 * widen * 2**stage, 2 if stage and not number else 1
                layers.append(_Residual(channels, width, stride, min(groups, channels)))
                channels = width
        layers += [nn.GroupNorm(groups, channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
        self.body = nn.Sequential(*layers)
        self.linear = nn.Linear(channels, num_classes)
