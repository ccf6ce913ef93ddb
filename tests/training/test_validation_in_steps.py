"""V in the steps: drawn at the pace that is charged to V, clipped like any record, at no price for D."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from builders import data_of, make_plan
from scipy import stats
from torch.nn import functional as F
from worlds import together

from cords_dp.accounting import (
    TRAINING_DATA,
    VALIDATION_DATA,
    BranchMaximum,
    PoissonGaussian,
    gaussian,
    group,
    group_epsilons,
)
from cords_dp.config import PACE
from cords_dp.config.presets import config_for
from cords_dp.data.record_set import Splits, array_set
from cords_dp.errors import ConfigError, DataError, MechanismError
from cords_dp.models.losses import LikelihoodLoss, kinds, labels_of, trusted
from cords_dp.processes import current_world
from cords_dp.runs.run import run_and_hand_over
from cords_dp.selection.align import Align
from cords_dp.training.private_session import PrivateSession
from cords_dp.training.resolve import resolve
from cords_dp.training.trainer import TrainClassifier
from cords_dp.tuning.search import keeping_validation
from cords_dp.verify import verify

D, V = 300, 80
MARK = 50.0  # in the first column of V's records

# --- the plan ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["align", "match", "threshold", "top_k", "group_rates"])
def test_v_pays_for_its_part_and_d_does_not_notice(mechanism):
    keys = {"mechanism": mechanism, "n": 2000, "k": 200, "select_every": 2}
    plan, before = make_plan(**keys), make_plan(**keys, train_on_validation=False)
    on_d, on_d_before = ([e.event for e in p.entries() if e.dataset == TRAINING_DATA] for p in (plan, before))
    assert on_d == on_d_before
    assert (plan.sigma, plan.selection_noise, plan.branches) == (before.sigma, before.selection_noise, before.branches)
    assert plan.cost().training_data == before.cost().training_data
    assert 0.99 * 3 < plan.cost().validation_data.epsilon <= 3
    assert plan.pace == PACE
    assert plan.sigma_validation > before.sigma_validation


@pytest.mark.parametrize("kappa", [0.0, 0.5])
def test_every_step_on_d_is_one_on_v_with_the_same_noise_at_the_pace(kappa):
    plan = make_plan(mechanism="align", n=6000, k=600, batch_size=100, epochs=8, select_every=2, kappa=kappa)
    on_d, on_v = (_steps(plan, dataset) for dataset in (TRAINING_DATA, VALIDATION_DATA))
    assert on_v == {(sigma, plan.pace * rate, count) for sigma, rate, count in on_d}
    branches = [b for e in plan.entries() if isinstance(e.event, BranchMaximum) for b in [e.event.branches]]
    assert len(branches) == 2
    for (of_d,), (of_v,) in zip(*branches, strict=True):
        assert of_v == PoissonGaussian(of_d.sigma, plan.pace * of_d.rate, of_d.count)


def _steps(plan, dataset):
    """Return (σ, rate, count) of the steps on a data set that are not branched."""
    events = [e.event for e in plan.entries() if e.dataset == dataset and isinstance(e.event, PoissonGaussian)]
    return {(e.sigma, e.rate, e.count) for e in events if e.rate < 1}


def test_plans_without_it_are_as_they_were():
    keys = {"n": 2000, "k": 200, "train_on_validation": False}
    assert make_plan(mechanism="align", **keys).pace == 0
    assert '"pace"' not in json.dumps(make_plan(mechanism="align", **keys).facts())
    for other in ({"validation": "public"}, {"epsilon": float("inf")}):
        assert make_plan(mechanism="align", n=2000, k=200, **other).pace == 0
    for strategy in ("FullDP", "RandomDP"):
        on, off = (make_plan(strategy, n=2000, k=2000, train_on_validation=value) for value in (True, False))
        assert on.fingerprint == off.fingerprint


def test_a_slower_pace_is_taken_where_the_steps_would_leave_v_nothing():
    """Few steps at a high rate, with a large ε: at nine tenths of the rate a record is hardly better hidden."""
    sizes = {"n": 1000, "k": 1000, "n_validation": 100, "batch_size": 1000}
    plan = make_plan(mechanism="match", epochs=1, epsilon=30.0, accountant="pld", **sizes)
    assert plan.pace < PACE
    assert plan.cost().validation_data.epsilon <= 30


def test_trials_that_are_scored_on_v_do_not_train_on_it(make_config):
    run = resolve(keeping_validation(make_config("GLISTERDP", privacy={"head_start": 5})), plan=False)
    assert run.privacy.train_on_validation is False
    assert run.privacy.head_start == 0


def test_it_is_refused_where_v_is_not_read_or_public(make_config):
    asked = {"privacy": {"train_on_validation": True}}
    with pytest.raises(ConfigError, match=r"privacy\.train_on_validation"):
        resolve(make_config("FullDP", **asked), plan=False)
    with pytest.raises(ConfigError, match=r"privacy\.train_on_validation"):
        resolve(make_config("GLISTERDP", privacy={**asked["privacy"], "validation": "public"}), plan=False)
    assert resolve(make_config("GLISTERDP", **asked), plan=False).privacy.train_on_validation


def test_noise_on_v_that_is_given_still_fits():
    """At a slower pace, or without V in the steps: before, as little noise was enough."""
    keys = {"mechanism": "align", "n": 6000, "k": 600, "n_validation": 1000, "epochs": 8, "select_every": 2}
    paces = [make_plan(**keys, validation_noise=noise).pace for noise in (4.0, 5.0, 8.0)]
    assert paces == sorted(paces)
    assert 0 <= paces[0] < paces[-1] == PACE
    for noise in (4.0, 5.0, 8.0):
        assert make_plan(**keys, validation_noise=noise).cost().validation_data.epsilon <= 3


def test_a_mechanism_that_charges_d_by_the_noise_on_v_is_refused(monkeypatch):
    original = Align.releases

    def coupled(self, noise, privacy, sizes):
        on_d, on_v = original(self, noise, privacy, sizes)
        return replace(on_d, event=gaussian(noise.on_training / (noise.on_validation or 1.0))), on_v

    monkeypatch.setattr(Align, "releases", coupled)
    with pytest.raises(MechanismError, match="must not depend on the noise on V"):
        make_plan(mechanism="align", n=2000, k=200)


def test_a_person_in_both_sets_is_in_one_step_with_all_records():
    """Binomial(i, q) + Binomial(j, 0.9·q) records of one person move one sum; two independent steps would be less."""
    steps, of_v = PoissonGaussian(1.0, 0.05, 40), PoissonGaussian(1.0, 0.045, 40)
    split = partial(group._epsilon, ((), (), (), (steps,), (of_v,)), delta=1e-5, inclusion=1.0)
    assert split((1, 1, 0)) == split((2, 0, 0)) > split((0, 2, 0))
    apart = group._epsilon(((steps,), (of_v,), (), (), ()), (1, 1, 0), 1e-5, 1.0)
    assert split((1, 1, 0)) > 1.2 * apart
    found = group_epsilons([], [], 1e-5, on_both=([steps], [of_v]), sizes=[2])[2]
    assert found == split((2, 0, 0))
    plan = make_plan(mechanism="match", n=2000, k=200)
    on_d = [e.event for e in plan.entries() if e.dataset == TRAINING_DATA]
    assert plan.group_cost()[2] >= group_epsilons(on_d, [], plan.delta, sizes=[2])[2]


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(make_config, monkeypatch):
    """Run a config on D and V that can be told apart; return the trainer and what each step was taken on."""

    def go(strategy="GLISTERDP", *, owners=None, classes=3, **changes):
        v = data_of(V, 1, classes)
        x, y = v.batch(np.arange(V))
        marked = x.numpy().copy()
        marked[:, 0] = MARK + np.arange(V)
        data = Splits(data_of(D, 0, classes), array_set(marked, y.numpy()), data_of(90, 2, classes), classes)
        batches, original = [], PrivateSession.step

        def seen(self, batch):
            batches.append([part.numpy().copy() for part in batch])
            original(self, batch)

        monkeypatch.setattr(PrivateSession, "step", seen)
        options = {
            "dataset": {"name": "custom", "type": None},
            "model": {"architecture": "LinearHead", "numclasses": classes},
            "dataloader": {"batch_size": 32},
            **changes,
        }
        trainer = TrainClassifier(make_config(strategy, **options))
        trainer.show_progress = False
        given = dict(zip(("trainset", "validset", "testset", "num_cls"), data, strict=True))
        trainer.train(**given, **({} if owners is None else {"owners": owners}))
        return trainer, batches

    return go


def _of_v(batch):
    """Return which of V's records a batch holds."""
    return (batch[0][batch[0][:, 0] >= MARK - 1][:, 0] - MARK).round().astype(int)


