"""Small plans, data and selectors for tests."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import torch
from torch import nn

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, Ledger
from cords_dp.config import PrivacySettings, SubsetSettings
from cords_dp.data.handed_over import as_records
from cords_dp.data.record_set import ClassTarget, array_set
from cords_dp.planning import build_plan, registered_mechanisms
from cords_dp.selection import Records, SelectionContext
from cords_dp.selection.releases import Releases

CE = nn.CrossEntropyLoss(reduction="none")


def make_plan(strategy="GLISTERDP", mechanism="match", *, n, n_validation=500, epochs=5, batch_size=None, k=None,
              fraction=None, **keys):  # fmt: skip
    """A plan; ``keys`` are those of ``privacy``, of the common part of ``dss_args`` and of the mechanism."""
    keys = {"epsilon": 3.0, "delta": 1e-5, "accountant": "rdp", **keys}
    keys["fraction"] = k / n + 1e-9 if k is not None else 1.0 if fraction is None else fraction
    kind = {m.name: m for m in registered_mechanisms()}[mechanism]

    def pick(names):
        return {key: keys.pop(key) for key in list(keys) if key in names}

    privacy = PrivacySettings(**pick({f.name for f in fields(PrivacySettings)}))
    subset = SubsetSettings(**pick({f.name for f in fields(SubsetSettings)}))
    own = kind(**pick(kind.own_keys())) if strategy == "GLISTERDP" else None
    assert not keys or strategy != "GLISTERDP", f"no such keys: {keys}"
    return build_plan(
        strategy, privacy, subset, own, epochs=epochs, batch_size=batch_size, n=n, n_validation=n_validation,
        uses_all=strategy == "FullDP",
    )  # fmt: skip


class Net(nn.Module):
    """CORDS' contract in its smallest form."""

    def __init__(self, dim=6, classes=3, hidden=5):
        super().__init__()
        self.body, self.head, self.hidden = nn.Linear(dim, hidden), nn.Linear(hidden, classes), hidden

    def forward(self, x, last=False, freeze=False):
        embedding = torch.tanh(self.body(x))
        out = self.head(embedding)
        return (out, embedding) if last else out

    def get_embedding_dim(self):
        return self.hidden


def data_of(n, seed, classes=3, dim=6):
    rng = np.random.default_rng(seed)
    return array_set(rng.normal(size=(n, dim)).astype(np.float32), rng.integers(0, classes, n))


class Selecting:
    """A selector with everything around it: its ledger, its releases, the weights that it selects at."""

    def __init__(self, plan, seed=0, train=None, validation=None, model=None, learning_rate=0.1, charge=None):
        torch.manual_seed(seed)
        model = model or Net()
        self.plan, self.ledger = plan, Ledger(allowance=plan.entries())
        self.weights = {name: value.clone() for name, value in model.state_dict().items()}
        validation = validation or data_of(plan.shape.n_validation, seed + 1)
        context = SelectionContext(
            plan=plan,
            training=Records(train or data_of(plan.shape.n, seed), model, CE, "cpu"),
            validation=Records(validation, model, CE, "cpu") if plan.validation_is_read else None,
            num_classes=3,
            learning_rate=learning_rate,
            coins=np.random.default_rng(seed + 2),
        )
        self.generators = {
            TRAINING_DATA: np.random.default_rng(seed), VALIDATION_DATA: np.random.default_rng(seed + 1)
        }  # fmt: skip
        self.selector = plan.mechanism.build(context)
        self.charge = charge or self.ledger.charge

    def releases(self):
        return Releases(
            self.plan.releases() if self.plan.shape.rounds else (),
            charge=self.charge, generators=self.generators, noiseless=self.plan.noiseless,
        )  # fmt: skip

    def select(self):
        return self.selector.select(self.weights, self.releases())


def spy_on_noise(monkeypatch, selecting):
    """Every Gaussian draw of a selection as (noise multiplier, sensitivity), by dataset; each charged before."""
    drawn = {TRAINING_DATA: [], VALIDATION_DATA: []}

    def spy(total, *, sensitivity, noise_multiplier, rng, **_):
        side = VALIDATION_DATA if rng is selecting.generators[VALIDATION_DATA] else TRAINING_DATA
        assert selecting.ledger.events(side)  # charged before
        drawn[side].append((noise_multiplier, sensitivity))
        return total + rng.normal(size=total.shape) * noise_multiplier * sensitivity

    monkeypatch.setattr("cords_dp.selection.releases.gaussian_release", spy)
    return drawn


def guarded(dataset, classes):
    """A set whose records with a label that is no class contribute nothing."""
    return as_records(dataset).with_target(ClassTarget(classes))
