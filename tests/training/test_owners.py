"""The unit is an owner: the law of the draw, one clipped vector each, and what a run says of it."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from cords_dp.accounting import TRAINING_DATA, Account, Entry, Ledger, gaussian
from cords_dp.data.owners import Owners
from cords_dp.data.record_set import array_set
from cords_dp.errors import AccountingError, ConfigError, DataError, MechanismError, PrivacyWarning
from cords_dp.estimators.estimator import PrivateClassifier
from cords_dp.estimators.repeats import tally
from cords_dp.planning.statement import privacy_markdown, privacy_report
from cords_dp.selection.context import Records
from cords_dp.selection.pool import Pool
from cords_dp.training.gradients import gradient_mode, linear
from cords_dp.training.gradients.contributions import Positions
from cords_dp.training.gradients.mode import Clipping, Piece
from cords_dp.training.gradients.owners import Rows, bundles, products_by_owner
from cords_dp.training.handover import hand_over
from cords_dp.training.loop import FullDPDataLoader
from cords_dp.training.poisson import OwnerDraw, chosen, poisson_batches
from cords_dp.training.step import PrivateEngine, _owner_pieces
from cords_dp.training.trainer import TrainClassifier
from cords_dp.tuning.tune import tune
from tests.builders import make_plan
from tests.data.test_owners import SECRET, hospital
from tests.steps import CE, net_for

MODES = ["linear", "bookkeeping", "hooks", "functorch"]


# --- the draw ---------------------------------------------------------------------------------------------------------


def test_every_choice_of_an_owner_s_records_is_as_likely():
    found = Counter(tuple(sorted(row)) for row in chosen(np.full(20_000, 5), 3, np.random.default_rng(0)))
    assert set(found) == set(itertools.combinations(range(5), 3))
    assert stats.chisquare(list(found.values())).pvalue > 1e-4


def test_an_owner_is_drawn_at_the_rate_with_at_most_the_cap_and_a_mass_of_one():
    owners = np.array([3, 1, 3, 3, 0, 3, 1, 3])  # owner 3 has five records, 1 has two, 0 has one
    draw, rng, steps, rate, cap = OwnerDraw(owners, None, 3), np.random.default_rng(1), 6000, 0.3, 3
    seen, of_three = Counter(), Counter()
    for _ in range(steps):
        drawn = draw.once(rate, rng)
        assert len(set(drawn.records)) == len(drawn.records)
        for place in np.unique(drawn.owners):
            mine = drawn.owners == place
            assert mine.sum() == min(cap, [1, 2, 5][place])
            assert drawn.masses[mine].sum() == pytest.approx(1)
            assert len(set(owners[drawn.records[mine]])) == 1
            seen[place] += 1
        of_three.update(drawn.records[drawn.owners == 2].tolist())
    for count in (seen[0], seen[1], seen[2]):
        assert stats.binomtest(count, steps, rate).pvalue > 1e-4
    assert set(of_three) == {0, 2, 3, 5, 7}
    assert stats.chisquare(list(of_three.values())).pvalue > 1e-4


def test_chances_thin_an_owner_and_leave_the_masses_of_its_other_records_as_they_were():
    chances = np.array([1.0, 0.25, 0.0, 1.0])
    draw, rng = OwnerDraw(np.array([0, 0, 0, 1]), chances, 10), np.random.default_rng(0)
    stayed = Counter()
    for _ in range(4000):
        drawn = draw.once(1.0, rng)
        stayed.update(drawn.records.tolist())
        assert drawn.masses[drawn.owners == 0] == pytest.approx(1 / 3)
    assert (stayed[0], stayed[2], stayed[3]) == (4000, 0, 4000)
    assert stats.binomtest(stayed[1], 4000, 0.25).pvalue > 1e-4


def test_a_plan_of_owners_does_not_draw_records_that_have_none():
    records = array_set(np.zeros((4, 2), np.float32), np.zeros(4, np.int64))
    with pytest.raises(MechanismError, match="whose"):
        next(poisson_batches(
            records, Pool.everything(4), rate=0.5, steps=1, rng=np.random.default_rng(0), records_per_owner=2
        ))  # fmt: skip


# --- one vector -------------------------------------------------------------------------------------------------------


def batch(seed=0):
    """Owners of 1, 2, 3, 5 and 9 records, with weights as a draw gives them."""
    counts, generator = [1, 2, 3, 5, 9], torch.Generator().manual_seed(seed)
    owners = torch.repeat_interleave(torch.arange(5), torch.tensor(counts))
    x = torch.randn(len(owners), 6, generator=generator) * 3
    weights = torch.rand(len(owners), generator=generator) / torch.tensor(counts)[owners]
    return x, torch.randint(0, 3, (len(owners),), generator=generator), weights, owners


def by_loop(model, x, y, weights, owners, most):
    """Σ clip(Σ w ∇ℓ), one record after the other."""
    total = [torch.zeros_like(p, dtype=torch.float64) for p in model.parameters()]
    for owner in owners.unique():
        vector = [torch.zeros_like(p, dtype=torch.float64) for p in model.parameters()]
        for place in torch.nonzero(owners == owner)[:, 0]:
            grads = torch.autograd.grad(CE(model(x[place][None]), y[place][None]).sum(), list(model.parameters()))
            for mine, more in zip(vector, grads, strict=True):
                mine += weights[place] * more
        norm = torch.sqrt(sum((v**2).sum() for v in vector))
        for into, v in zip(total, vector, strict=True):
            into += v * min(1.0, most / float(norm))
    return torch.cat([t.flatten() for t in total])


def sums_of(mode, model, x, y, weights, owners, most, *, slack=0.0):
    kind = gradient_mode(mode)
    ready = kind.prepare(model)
    parameters = list(ready.parameters())
    parts = kind.clipped_sums(ready, parameters, CE, Piece(x, y, weights, 1, owners), Clipping(most, False, slack))
    return torch.cat([part.double().flatten() for part in parts])


@pytest.mark.parametrize("most", [0.05, 0.5, 100.0])
@pytest.mark.parametrize("mode", MODES)
def test_every_owner_has_one_clipped_vector(mode, most):
    wanted = by_loop(net_for(mode), *batch(), most)
    assert torch.allclose(sums_of(mode, net_for(mode), *batch(), most), wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("mode", MODES)
def test_without_one_owner_the_sum_moves_by_no_more_than_the_clip_norm(mode):
    """Also one whose records all pull the same way: clipped one by one they would move it by 9·C."""
    x, y, weights, owners = batch()
    x, y, weights = x.clone(), y.clone(), weights.clone()
    x[owners == 4], y[owners == 4], weights[owners == 4] = 50.0, 1, 1.0
    for owner in range(5):
        others = owners != owner
        whole = sums_of(mode, net_for(mode), x, y, weights, owners, 0.3)
        rest = sums_of(mode, net_for(mode), x[others], y[others], weights[others], owners[others], 0.3)
        assert float((whole - rest).norm()) <= 0.3 * (1 + 1e-5)


FORMS = {"rows": np.ones_like, "pairs": np.zeros_like, "both": lambda records: records > 3}


@pytest.fixture(params=FORMS)
def form(request, monkeypatch):
    """Whether the linear head forms its owners' gradients or measures them by their records' inner products."""
    monkeypatch.setattr(linear, "_rows_are_cheaper", lambda records, *_: FORMS[request.param](records).astype(bool))
    return request.param


@pytest.mark.parametrize("most", [0.05, 0.5, 100.0])
def test_both_ways_of_a_linear_head_give_one_clipped_vector_each(form, most):
    wanted = by_loop(net_for("linear"), *batch(), most)
    assert torch.allclose(sums_of("linear", net_for("linear"), *batch(), most), wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_record_that_is_not_finite_leaves_its_owner_s_others_as_they_are(form, value):
    x, y, weights, owners = batch()
    broken, without = x.clone(), weights.clone()
    broken[7, 2], without[7] = value, 0.0
    found = sums_of("linear", net_for("linear"), broken, y, weights, owners, 0.5)
    assert torch.allclose(found, by_loop(net_for("linear"), x, y, without, owners, 0.5), atol=1e-5)


@pytest.mark.parametrize("others", ["before", "after", "around"])
@pytest.mark.parametrize("count", [1, 2, 5, 9, 10, 30])
def test_an_owner_s_vector_is_the_same_to_the_last_bit_whoever_else_is_in_the_batch(count, others):
    generator = torch.Generator().manual_seed(count)
    counts = {"before": [7, 1, 3, count], "after": [count, 2, 12], "around": [4, count, count, 1, 30]}[others]
    own = {"before": 3, "after": 0, "around": 1}[others]
    owners = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    a, r = torch.randn(len(owners), 65, generator=generator), torch.randn(len(owners), 10, generator=generator)
    weights = torch.rand(len(owners), generator=generator)
    mine = owners == own

    def vectors(a, r, weights, owners):
        rows = Rows.of(owners)
        found = {"products": products_by_owner(a, r, rows)[own if len(owners) > count else 0]}
        for bundle in bundles(rows, weights):
            starts = bundle.places[:, 0].tolist()
            at = owners[starts].tolist()
            if own in at:
                place = at.index(own)
                part = Positions(bundle.of(a), bundle.weighted(r))
                found |= {"sums": bundle.sums(a)[place], "lengths": part.lengths()[place]}
        return found

    whole, alone = vectors(a, r, weights, owners), vectors(a[mine], r[mine], weights[mine], owners[mine])
    assert whole.keys() == alone.keys() == {"products", "sums", "lengths"}
    assert all(torch.equal(whole[name], alone[name]) for name in whole)


def test_owners_of_a_size_are_filled_up_to_the_same_room_with_records_that_weigh_nothing():
    counts = list(range(1, 14))
    owners = torch.repeat_interleave(torch.arange(13), torch.tensor(counts))
    made = bundles(Rows.of(owners), torch.ones(len(owners)))
    assert [bundle.places.shape[1] for bundle in made] == [1, 2, 3, 4, 6, 8, 12, 16]
    for bundle in made:
        for places, weights in zip(bundle.places, bundle.weights, strict=True):
            (owner,) = owners[places].unique().tolist()
            assert int(weights.sum()) == counts[owner] == len(places[weights > 0].unique())


def stepped(mode, x, y, weights, owners):
    """The weights after a step without noise, in pieces of about four records."""
    model = net_for(mode)
    engine = PrivateEngine(
        model, torch.optim.SGD(model.parameters(), lr=1.0), CE, sigma=0.0, max_grad_norm=0.5, batch_size=5, mode=mode,
        max_physical_batch_size=4, by_owner=True,
    )  # fmt: skip
    engine.step(x, y, weights, owners)
    return torch.cat([p.detach().flatten() for p in engine.model.parameters()])


@pytest.mark.parametrize("owner", range(5))
def test_so_it_is_in_both_ways_of_a_linear_head(form, owner):
    check_null_owner("linear", owner)


@pytest.mark.parametrize("owner", range(5))
@pytest.mark.parametrize("mode", MODES)
def test_what_stands_in_a_null_owner_s_place_changes_nothing_to_the_last_bit(mode, owner):
    check_null_owner(mode, owner)


def check_null_owner(mode, owner):
    """Others' numbers do not depend on its values; whether it has a place at all moves them by rounding alone."""
    x, y, weights, owners = batch()
    null = owners == owner
    found = []
    for value, weight in ((torch.nan, 1.0), (torch.inf, 0.5), (7.0, 0.0), (-3.0, 0.0)):
        filled, weighted = x.clone(), weights.clone()
        filled[null], weighted[null] = value, weight
        found.append(stepped(mode, filled, y, weighted, owners))
    assert all(torch.equal(found[0], other) for other in found[1:])
    gone = stepped(mode, x[~null], y[~null], weights[~null], owners[~null])
    assert torch.allclose(found[0], gone, atol=1e-6)


