"""The likelihood of D's labels: its gradient, what is read off noisy tables, and what it must not do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import data_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from cords_dp.errors import MechanismError
from cords_dp.models.losses import LikelihoodLoss, kinds, labels_of
from cords_dp.selection.likelihood import LabelLikelihood, class_given_label, is_spread, of_class_shares, of_tables
from cords_dp.selection.pool import Pool
from cords_dp.training.gradients.choose import try_modes

CLASSES = 4


def some_tables(seed):
    """m[y, o] and chances c[o, ŷ], both anything."""
    rng = np.random.default_rng(seed)
    return rng.uniform(0.01, 2.0, (CLASSES, CLASSES)), rng.uniform(0.0, 1.0, (CLASSES, CLASSES))


def loss_with(likelihood):
    loss = LikelihoodLoss(likelihood.classes)
    loss.use(torch.tensor(likelihood.given), torch.tensor(likelihood.drawn))
    return loss


def some_batch(seed, size=9):
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(size, CLASSES, generator=rng, dtype=torch.float64)
    labels, predicted = (torch.randint(0, CLASSES, (size,), generator=rng) for _ in range(2))
    return logits.requires_grad_(), labels, predicted


# --- the loss ------------------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_the_gradient_is_what_d_would_show_less_what_the_record_probably_is(seed):
    m, chances = some_tables(seed)
    likelihood = LabelLikelihood.under(m, chances)
    logits, labels, predicted = some_batch(seed)
    losses = loss_with(likelihood)(logits, kinds(labels, predicted, CLASSES))
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    p = logits.detach().softmax(dim=1).numpy()
    r = p * m[:, labels].T
    q = p * (m @ chances)[:, predicted].T
    expected = q / q.sum(axis=1, keepdims=True) - r / r.sum(axis=1, keepdims=True)
    assert np.allclose(gradient.numpy(), expected, atol=1e-9)
    assert np.linalg.norm(gradient.numpy(), axis=1).max() <= 2**0.5 + 1e-9
    assert np.allclose(losses.detach().numpy(), -np.log(r.sum(axis=1) / q.sum(axis=1)))


def test_without_tables_it_is_the_plain_loss_and_so_it_is_where_nothing_differs():
    logits, labels, predicted = some_batch(0)
    plain = nn.CrossEntropyLoss(reduction="none")(logits, labels)
    loss = LikelihoodLoss(CLASSES)
    assert torch.allclose(loss(logits, labels), plain)
    assert torch.allclose(loss(logits, kinds(labels, predicted, CLASSES)), plain)
    nothing = LabelLikelihood.under(of_class_shares(np.ones(CLASSES)), np.full((CLASSES, CLASSES), 0.3))
    moved = loss_with(nothing)(logits, kinds(labels, predicted, CLASSES)) - plain  # a uniform draw adds a constant
    (gradient,) = torch.autograd.grad(moved.sum(), logits)
    assert gradient.abs().max() < 1e-6


def test_class_ratios_alone_are_the_balanced_softmax():
    logits, labels, predicted = some_batch(1)
    ratio = np.array([2.0, 1.0, 0.5, 0.8])  # V's share over D's
    loss = loss_with(LabelLikelihood.under(of_class_shares(ratio), np.ones((CLASSES, CLASSES))))
    adjusted = nn.CrossEntropyLoss(reduction="none")(logits - torch.tensor(ratio).log(), labels)
    assert torch.allclose(loss(logits, kinds(labels, predicted, CLASSES)), adjusted, atol=1e-4)


def test_at_the_truth_the_thinned_data_pull_nowhere():
    """The exact law: D's labels are made from m, thinned by chances; the model that knows P_V has zero gradient."""
    rng = np.random.default_rng(3)
    world = rng.dirichlet(np.ones(CLASSES), 6)  # P_V(y | x) of six kinds of x
    m, chances = some_tables(3)
    predicted = rng.integers(0, CLASSES, 6)
    loss = loss_with(LabelLikelihood.under(m, chances))
    logits = torch.tensor(np.log(world), requires_grad=True)
    total = torch.zeros((), dtype=torch.float64)
    for label in range(CLASSES):
        weight = (world @ m)[:, label] * chances[label, predicted]  # P_D(label, drawn | x), up to a constant of x
        targets = kinds(torch.full((6,), label), torch.tensor(predicted), CLASSES)
        total = total + (torch.tensor(weight) * loss(logits, targets)).sum()
    (gradient,) = torch.autograd.grad(total, logits)
    assert gradient.abs().max() < 1e-12
    plain = nn.CrossEntropyLoss(reduction="none")
    off = sum(
        (torch.tensor((world @ m)[:, o] * chances[o, predicted]) * plain(logits, torch.full((6,), o))).sum()
        for o in range(CLASSES)
    )
    assert torch.autograd.grad(off, logits)[0].abs().max() > 0.01  # the plain loss would be wrong


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), record=st.integers(0, 8))
def test_a_record_changes_no_other_records_loss(seed, record):
    loss = loss_with(LabelLikelihood.under(*some_tables(seed)))
    logits, labels, predicted = some_batch(seed)
    targets = kinds(labels, predicted, CLASSES)
    changed, other = logits.detach().clone(), targets.clone()
    changed[record], other[record] = torch.nan, -1
    rest = torch.arange(9) != record
    assert torch.equal(loss(logits, targets)[rest], loss(changed, other)[rest])


