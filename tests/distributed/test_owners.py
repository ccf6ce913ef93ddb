"""Several processes and owners: all records of an owner lie in one, and are drawn by one coin."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import TensorDataset
from worlds import together

from cords_dp.processes import current_world
from cords_dp.training import engine as stepping
from cords_dp.training import poisson
from cords_dp.training.trainer import TrainClassifier

OWNERS, CAP = 24, 3
WHOSE = np.random.default_rng(5).permutation(np.repeat(np.arange(OWNERS), 1 + np.arange(OWNERS) % 5))


def handed_over():
    generator = torch.Generator().manual_seed(0)

    def made(count):
        x = torch.randn(count, 3, generator=generator)
        return TensorDataset(x, (x[:, 0] > 0).long())

    names = [f"d{owner}" for owner in WHOSE], [f"v{place // 2}" for place in range(20)]
    return {"trainset": made(len(WHOSE)), "validset": made(20), "testset": made(10), "num_cls": 2, "owners": names}


def trained(make_config, strategy, cap, *, of_v=True, **changes):
    fixed = {
        "model": {"architecture": "LogisticRegNet", "input_dim": 3, "numclasses": 2}, "optimizer": {"lr": 0.1},
        "privacy": {"records_per_owner": cap, "delta": 1e-3, "reproducible_noise": True, "accountant": "rdp"},
    }  # fmt: skip
    if not of_v:
        fixed["privacy"]["train_on_validation"] = False
    trainer = TrainClassifier(make_config(strategy, "synthetic", **fixed, **changes))
    trainer.show_progress = False
    trainer.train(**handed_over())
    return trainer


def test_an_owner_is_in_one_process_and_has_one_coin_in_every_step(make_config, monkeypatch):
    drawn, real = [[] for _ in range(3)], poisson.records_at

    def noting(dataset, indices):
        drawn[current_world().rank].append(dataset.places[indices])
        return real(dataset, indices)

    class NoSteps(stepping.PrivateEngine):
        def step(self, *batch):
            return None

    monkeypatch.setattr(poisson, "records_at", noting)
    monkeypatch.setattr(stepping, "PrivateEngine", NoSteps)
    changes = {"dataloader": {"batch_size": 8}, "train_args": {"num_epochs": 120, "print_every": 120}}
    together(monkeypatch, 3, lambda rank: trained(make_config, "FullDP", CAP, **changes).plan.shape)
    held = [{owner for step in part for owner in WHOSE[step]} for part in drawn]
    assert sum(map(len, held)) == len(set.union(*held)) == OWNERS
    sizes, seen = np.bincount(WHOSE), np.zeros((len(drawn[0]), OWNERS))
    for part in drawn:
        assert len(part) == len(seen)
        for step, records in enumerate(part):
            assert len(set(records.tolist())) == len(records)
            owners, counts = np.unique(WHOSE[records], return_counts=True)
            assert (counts == np.minimum(sizes[owners], CAP)).all()  # all that count, or none
            seen[step, owners] += 1
    assert min(stats.binomtest(int(c), len(seen), 8 / OWNERS).pvalue for c in seen.sum(axis=0)) > 1e-6
    pairs = np.corrcoef(seen.T)[np.triu_indices(OWNERS, 1)] * np.sqrt(len(seen))
    assert stats.norm.sf(np.abs(pairs).max()) * 2 * len(pairs) > 1e-3


@pytest.mark.parametrize("mechanism", [None, "balanced_softmax"])
def test_three_processes_release_what_one_does(make_config, monkeypatch, mechanism):
    """With every owner in every step, and all of its records, nothing is left to coins."""
    changes = {"dataloader": {"batch_size": OWNERS}, "train_args": {"num_epochs": 2, "print_every": 2}}
    if mechanism is not None:
        changes["dss_args"] = {"mechanism": mechanism, "fraction": 1.0}

    def run(_rank=0):
        strategy = "FullDP" if mechanism is None else "GLISTERDP"
        return trained(make_config, strategy, 5, of_v=False, **changes)  # V's coins are of chances below one

    def weights(trainer):
        return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])

    alone = run()
    for trainer in together(monkeypatch, 3, run):
        assert torch.allclose(weights(trainer), weights(alone), atol=1e-5)
        assert trainer.ledger.events("training") == alone.ledger.events("training")
        assert trainer.plan.shape.n == OWNERS