def test_no_piece_cuts_an_owner_in_two():
    owners = torch.tensor([5] * 3 + [2] * 4 + [9] + [1] * 20 + [3])
    for size in (1, 4, 8, 100):
        pieces = list(_owner_pieces(owners, size))
        assert torch.equal(torch.cat([owners[piece] for piece in pieces]), owners)
        assert sum(len(owners[piece].unique()) for piece in pieces) == 5
    assert list(_owner_pieces(owners[:0], 4)) == [slice(0, 0)]


# --- tables -----------------------------------------------------------------------------------------------------------


def test_an_owner_has_in_a_table_what_a_record_had():
    plain = array_set(np.zeros((4, 2), np.float32), np.zeros(4, np.int64))
    records = Records(plain, nn.Linear(2, 2), CE, "cpu")
    assert records.masses.tolist() == [1, 1, 1, 1]
    plain.owners = Owners(np.array([0, 1, 1, 1]), 2)
    assert np.bincount(plain.owners.codes, weights=records.masses) == pytest.approx([1, 1])


def test_an_owner_moves_a_table_by_no_more_than_a_record_did():
    kinds = np.array([0, 1, 3, 2, -1, 1])
    six = array_set(np.zeros((6, 2), np.float32), np.zeros(6, np.int64))
    records = Records(six, nn.Linear(2, 2), CE, "cpu")
    assert records.count(kinds, 2, 2).tolist() == [[1, 2], [1, 1]]
    six.owners = Owners(np.array([0, 0, 0, 1, 2, 2]), 3)
    whole = records.count(kinds, 2, 2)
    for owner in range(3):
        others = np.flatnonzero(six.owners.codes != owner)
        rest = records.among(others).count(kinds[others], 2, 2)
        assert np.abs(whole - rest).sum() <= 1 + 1e-12


