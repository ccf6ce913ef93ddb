"""The choice of a mode: the right ones are found, and no model gets a mode that would not bound its records."""

from __future__ import annotations

import pytest
import torch
from steps import CE, InPlaceResidual, batch_of
from torch import nn

from cords_dp.errors import UnsupportedModelError
from cords_dp.training.modes import fastest_mode

# --- the choice -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("statement", ["out.add_(self.two(x))", "out.mul_(self.two(x))"])
def test_a_model_whose_in_place_statements_cannot_be_undone_is_refused(statement):
    """Mutant of the rule: ``out.add_(b)`` as a statement does not rebind ``out``."""

    class Statement(InPlaceResidual):
        def forward(self, x):
            out = self.one(x)
            exec(statement, {"out": out, "self": self, "x": x})
            return self.head(torch.tanh(out))

    x, y, _ = batch_of(4)
    with pytest.raises(UnsupportedModelError, match="no way to get per-example gradients"):
        fastest_mode(Statement(), x, y, CE, ("hooks", "ghost"))


@pytest.mark.parametrize(("unfit", "reason"), [("unused", "take no part"), ("shape", "one logit")])
def test_models_that_are_no_classifiers_are_refused_with_the_reason(unfit, reason):
    class Unfit(InPlaceResidual):
        def forward(self, x):
            out = self.head(torch.tanh(self.one(x) if unfit == "unused" else self.one(x) + self.two(x)))
            return out if unfit == "unused" else out[:, 0]

    x, y, _ = batch_of(4)
    with pytest.raises(UnsupportedModelError, match=reason):
        fastest_mode(Unfit(), x, y, CE)


@pytest.mark.parametrize("mode", ["hooks", "ghost", "functorch"])
def test_dropout_does_not_make_a_mode_look_wrong(mode):
    class Dropping(InPlaceResidual):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return self.head(nn.functional.dropout(self.drop(self.one(x)) + self.two(x), 0.5, self.training))

    x, y, _ = batch_of(4)
    assert fastest_mode(Dropping(), x, y, CE, (mode,)) == mode


def test_records_that_mix_while_training_only_are_found():
    """Found in a last reading: a check in evaluation mode would let such a model through."""

    class MixesInTraining(InPlaceResidual):
        def forward(self, x):
            out = self.one(x) + self.two(x)
            return self.head(out - out.mean(dim=0) if self.training else out)

    x, y, _ = batch_of(4)
    with pytest.raises(UnsupportedModelError, match="wrong gradients"):
        fastest_mode(MixesInTraining(), x, y, CE, ("hooks", "ghost"))


def test_a_mode_that_gives_wrong_gradients_is_refused():
    class Coupled(nn.Module):
        """Mixes the records of a batch without a BatchNorm layer that a validator could see."""

        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x):
            return self.layer(x - x.mean(dim=0))

    x, y, _ = batch_of(4)
    with pytest.raises(UnsupportedModelError, match="wrong gradients"):
        fastest_mode(Coupled(), x, y, CE, ("hooks",))


def test_sequences_get_another_mode_than_ghost():
    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return self.layer(x).sum(dim=1)

    x, y = torch.randn(2, 5, 4), torch.tensor([0, 1])
    assert fastest_mode(Sequence(), x, y, CE) != "ghost"