def test_labels_can_be_read_back():
    _, labels, predicted = some_batch(2)
    targets = kinds(labels, predicted, CLASSES)
    assert torch.equal(labels_of(targets, CLASSES), labels)
    assert torch.equal(targets // CLASSES, predicted)
    unknown = torch.tensor([-100, 2])
    assert torch.equal(labels_of(kinds(unknown, torch.tensor([3, 3]), CLASSES), CLASSES), unknown)


@pytest.mark.parametrize("width", [0, 5])
def test_every_gradient_mode_takes_it(width):
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(6, CLASSES)] if not width else [nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, CLASSES)]
    loss = loss_with(LabelLikelihood.under(*some_tables(5)))
    x, targets = torch.randn(4, 6), torch.tensor([0, 5, 11, 14])
    admitted, refused = try_modes(nn.Sequential(*layers), x, targets, loss)
    assert {"bookkeeping", "hooks", "functorch", "ew", "ghost"} <= set(admitted), refused


# --- what tables say -------------------------------------------------------------------------------------------------


def world_of(rows, moved, accuracy, n, n_validation, seed, noise):
    """Noisy tables of D and V: class shares ``rows`` in D and even ones in V, D's labels by ``moved[class, label]``."""
    rng, classes = np.random.default_rng(seed), len(rows)
    predicted = np.full((classes, classes), (1 - accuracy) / (classes - 1))
    np.fill_diagonal(predicted, accuracy)
    truth = rng.multinomial(n, rows)
    on_d = np.zeros((classes, classes))
    for y in range(classes):
        for o, count in enumerate(rng.multinomial(truth[y], moved[y])):
            on_d[o] += rng.multinomial(count, predicted[y])
    on_v = np.array([rng.multinomial(n_validation // classes, predicted[y]) for y in range(classes)], dtype=float)
    return on_d + noise * rng.normal(size=on_d.shape), on_v + noise / 2 * rng.normal(size=on_v.shape)


def shifted(share, classes=10):
    return (1 - share) * np.eye(classes) + share * np.roll(np.eye(classes), 1, axis=1)


EVEN = np.full(10, 0.1)
CUT = np.where(np.arange(10) % 2, 0.05, 1.0)
CUT = CUT / CUT.sum()


@pytest.mark.parametrize("accuracy", [0.95, 0.7])
@pytest.mark.parametrize("seed", range(3))
def test_moved_labels_are_found(accuracy, seed):
    tables = world_of(EVEN, shifted(0.4), accuracy, 50_000, 5_000, seed, noise=16.0)
    found = class_given_label(*tables, 16.0, 8.0)
    assert np.abs(found - shifted(0.4).T).max() < (0.05 if accuracy > 0.9 else 0.15)
    m = of_tables(*tables, 16.0, 8.0)
    assert np.abs(m - shifted(0.4)).max() < (0.05 if accuracy > 0.9 else 0.2)


@pytest.mark.parametrize("seed", range(3))
def test_cut_classes_and_moved_labels_are_told_apart(seed):
    tables = world_of(CUT, shifted(0.4), 0.9, 50_000, 5_000, seed, noise=16.0)
    m = of_tables(*tables, 16.0, 8.0)
    whole = m.sum(axis=1)
    assert np.abs(m / whole[:, None] - shifted(0.4))[0::2].max() < 0.05
    shares = whole ** (1 / 1.5)  # class ratios count for more than they say
    assert np.abs(shares / shares.sum() - CUT).max() < 0.04
    assert (m[0::2].sum(axis=1) / m[1::2].sum(axis=1)).min() > 8  # the truth: 20


@pytest.mark.parametrize("seed", range(20))
def test_where_nothing_differs_nothing_is_found(seed):
    tables = world_of(EVEN, np.eye(10), 0.9, 50_000, 5_000, seed, noise=16.0)
    m = of_tables(*tables, 16.0, 8.0)
    assert np.abs(m - np.eye(10)).max() < 0.15


@pytest.mark.parametrize("accuracy", [0.9, 0.7])
def test_what_sampling_explains_is_no_move(accuracy):
    """V is small: the shares of its rows differ from D's by chance, and by more than the noise on D's cells."""
    for seed in range(40):
        tables = world_of(EVEN, np.eye(10), accuracy, 45_000, 5_000, seed, noise=20.0)
        assert np.array_equal(class_given_label(*tables, 20.0, 10.0), np.eye(10)), seed


@pytest.mark.parametrize("accuracy", [0.9, 0.7])
@pytest.mark.parametrize("seed", range(5))
def test_labels_drawn_at_random_are_told_from_moved_ones(accuracy, seed):
    """Also where single cells are too small to be moves."""
    drawn_anew = 0.6 * np.eye(10) + 0.04
    assert is_spread(*world_of(EVEN, drawn_anew, accuracy, 45_000, 5_000, seed, noise=20.0), 20.0, 10.0)
    assert not is_spread(*world_of(EVEN, shifted(0.4), accuracy, 45_000, 5_000, seed, noise=20.0), 20.0, 10.0)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_many_classes_have_two_columns(share):
    """Right and wrong by label: single cells would be noise."""
    classes = 50
    rng = np.random.default_rng(0)
    spread = (1 - share) * np.eye(classes) + share * (1 - np.eye(classes)) / (classes - 1)
    whole = world_of(np.full(classes, 1 / classes), spread, 0.8, 100_000, 20_000, 0, noise=0.0)
    tables = []
    for table, noise in zip(whole, (10.0, 5.0), strict=True):
        right = np.diag(table)
        two = np.stack([right, table.sum(axis=1) - right], axis=1)
        tables.append(two + noise * rng.normal(size=two.shape))
    found = class_given_label(*tables, 10.0, 5.0)
    assert np.diag(found).mean() == pytest.approx(1 - share, abs=0.05)
    assert np.allclose(found.sum(axis=1), 1)


@settings(max_examples=50)
@given(seed=st.integers(0, 10**6), groups=st.sampled_from(["two", "all"]), size=st.floats(0, 1000))
def test_any_tables_make_a_likelihood(seed, groups, size):
    """Noise may be larger than everything else: negative counts, empty rows."""
    rng = np.random.default_rng(seed)
    shape = (CLASSES, 2 if groups == "two" else CLASSES)
    on_d, on_v = rng.normal(size=(2, *shape)) * 30 + size * rng.random((2, *shape))
    m = of_tables(on_d, on_v, 30.0, 30.0)
    likelihood = LabelLikelihood.under(m, rng.random((CLASSES, CLASSES)))
    logits, labels, predicted = some_batch(seed)
    losses = loss_with(likelihood)(logits, kinds(labels, predicted, CLASSES))
    assert torch.isfinite(torch.autograd.grad(losses.sum(), logits)[0]).all()


# --- in a pool -------------------------------------------------------------------------------------------------------


def likelihood():
    return LabelLikelihood(np.ones((3, 3)), np.ones((3, 3)))


@pytest.mark.parametrize(
    "wrong",
    [
        {"likelihood": likelihood()},
        {"predicted": np.zeros(4, dtype=int)},
        {"likelihood": likelihood(), "predicted": np.zeros(3, dtype=int)},
        {"likelihood": likelihood(), "predicted": np.full(4, 3)},
        {"likelihood": likelihood(), "predicted": np.full(4, -1)},
        {"likelihood": likelihood(), "predicted": np.zeros(4)},
        {"likelihood": np.ones((3, 3)), "predicted": np.zeros(4, dtype=int)},
    ],
)
def test_a_pool_refuses_what_does_not_fit(wrong):
    with pytest.raises(MechanismError):
        Pool(np.arange(4), **wrong)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan, np.inf])
def test_a_likelihood_is_made_of_positive_numbers(value):
    table = np.ones((3, 3))
    table[1, 2] = value
    for tables in ((table, np.ones((3, 3))), (np.ones((3, 3)), table)):
        with pytest.raises(MechanismError):
            LabelLikelihood(*tables)
    with pytest.raises(MechanismError):
        LabelLikelihood(np.ones((3, 2)), np.ones((3, 2)))


def test_a_part_of_a_pool_keeps_its_predictions():
    pool = Pool(np.array([1, 4, 6]), likelihood=likelihood(), predicted=np.array([0, 1, 2]))
    part = pool.among(np.array([0, 4, 5, 6]))
    assert part.indices.tolist() == [1, 3]
    assert part.predicted.tolist() == [1, 2]
    assert part.own


def test_batches_say_label_and_prediction():
    from cords_dp.training.poisson import poisson_batches

    data = data_of(30, 0)
    predicted = np.arange(30) % 3
    pool = Pool(np.arange(30), likelihood=likelihood(), predicted=predicted)
    (batch,) = poisson_batches(data, pool, rate=1.0, steps=1, rng=np.random.default_rng(0))
    assert torch.equal(labels_of(batch[1], 3), data.targets)
    assert np.array_equal(batch[1].numpy() // 3, predicted)


# --- in a run --------------------------------------------------------------------------------------------------------


def aligned(**changes):
    return {"dss_args": {"mechanism": "align", "select_every": 1, **changes}, "train_args": {"num_epochs": 4}}


def tables_of(session):
    return session.training_loss._given, session.training_loss._drawn


def test_steps_minimise_it_and_metrics_stay_plain(train):
    trainer = train("GLISTERDP", **aligned(correction="loss"))
    session, pool = trainer.session, trainer.session.source.current
    given, drawn = tables_of(session)
    assert torch.allclose(given, torch.tensor(pool.likelihood.given).T.log())
    assert torch.allclose(drawn, torch.tensor(pool.likelihood.drawn).T.log())
    assert type(session.loss) is nn.CrossEntropyLoss
    assert session.engine.criterion is session.training_loss


def test_it_costs_nothing(train):
    """The same plan, σ and entries, with the likelihood and without."""
    plans = [train("GLISTERDP", **aligned(correction=correction)).plan for correction in ("both", "draw")]
    assert plans[0].sigma == plans[1].sigma
    assert plans[0].entries() == plans[1].entries()


@pytest.mark.parametrize("correction", ["draw", "loss"])
def test_each_half_can_be_had_alone(train, correction):
    trainer = train("GLISTERDP", **aligned(correction=correction))
    pool = trainer.session.source.current
    assert (pool.likelihood is None) == (correction == "draw")
    if correction == "loss":
        assert trainer.plan.branches == ()
        assert set(pool.chances.tolist()) <= {0.0, 1.0}  # 0 for a record without a cell
    assert trainer.spent().epsilon <= 3.0


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1), nn.MultiMarginLoss(reduction="none")]
)
def test_a_loss_of_the_users_own_is_left_as_it_is(train, loss):
    session = train("GLISTERDP", **aligned()).session
    assert session._with_likelihood(loss) is loss
    assert isinstance(session._with_likelihood(nn.CrossEntropyLoss(reduction="none")), LikelihoodLoss)


def test_strategies_without_a_selection_have_the_plain_loss(train):
    session = train("FullDP").session
    assert session.training_loss is session.loss


def test_a_resumed_run_goes_on_with_the_same_likelihood(make_config):
    from cords_dp.training.trainer import TrainClassifier

    saving = {"is_save": True, "save_every": 1}

    def config(**ckpt):
        changes = aligned(correction="loss", select_every=2)
        return make_config("GLISTERDP", **changes, ckpt={**saving, **ckpt})

    first, seen = TrainClassifier(config()), []
    after = TrainClassifier._after_epoch

    def stop(self, epoch, metrics):
        after(self, epoch, metrics)
        seen.append(tables_of(self.session))
        if epoch == 3:
            raise KeyboardInterrupt

    first._after_epoch = stop.__get__(first)
    with pytest.raises(KeyboardInterrupt):
        first.train()
    second = TrainClassifier(config(is_load=True))
    second.train()
    for before, later in zip(seen[-1], tables_of(second.session), strict=True):
        assert torch.equal(before, later)