@pytest.mark.parametrize("mechanism", ["exponential", "top_k", "threshold", "match", "group_rates"])
def test_what_is_proved_for_records_only_is_refused(mechanism):
    with pytest.raises(ConfigError, match="unit is an owner"):
        make_plan("GLISTERDP", mechanism, n=1000, k=100, batch_size=50, records_per_owner=5)


@pytest.mark.parametrize("mechanism", ["align", "class_weights", "balanced_softmax"])
def test_what_counts_owners_is_planned_with_them(mechanism):
    plan = make_plan("GLISTERDP", mechanism, n=1000, k=100, batch_size=50, records_per_owner=5)
    assert plan.privacy.unit == "owner"


# --- runs -------------------------------------------------------------------------------------------------------------


def trained(config):
    trainer = TrainClassifier(config)
    trainer.show_progress = False
    trainer.train()
    return trainer


@pytest.mark.parametrize("strategy", ["FullDP", "RandomDP", "GLISTERDP"])
def test_a_run_counts_owners_and_names_nobody(tmp_path, strategy, caplog):
    config = hospital(tmp_path)
    config["dss_args"] = {"type": strategy, "fraction": 1.0 if strategy == "FullDP" else 0.5}
    if strategy == "GLISTERDP":
        config["dss_args"] |= {"mechanism": "align", "select_every": 1}
    trainer = trained(config)
    data = trainer.session.data
    assert trainer.plan.shape.n == data.train.units < len(data.train)
    assert trainer.plan.privacy.records_per_owner == 10
    hand_over(trainer, [tmp_path / "r"])
    files = [file for file in (tmp_path / "r").rglob("*") if file.is_file()]
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in files)
    assert SECRET not in caplog.text
    report = json.loads((tmp_path / "r" / "privacy.json").read_text())
    assert "one owner with all of its records" in report["unit"]
    counts = report["about"]["data"]["owners"]
    sizes = {"D": data.train.units, "V": data.validation.units, "test": data.test.units}
    assert counts == {part: size for part, size in sizes.items() if size}
    assert ("V" in counts) == (strategy == "GLISTERDP")
    assert "records" not in report["about"]["data"]