def _inclusions(batches):
    matrix = np.zeros((len(batches), V))
    for row, batch in zip(matrix, batches, strict=True):
        found = _of_v(batch)
        assert len(set(found)) == len(found)
        row[found] = 1
    return matrix


@pytest.mark.parametrize(("mechanism", "share"), [("match", 0.9), ("group_rates", 0.2)])
def test_each_record_of_v_has_its_own_coin_at_the_charged_rate(run, mechanism, share):
    """Where records have rates of their own the noise is that of the slowest branch, and so is V's rate."""
    changes = {"dss_args": {"mechanism": mechanism, "fraction": share}, "train_args": {"num_epochs": 60}}
    trainer, batches = run(**changes, privacy={"epsilon": 20.0})
    plan = trainer.plan
    slowest = min(plan.branches, key=lambda b: b.sigma).rate if plan.branches else plan.shape.rate
    matrix = _inclusions(batches)
    assert (mechanism == "match") == (not plan.branches)
    assert len(batches) == plan.shape.steps
    assert stats.binomtest(int(matrix.sum()), matrix.size, plan.pace * slowest).pvalue > 1e-6
    counts = matrix.sum(axis=0).astype(int)
    assert min(stats.binomtest(c, len(matrix), plan.pace * slowest).pvalue for c in counts) > 1e-6
    if mechanism == "group_rates":  # too few are drawn for correlations to be normal
        return
    pairs = np.corrcoef(matrix.T)[np.triu_indices(V, 1)] * np.sqrt(len(matrix))
    assert stats.norm.sf(np.abs(pairs).max()) * 2 * len(pairs) > 1e-3


