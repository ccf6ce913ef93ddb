"""The law of a run in several processes: one coin for each record, noise once, sums over all records."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import CE, Net, data_of, make_plan
from scipy import stats
from worlds import together

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, Ledger, gaussian
from cords_dp.data.record_set import Share
from cords_dp.errors import ConfigError, MechanismError
from cords_dp.planning import Release
from cords_dp.planning.plan import HEAD_START
from cords_dp.processes import World, current_world
from cords_dp.selection import Records, SelectionContext
from cords_dp.selection.releases import Releases
from cords_dp.selection.session import Selections
from cords_dp.training import engine as stepping
from cords_dp.training import poisson, private_test, temperature
from cords_dp.training.trainer import TrainClassifier

ALPHA = 1e-6


# --- coins -----------------------------------------------------------------------------------------------------------


class NoSteps(stepping.PrivateEngine):
    """An engine for tests of what comes before it."""

    def step(self, x, y, weights):
        return None


def inclusions(make_config, monkeypatch, size, epochs):
    """steps × records: which record of D, by its place, was how often in which step of a run in ``size`` processes."""
    drawn, real = [[] for _ in range(size)], poisson.records_at

    def noting(dataset, indices):
        where = dataset.places
        drawn[current_world().rank].append(indices if where is None else where[indices])
        return real(dataset, indices)

    monkeypatch.setattr(poisson, "records_at", noting)
    monkeypatch.setattr(stepping, "PrivateEngine", NoSteps)
    changes = {
        "dataset": {"num_samples": 40}, "dataloader": {"batch_size": 8}, "optimizer": {"lr": 0.1},
        "train_args": {"num_epochs": epochs, "print_every": epochs}, "privacy": {"delta": 1e-3},
    }  # fmt: skip

    def work(rank):
        trainer = TrainClassifier(make_config("FullDP", "synthetic", **changes))
        trainer.show_progress = False
        trainer.train()

    together(monkeypatch, size, work)
    matrix = np.zeros((len(drawn[0]), 32))
    for parts in drawn:
        assert len(parts) == len(matrix)  # every rank takes part in every step
        for step, part in enumerate(parts):
            np.add.at(matrix[step], part, 1)
    return matrix


def test_every_record_of_every_rank_has_one_independent_coin_in_every_step(make_config, monkeypatch):
    """Coins that ranks share would come in pairs; a record that two ranks hold would have two coins."""
    matrix, rate = inclusions(make_config, monkeypatch, size=3, epochs=250), 8 / 32
    steps, n = matrix.shape
    assert steps == 1000
    assert set(np.unique(matrix)) == {0, 1}
    counts = matrix.sum(axis=0)
    assert min(stats.binomtest(int(c), steps, rate).pvalue for c in counts) > ALPHA
    pairs = np.corrcoef(matrix.T)[np.triu_indices(n, 1)] * np.sqrt(steps)  # about standard normal if independent
    assert stats.norm.sf(np.abs(pairs).max()) * 2 * len(pairs) > 1e-3
    spread = matrix.sum(axis=1).var(ddof=1) / (n * rate * (1 - rate)) * (steps - 1)
    assert min(stats.chi2.sf(spread, steps - 1), stats.chi2.cdf(spread, steps - 1)) > ALPHA


# --- noise -----------------------------------------------------------------------------------------------------------


class Untouchable:
    def __getattr__(self, name):
        raise AssertionError("noise was drawn on a rank that adds none")


def release_of(rank, total, generator, noiseless=False):
    ledger = Ledger()
    releases = Releases(
        [Release("sum", TRAINING_DATA, gaussian(2.0), 3.0, "a sum")],
        charge=ledger.charge, generators={TRAINING_DATA: generator}, noiseless=noiseless, world=current_world(),
    )  # fmt: skip
    return releases.gaussian("sum", total), [entry.event for entry in ledger.entries]


def test_noise_is_added_once_to_the_sum_of_all_parts(monkeypatch):
    """The variance of one Gaussian event: noise of all four ranks would have twice the deviation."""
    size, width = 4, 40_000

    def work(rank):
        generator = np.random.default_rng(0) if rank == 0 else Untouchable()
        return release_of(rank, np.full(width, 10.0**rank), generator)

    results = together(monkeypatch, size, work)
    released, charged = results[0]
    assert released.mean() == pytest.approx(1111.0, abs=0.2)
    spread = released.var(ddof=1) / (2.0 * 3.0) ** 2 * (width - 1)
    assert min(stats.chi2.sf(spread, width - 1), stats.chi2.cdf(spread, width - 1)) > ALPHA
    for other, events in results[1:]:
        assert np.array_equal(other, released)
        assert events == charged == [gaussian(2.0)]


def test_a_part_that_is_not_finite_is_refused_on_every_rank(monkeypatch):
    with pytest.raises(MechanismError, match="NaN or infinity"):
        together(
            monkeypatch, 2, lambda rank: release_of(rank, np.array([np.nan if rank else 0.0]), np.random.default_rng(0))
        )


def test_picks_of_single_records_are_refused():
    releases = Releases([], charge=None, generators={}, noiseless=True, world=World(0, 2))
    with pytest.raises(MechanismError, match="compare all records"):
        releases.picks("picks", np.zeros(3), 1)


# --- selections ------------------------------------------------------------------------------------------------------

MECHANISMS = {
    "align": {}, "match": {}, "class_weights": {}, "group_rates": {},
    "threshold": {"exploration": 0.0, "greedy_rounds": 2},
}  # fmt: skip
KEYS = {"n": 300, "n_validation": 90, "k": 90, "batch_size": 30, "epochs": 4, "select_every": 2}


def selected(plan, share):
    """Two selections in a row by one rank: what was released, and each record's chance and weight."""
    generator = torch.Generator().manual_seed(0)
    model = Net()
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=generator)

    def records(dataset):
        return Records(dataset.cut(share), model, CE, "cpu")

    context = SelectionContext(
        plan=plan, training=records(data_of(300, 0)), validation=records(data_of(90, 1)), num_classes=3,
        learning_rate=0.1, coins=np.random.default_rng([2, share.rank]),
    )  # fmt: skip
    generators = {TRAINING_DATA: np.random.default_rng(5), VALIDATION_DATA: np.random.default_rng(6)}
    selections = Selections(
        context, ledger=Ledger(allowance=plan.entries()), generators=generators, world=current_world()
    )
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    for name in ("1", "2")[: plan.shape.rounds]:
        pool = selections.select(weights, name)
    assert pool.own
    where = context.training.dataset.places
    found = np.zeros((300, 3))
    rows = pool.indices if where is None else where[pool.indices]
    found[rows, 0] = 1
    found[rows, 1] = 1 if pool.chances is None else pool.chances
    found[rows, 2] = 1 if pool.weights is None else pool.weights
    return selections.state(), found, selections.restore(selections.state())