def test_a_statement_speaks_of_people():
    plan = make_plan("FullDP", n=1000, batch_size=50, records_per_owner=7)
    report = privacy_report(plan, Ledger())
    text = privacy_markdown(report)
    assert "zero-out of one owner with all of its records (of which a step uses at most 7)" in report["statement"]
    assert "every owner, with all of its records, of the training set D (1,000 owners)" in text
    assert report["several_records_of_one_person"] == []
    assert "whether one owner's records were in the data" in report["meaning"]
    assert "people with several records as if they had one" not in text


def test_an_account_of_people_and_one_of_records_do_not_add_up(tmp_path):
    account = Account.open(tmp_path / "account", 8.0, 1e-5)
    entries = (Entry(TRAINING_DATA, "training", gaussian(20.0)),)
    account.reserve("one", entries, unit="owner")
    account.reserve("two", entries, unit="owner")
    assert "owner" in account.text()
    with pytest.raises(AccountingError, match="do not add up"):
        account.reserve("three", entries)


def test_a_loop_takes_owners_of_its_own_records(tmp_path):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 6, generator=generator)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    arguments = dict(num_epochs=2, num_classes=2, eta=0.1)
    whose = [f"{SECRET}{place % 30}" for place in range(120)]
    loader = FullDPDataLoader(
        DataLoader(data), arguments, batch_size=10, privacy=dict(epsilon=3.0, accountant="rdp"), owners=whose,
        folder=tmp_path,
    )  # fmt: skip
    assert loader.plan.shape.n == 30
    model, optimizer = nn.Linear(6, 2), None
    model, optimizer = loader.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(2):
        for inputs, targets, weights in loader:
            optimizer.zero_grad()
            (CE(model(inputs), targets) * weights).sum().backward()
            optimizer.step()
    assert "one owner" in loader.statement()
    assert SECRET not in "".join(file.read_text(errors="replace") for file in tmp_path.rglob("*") if file.is_file())
    with pytest.raises(ConfigError, match="no validation set"):
        FullDPDataLoader(
            DataLoader(data), arguments, batch_size=10, privacy=dict(epsilon=3.0), owners=(whose, whose)
        )  # fmt: skip