def test_a_branch_has_v_at_the_pace_of_its_own_rate(run):
    """The branch that the tables advise has other noise, and what V pays is for a rate that goes with it."""
    trainer, batches = run(
        dss_args={"mechanism": "align", "fraction": 0.5, "select_every": 5}, train_args={"num_epochs": 40}
    )
    plan, session = trainer.plan, trainer.session
    steps = [epoch.branched for epoch in plan.shape.epochs for _ in range(epoch.steps)]
    assert session.branch is not None
    rate = plan.pace * plan.branches[session.branch].rate
    matrix = _inclusions(batches)[np.array(steps)]
    assert stats.binomtest(int(matrix.sum()), matrix.size, rate).pvalue > 1e-6


def test_records_of_v_with_another_shape_are_refused_before_anything_is_charged(make_config):
    data = Splits(data_of(D, 0), data_of(V, 1, dim=7), data_of(90, 2), 3)
    given = dict(zip(("trainset", "validset", "testset", "num_cls"), data, strict=True))
    config = make_config(
        "GLISTERDP", dataset={"name": "custom", "type": None}, model={"architecture": "LinearHead", "numclasses": 3}
    )
    trainer = TrainClassifier(config)
    trainer.show_progress = False
    with pytest.raises(DataError, match=r"privacy\.train_on_validation=False"):
        trainer.train(**given)
    assert not trainer.ledger.entries


def test_without_it_no_step_sees_v(run):
    _, batches = run(privacy={"train_on_validation": False})
    assert not sum(len(_of_v(batch)) for batch in batches)
    _, batches = run(privacy={"validation": "public"})
    assert not sum(len(_of_v(batch)) for batch in batches)


def test_labels_of_v_are_marked_as_right(run):
    trainer, batches = run()
    labels = trainer.session.data.validation.labels()[0].numpy()
    for batch in batches:
        found, of_v = _of_v(batch), batch[0][:, 0] >= MARK - 1
        np.testing.assert_array_equal(batch[1][of_v], labels[found] + 9)
        assert (batch[1][~of_v] < 9).all()
        assert (batch[2] == 1).all()