@pytest.mark.parametrize("noiseless", [False, True])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_ranks_release_and_choose_what_one_process_does(mechanism, noiseless, monkeypatch):
    """Sums over all records, noise once; what becomes of a record is decided where it lies. Rank 1 has no records."""
    privacy = {"epsilon": float("inf")} if noiseless else {}
    plan = make_plan("GLISTERDP", mechanism, **KEYS, **MECHANISMS[mechanism], **privacy)
    state, alone, _ = selected(plan, Share())
    shares = (2.0, 0.0, 1.0)
    ranks = together(monkeypatch, 3, lambda rank: selected(plan, Share(rank, 3, shares)))
    np.testing.assert_allclose(sum(found for _, found, _ in ranks), alone, rtol=1e-4, atol=1e-5)
    assert not ranks[1][1].any()
    for released, found, again in ranks:
        assert_close(released, state)
        assert len(again) == found[:, 0].sum()


def assert_close(found, wanted):
    assert type(found) is type(wanted)
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key in wanted:
            assert_close(found[key], wanted[key])
    elif isinstance(wanted, list):
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other)
    else:
        torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(wanted), rtol=1e-4, atol=1e-5)


def test_what_is_fitted_before_training_is_fitted_on_all_records(make_config, tmp_path, monkeypatch):
    """Means and spreads of a table's columns: one noisy sum over D, whoever holds its records."""
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{'yes' if a > b else 'no'}" for a, b in rng.uniform(0, 10, (400, 2))]
    (tmp_path / "t.csv").write_text("a,b,y\n" + "\n".join(rows) + "\n")
    columns = {name: {"range": [0, 20]} for name in "ab"}
    table = {
        "name": "table", "path": str(tmp_path / "t.csv"), "datadir": str(tmp_path / "data"), "scaling": "private",
        "schema": {"target": {"name": "y", "classes": ["no", "yes"]}, "columns": columns},
    }  # fmt: skip

    def fitted(name):
        places = {"results_dir": str(tmp_path / name), "num_epochs": 1, "print_every": 1}
        config = make_config("FullDP", train_args=places, ckpt={"dir": str(tmp_path / name)})
        config.dataset, config.model = table, {"architecture": "LinearHead"}
        trainer = TrainClassifier(config)
        trainer.show_progress = False
        trainer.train()
        return trainer.session.source_card()["fitted"], [entry.to_dict() for entry in trainer.ledger.entries]

    (fit, ledger), ranks = fitted("one"), together(monkeypatch, 3, lambda rank: fitted("three"))
    for other, entries in ranks:
        assert entries == ledger
        np.testing.assert_allclose([other["centres"], other["widths"]], [fit["centres"], fit["widths"]], rtol=1e-9)


@pytest.mark.parametrize("mechanism", ["exponential", "top_k"])
def test_a_mechanism_that_ranks_all_records_is_refused_by_run_and_by_selections(mechanism, make_config, monkeypatch):
    plan = make_plan("GLISTERDP", mechanism, **KEYS)
    context = SelectionContext(plan, Records(data_of(300, 0), Net(), CE, "cpu"), None, 3, 0.1, None)
    with pytest.raises(MechanismError, match="several processes"):
        Selections(context, ledger=Ledger(), generators={}, world=World(0, 2))
    config = make_config("GLISTERDP", dss_args={"mechanism": mechanism})
    with pytest.raises(ConfigError, match="one process, or use one of 'align'"):
        together(monkeypatch, 2, lambda rank: TrainClassifier(config).train())


