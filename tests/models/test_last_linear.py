"""The linear layer that a model ends with is found by trying, and nothing is taken for it that is not."""

from __future__ import annotations

import pytest
import torch
from builders import Net
from torch import nn

from cords_dp.models.heads import LinearHead, MLPHead
from cords_dp.models.last_linear import divide, last_linear


class Shared(nn.Module):
    """One layer twice: half of its weights is a quarter of the logits."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6, bias=False)

    def forward(self, x):
        return self.layer(self.layer(x))


def noisy(model: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(
    ("model", "name"),
    [(LinearHead(3, (6,)), "linear"), (MLPHead(3, (6,)), "linear"), (Net(), "head"),
     (nn.Sequential(nn.Linear(6, 4), nn.GELU(), nn.Linear(4, 3), nn.Identity()), "2")],
)  # fmt: skip
def test_the_last_layer_is_found_and_divided_in_place(model, name):
    noisy(model)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    x = torch.randn(50, 6)
    layer, logits = last_linear(model, x[:4]), model(x)
    assert layer is model.get_submodule(name)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    divide(layer, 3.0)
    torch.testing.assert_close(model(x), logits / 3)
    assert torch.equal(model(x).argmax(dim=1), logits.argmax(dim=1))


@pytest.mark.parametrize(
    "model",
    [Shared(), nn.Identity(), *(nn.Sequential(nn.Linear(6, 3), last) for last in (nn.Tanh(), nn.LayerNorm(3)))],
)
def test_nothing_is_taken_for_it(model):
    assert last_linear(noisy(model), torch.randn(4, 6)) is None


def test_a_model_that_says_nothing_yet_has_none():
    assert last_linear(LinearHead(3, (6,)), torch.randn(4, 6)) is None