def test_owners_of_v_are_others_than_those_of_d(run):
    """Joined to one owner their vectors would be clipped together, and one of V would move what one of D does."""
    trainer, batches = run(owners=(np.arange(D) // 3, 1000 + np.arange(V) // 4), train_args={"num_epochs": 30})
    assert trainer.plan.pace == PACE
    drawn = 0
    for batch in batches:
        of_v = batch[0][:, 0] >= MARK - 1
        owners = batch[3]
        assert not set(owners[of_v]) & set(owners[~of_v])
        np.testing.assert_array_equal(owners[of_v] - D // 3, _of_v(batch) // 4)
        assert len(np.unique(owners)) == len(owners[:1]) + (np.diff(owners) != 0).sum()  # those of one in a row
        drawn += len(set(owners[of_v]))
    rate = trainer.plan.pace * trainer.plan.shape.rate
    assert drawn > 0
    if trainer.session.branch in (None, 0):
        assert stats.binomtest(drawn, len(batches) * V // 4, rate).pvalue > 1e-6


def test_processes_draw_each_of_v_once(make_config, monkeypatch):
    drawn: dict[int, list[int]] = {}
    coins: dict[int, str] = {}
    original = PrivateSession._drawn_of_v

    def seen(self, rate, steps):
        for batch in original(self, rate, steps):
            drawn.setdefault(current_world().rank, []).append(len(batch[1]))
            coins.setdefault(current_world().rank, str(self._coins_of_v.bit_generator.state))
            yield batch

    monkeypatch.setattr(PrivateSession, "_drawn_of_v", seen)

    def work(rank):
        trainer = TrainClassifier(make_config("GLISTERDP", train_args={"num_epochs": 20, "seed": 0}))
        trainer.show_progress = False
        trainer.train()
        plan = trainer.plan
        rate = plan.branches[trainer.session.branch].rate if trainer.session.branch is not None else plan.shape.rate
        return trainer.model.state_dict()["linear.weight"], plan, rate, len(trainer.session.data.validation)

    (weights, plan, rate, held), (same, *_, others) = together(monkeypatch, 2, work)
    assert torch.equal(weights, same)
    assert held + others == plan.shape.n_validation
    assert coins[0] != coins[1]
    first = sum(e.steps for e in plan.shape.epochs if not e.branched)
    total = sum(sum(drawn[rank][first:]) for rank in (0, 1))
    trials = (plan.shape.steps - first) * plan.shape.n_validation
    assert stats.binomtest(total, trials, plan.pace * rate).pvalue > 1e-6


# --- losses -----------------------------------------------------------------------------------------------------------


def test_records_of_v_have_the_plain_loss_beside_the_likelihood_of_d():
    loss = LikelihoodLoss(3)
    given = torch.full((3, 3), 0.1) + torch.eye(3)
    loss.use(given, given)
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, -1])
    predicted = torch.tensor([1, 1, 0, 2, 0])
    of_d, of_v = kinds(labels, predicted, 3), trusted(labels, 3)
    both = loss(torch.cat([logits, logits]), torch.cat([of_d, of_v]))
    torch.testing.assert_close(both[:5], loss(logits, of_d))
    torch.testing.assert_close(both[5:9], F.cross_entropy(logits[:4], labels[:4], reduction="none"))
    assert both[9] == 0
    assert not torch.allclose(both[:4], both[5:9])
    assert torch.equal(labels_of(of_v, 3), labels)
    loss.use(None, None)
    known = F.cross_entropy(logits[:4], labels[:4], reduction="none")
    torch.testing.assert_close(loss(logits[:4], of_v[:4]), known)


# --- charges ----------------------------------------------------------------------------------------------------------


def test_both_sets_are_charged_on_disk_before_a_step(train, monkeypatch):
    """As many charges of either kind are on disk when V is drawn from as epochs have begun until then."""
    seen, original = [], PrivateSession._drawn_of_v

    def spied(self, rate, steps):
        text, begun = self.ledger.path.read_text().replace(" ", ""), self.plan.shape.epochs[: len(seen) + 1]
        plain = [epoch for epoch in begun if not epoch.branched]
        wanted = [
            entry for epoch in (*plain, *begun[len(plain) : len(plain) + 1]) for entry in self.plan.step_entries(epoch)
        ]
        lines = [json.dumps(entry.to_dict(), separators=(",", ":")) for entry in wanted]
        seen.append(all(text.count(line) == lines.count(line) for line in lines))
        return original(self, rate, steps)

    monkeypatch.setattr(PrivateSession, "_drawn_of_v", spied)
    trainer = train("GLISTERDP")
    assert len(seen) == len(trainer.plan.shape.epochs)
    assert all(seen)
    on_v = [e for e in trainer.plan.entries() if e.dataset == VALIDATION_DATA]
    assert sum(e.event.count for e in on_v) == sum(e.count for e in trainer.ledger.events(VALIDATION_DATA))


@pytest.mark.parametrize("kind", ["branch_maximum", "poisson_gaussian"])
def test_a_plan_that_leaves_its_events_out_is_not_verified(tmp_path, kind):
    config = config_for(
        "digits",
        "GLISTERDP",
        dss_args={"fraction": 0.7, "select_every": 1},  # two branches
        train_args={"num_epochs": 2, "print_every": 2, "seed": 0, "device": "cpu"},
        privacy={"epsilon": 2.0, "accountant": "rdp"},
    )
    out = tmp_path / "run"
    run_and_hand_over(config, out, progress=False)
    report = json.loads((out / "privacy.json").read_text())
    (data,) = [one for one in report["events"]["datasets"] if one["dataset"] == "V"]
    events = data["parts"][0]["events"]
    left = [e for e in events if e["event"]["kind"] != kind or e["event"].get("rate") == 1]
    assert len(left) < len(events)
    data["parts"][0]["events"] = left
    (out / "privacy.json").write_text(json.dumps(report, indent=2))
    assert "uses fewer than planned, on V" in verify(out)["verdict"]