def test_ranks_that_would_take_different_branches_are_stopped(monkeypatch):
    with pytest.raises(MechanismError, match="disagree about the branch"):
        together(monkeypatch, 2, lambda rank: current_world().refuse_disagreement(rank, "the branch", "a fix"))


@pytest.mark.parametrize("changes", [{"train_args": {"shares": [1, 3]}}, {"dataset": {"num_samples": 60}}])
def test_processes_that_were_given_different_configs_are_refused(changes, make_config, monkeypatch):
    """Their parts could overlap: a record would have two coins."""

    def work(rank):
        given = {"dataset": {"num_samples": 400}, "train_args": {"shares": [1, 1]}} | (changes if rank else {})
        TrainClassifier(
            make_config("FullDP", "synthetic", **given, optimizer={"lr": 0.1}, dataloader={"batch_size": 8})
        ).train()

    with pytest.raises(MechanismError, match="disagree about config or data"):
        together(monkeypatch, 2, work)


def test_ranks_fit_one_temperature_together_with_noise_once(make_config, monkeypatch):
    """Every rank adds up its own records of V; all get one sum, whose noise is that of one process."""
    parts, original = {}, temperature.steps_on

    def noting(records):
        return parts.setdefault(current_world().rank, original(records))

    monkeypatch.setattr(temperature, "steps_on", noting)
    ranks = fitted(make_config, monkeypatch)
    (released, weights, _, plan), (other, same_weights, *_) = ranks
    assert sum(held for _, _, held, _ in ranks) == plan.shape.n_validation
    np.testing.assert_array_equal(released, other)
    assert torch.equal(weights, same_weights)
    noise = (released - parts[0] - parts[1]) / plan.sigma_temperature
    assert stats.kstest(noise, "norm").pvalue > 1e-4


def fitted(make_config, monkeypatch):
    kept, original = {}, temperature.released_once

    def keeping(*arguments, **options):
        return kept.setdefault(current_world().rank, original(*arguments, **options))

    monkeypatch.setattr(temperature, "released_once", keeping)

    def work(rank):
        trainer = TrainClassifier(make_config("GLISTERDP", train_args={"num_epochs": 2, "seed": 0}))
        trainer.show_progress = False
        trainer.train()
        weights = trainer.model.state_dict()["linear.weight"]
        return kept[rank]["released"].numpy(), weights, len(trainer.session.data.validation), trainer.plan

    return together(monkeypatch, 2, work)


def test_ranks_take_the_first_steps_together_with_noise_once(make_config, monkeypatch):
    """Every rank adds up the gradients of its own records of V; all get one sum, whose noise is that of one process."""
    totals, sums, original = {}, {}, Releases.gaussian

    def noting(self, name, total):
        found, rank = original(self, name, total), current_world().rank
        if name == HEAD_START:
            totals.setdefault(rank, []).append(np.array(total))
            sums.setdefault(rank, []).append(found)
        return found

    monkeypatch.setattr(Releases, "gaussian", noting)

    def work(rank):
        changes = {"privacy": {"head_start": 4, "max_grad_norm": 1.0}, "train_args": {"num_epochs": 2, "seed": 0}}
        trainer = TrainClassifier(make_config("GLISTERDP", **changes))
        trainer.show_progress = False
        trainer.train()
        return trainer.model.state_dict()["linear.weight"], trainer.plan

    (weights, plan), (same_weights, _) = together(monkeypatch, 2, work)
    assert torch.equal(weights, same_weights)
    assert len(sums[0]) == len(sums[1]) == 4
    np.testing.assert_array_equal(sums[0], sums[1])
    noise = (np.array(sums[0]) - np.array(totals[0]) - np.array(totals[1])) / plan.sigma_head_start
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-4


def test_ranks_release_the_test_set_together_with_noise_once(make_config, monkeypatch):
    """Every rank adds up its own test records; all get one vector, whose noise is that of one process."""
    changes = {"dataset": {"test": "private"}, "train_args": {"num_epochs": 1, "seed": 0}}

    def work(rank):
        trainer = TrainClassifier(make_config("FullDP", **changes))
        trainer.show_progress = False
        trainer.train()
        own = private_test.test_sum(trainer.session)
        return trainer.session.tested.vector, own, len(trainer.session.data.test), trainer.plan

    ranks = together(monkeypatch, 2, work)
    (released, first, *_), (other, second, *_) = ranks
    plan = ranks[0][3]
    assert ranks[0][2] + ranks[1][2] == plan.shape.n_test == 360
    np.testing.assert_array_equal(released, other)
    noise = (released - first - second) / plan.sigma_test
    assert stats.kstest(noise, "norm").pvalue > 1e-4