def test_fits_of_records_and_of_owners_are_not_taken_for_one_sum():
    rows = np.arange(7, dtype=np.uint64) + 10**9
    assert tally(rows, 1.0, 1e-5, "owner") is None
    with pytest.warns(PrivacyWarning, match="some an owner"):
        assert tally(rows, 1.0, 1e-5).mixed


def test_a_tuning_whose_score_counts_records_is_refused(tmp_path):
    config = hospital(tmp_path)
    config["privacy"]["reproducible_noise"] = False
    with pytest.raises(ConfigError, match="scored by records"):
        tune(config, {"optimizer.lr": [0.1, 0.2]}, out=tmp_path / "out", progress=False)


@pytest.mark.parametrize("strategy", ["FullDP", "GLISTERDP"])
def test_an_estimator_takes_owners_of_its_rows(strategy):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5))
    y = (X[:, 0] > 0).astype(int)
    keys = {"config": {"dss_args": {"mechanism": "align"}}} if strategy == "GLISTERDP" else {}
    estimator = PrivateClassifier(epsilon=3.0, strategy=strategy, random_state=0, **keys)
    estimator.fit(X, y, owners=np.arange(400) % 80)
    assert estimator.privacy_.plan.privacy.unit == "owner"
    assert estimator.privacy_.plan.shape.n == (80 if strategy == "FullDP" else 72)
    with pytest.raises(DataError, match="one name for each record"):
        estimator.fit(X, y, owners=np.arange(399))
