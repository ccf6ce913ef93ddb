"""Record and replay: two zero-out neighbours under frozen noise, for every mechanism, every variant and every step.

For each pair: the same draws, of the same shape and scale, in the same order, and the same charges; what goes into a
release differs by at most its declared sensitivity, given equal earlier releases; everyone but the changed record has
the same place, chance and weight, bit by bit. Records may be NaN, infinite or huge, classes may be empty.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
import torch
from builders import data_of
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from replay.recording import Case, Frozen, run
from steps import LinearNet, recording_engine
from torch import nn

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, ExponentialPicks, GumbelFreeze, Ledger
from cords_dp.auditing.transcripts import Transcript
from cords_dp.config import PrivacySettings, SubsetSettings
from cords_dp.config.settings import GRADIENT_MODES
from cords_dp.planning import PrivacyPlan, Shape, Sizes, registered_mechanisms
from cords_dp.planning.schedule import Branch
from cords_dp.selection.last_layer import LastLayerGradients
from cords_dp.selection.scores import unit_gradient_rows
from cords_dp.training import step as noisy_sum
from cords_dp.training.gradients import gradient_mode

N, K, V = 18, 6, 10
SCORES = ("glister", "el2n", "grad_norm")
GREEDY = ("Frozen", "RGreedy", "Stochastic", "Naive")


def combined(**axes):
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


# What each mechanism can be asked for. A mechanism that is not listed is replayed with its defaults.
VARIANTS = {
    "align": combined(looks=[1, 3]),
    "match": combined(linear_layer=[True, False], concentration=[None, 1.0, 3.0]),
    "threshold": combined(
        score=SCORES, selection_type=["Supervised", "PerClass"], greedy_rounds=[1, 3], exploration=[0.0, 0.4]
    ),
    "top_k": combined(score=SCORES, linear_layer=[True, False]),
    "exponential": [
        *combined(greedy=GREEDY, r=[2], selection_type=["Supervised"]),
        *combined(greedy=GREEDY, r=[2], selection_type=["PerClass"], labels_public=[True]),
        *combined(score=["el2n", "grad_norm"]),
        *combined(greedy=["Frozen"], selection_composition=["bounded_range"]),
    ],
}
CASES = [
    (kind.name, {**keys, "validation": validation})
    for kind in registered_mechanisms()
    for keys in VARIANTS.get(kind.name, [{}])
    for validation in ("private", "public")
]
MECHANISMS = [kind.name for kind in registered_mechanisms()]
SEARCH = settings(max_examples=20, phases=[Phase.explicit, Phase.generate])  # small already: nothing to shrink
HUGE = (math.nan, math.inf, -math.inf, 1e30, -3e38)


@cache
def _plan_of(mechanism, items, noise):
    keys, (kind,) = dict(items), (k for k in registered_mechanisms() if k.name == mechanism)
    if "bins" in kind.own_keys():
        keys["bins"] = 16
    own = kind(**{key: keys.pop(key) for key in list(keys) if key in kind.own_keys()})
    privacy, subset = PrivacySettings(epsilon=3.0, **keys), SubsetSettings(fraction=K / N, select_every=1)
    own.check(privacy, subset)
    sizes = Sizes(N, V, K, batch_size=3)
    on_v = 1.0 if own.reads_validation and privacy.validation == "private" else None
    shape = Shape("GLISTERDP", sizes, own.schedule(sizes, subset, epochs=3))
    branches = tuple(Branch(c, c * 3 / N, sigma=1.0) for c in own.concentrations(sizes)) if shape.branched_steps else ()
    return PrivacyPlan(
        shape, privacy, subset, own, 1e-5, sigma=1.0, selection_noise=noise, sigma_validation=on_v, branches=branches
    )


def plan_of(mechanism, keys, noise):
    """A plan without calibration: sensitivities and control flow do not depend on how much noise there is."""
    return _plan_of(mechanism, tuple(keys.items()), noise)


@st.composite
def cases(draw, mechanism, private_v=False):
    """A variant of a mechanism, and records to select from."""
    choices = [keys for name, keys in CASES if name == mechanism]
    keys = draw(st.sampled_from([k for k in choices if k["validation"] == "private"] if private_v else choices))
    seed, classes = draw(st.integers(0, 10_000)), draw(st.integers(2, 4))
    used = draw(st.integers(1, classes))  # the other classes are empty
    train, validation = data_of(N, seed, classes=used, dim=4), data_of(V, seed + 1, classes=used, dim=4)
    if draw(st.booleans()):  # V asks for what D has little of
        train.store.all_labels[4:], validation.store.all_labels[1:] = used - 1, 0
    for dataset in (train, validation):
        for index, value in draw(st.lists(st.tuples(st.integers(0, V - 1), st.sampled_from(HUGE)), max_size=2)):
            dataset.store.x[index] = value
    plan = plan_of(mechanism, keys, noise=draw(st.sampled_from([0.1, 1.0])))
    hidden, loudness = draw(st.integers(1, 5)), draw(st.sampled_from([0.0, 0.01, 1.0]))
    return Case(plan, train, validation, classes, hidden, seed, loudness)


def is_frozen(plan):
    """Do picks see a score vector of which one coordinate moves?"""
    events = [release.event for release in plan.releases() if release.epsilon0 is not None]
    noise = plan.selection_noise
    return all(isinstance(e, GumbelFreeze) or e == ExponentialPicks(noise / 2, e.count) for e in events)


# --- mechanisms ------------------------------------------------------------------------------------------------------


def test_every_registered_mechanism_is_replayed():
    assert {name for name, _ in CASES} == {kind.name for kind in registered_mechanisms()}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@SEARCH
@given(data=st.data(), first=st.integers(0, 2))
def test_draws_charges_and_order_do_not_depend_on_a_record(mechanism, data, first):
    """Frozen noise, no script: what a neighbour releases differs, what it does must not. Every third record in turn."""
    case = data.draw(cases(mechanism))
    here = run(case)
    assert any(what[0] == "charge" for what in here.flow)
    for record in range(first, N, 3):
        assert run(case, null=record).flow == here.flow


@pytest.mark.parametrize("mechanism", MECHANISMS)
@SEARCH
@given(data=st.data(), record=st.integers(0, V - 1))
def test_draws_charges_and_order_do_not_depend_on_a_record_of_v(mechanism, data, record):
    case = data.draw(cases(mechanism, private_v=True))
    here, there = run(case), run(case, null=record, null_in=VALIDATION_DATA)
    assert here.flow == there.flow


@pytest.mark.parametrize("mechanism", MECHANISMS)
@SEARCH
@given(data=st.data(), record=st.integers(0, N - 1))
def test_what_is_released_on_d_moves_by_at_most_its_sensitivity(mechanism, data, record):
    case = data.draw(cases(mechanism))
    here = run(case)
    there = run(case, null=record, script=here)
    frozen = is_frozen(case.plan)
    for one, other in zip(here.queries, there.queries, strict=True):
        moved = one.values - other.values
        if one.kind == "picks":
            assert np.abs(moved).max() <= one.limit
            assert not frozen or np.count_nonzero(moved) <= 1
            for scores in (one.values, other.values):
                assert np.abs(scores).max(initial=0.0) <= one.limit
        elif one.release.dataset == TRAINING_DATA:
            assert np.linalg.norm(moved) <= one.limit
        else:  # V is read where released values say, unless v moves along picks and stays inside the mechanism
            assert not frozen or not moved.any()


@pytest.mark.parametrize("mechanism", MECHANISMS)
@SEARCH
@given(data=st.data(), record=st.integers(0, V - 1))
def test_what_is_released_on_v_moves_by_at_most_its_sensitivity(mechanism, data, record):
    """And D is read through nothing of V but what was released."""
    case = data.draw(cases(mechanism, private_v=True))
    here = run(case)
    there = run(case, null=record, null_in=VALIDATION_DATA, script=here)
    for one, other in zip(here.queries, there.queries, strict=True):
        moved = np.linalg.norm(one.values - other.values)
        assert moved <= (one.limit if one.release.dataset == VALIDATION_DATA else 0.0)
    for one, other in zip(here.pools, there.pools, strict=True):
        assert tables(one) == tables(other)  # how labels came about follows from the releases alone


@pytest.mark.parametrize("mechanism", MECHANISMS)
@SEARCH
@given(data=st.data(), record=st.integers(0, N - 1))
def test_equal_releases_give_everyone_else_the_same_place(mechanism, data, record):
    """Bit by bit: who is in the pool, with which weight and chance, follows from that record and the releases."""
    case = data.draw(cases(mechanism))
    here = run(case)
    there = run(case, null=record, script=here)
    for one, other in zip(here.pools, there.pools, strict=True):
        assert not case.plan.secret_pool or places(one, record) == places(other, record)
        assert tables(one) == tables(other)  # how labels came about follows from the releases alone
        assert case.plan.secret_pool or one.indices.tolist() == other.indices.tolist()  # a released pool is a release


def places(pool, record):
    columns = [pool.indices, *(c for c in (pool.weights, pool.chances, pool.predicted) if c is not None)]
    return [row for row in zip(*(c.tolist() for c in columns), strict=True) if row[0] != record]


def tables(pool):
    known = pool.likelihood
    return None if known is None else [table.tolist() for table in (known.given, known.drawn)]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@SEARCH
@given(data=st.data(), record=st.integers(0, N - 1), value=st.sampled_from(HUGE))
def test_a_record_that_is_not_finite_changes_neither_flow_nor_the_others(mechanism, data, record, value):
    """A record that spoils its own numbers is bounded like any other."""
    case = data.draw(cases(mechanism))
    spoilt = case.train.store.x.clone()
    spoilt[record] = value
    train = data_of(N, case.seed, classes=1, dim=4)
    train.store.x, train.store.all_labels = spoilt, case.train.store.all_labels
    there = run(Case(case.plan, train, case.validation, case.classes, case.hidden, case.seed, case.loudness))
    null = run(case, null=record, script=there)
    assert run(case).flow == there.flow
    for one, other in zip(there.queries, null.queries, strict=True):
        assert np.isfinite(one.values).all() or one.kind == "picks"
        if one.kind == "sum" and one.release.dataset == TRAINING_DATA:
            assert np.linalg.norm(one.values - other.values) <= one.limit


@given(scores=st.lists(st.floats(-1, 1), min_size=1, max_size=12), record=st.integers(0, 11), classes=st.integers(1, 3))
def test_a_null_record_adds_nothing_to_tail_counts(scores, record, classes):
    """NaN is a record without a cell: its counts are those of the others alone."""
    from cords_dp.noise.primitives import tail_histogram

    record %= len(scores)
    labels = np.arange(len(scores)) % classes
    nulled = np.array(scores)
    nulled[record] = math.nan
    keep = np.arange(len(scores)) != record
    with_null, limit = tail_histogram(nulled, labels, classes=classes, bins=16)
    alone, _ = tail_histogram(np.array(scores)[keep], labels[keep], classes=classes, bins=16)
    full, _ = tail_histogram(np.array(scores), labels, classes=classes, bins=16)
    np.testing.assert_array_equal(with_null, alone)
    assert 0 < np.linalg.norm(full - alone) <= limit * (1 + 1e-12)


def test_the_recorder_finds_what_it_is_for():
    """A draw more, another shape, another order and another dataset are all seen."""

    def notes(*draws):
        transcript = Transcript(Ledger())
        generators = {side: Frozen(transcript, side, 1.0) for side in (TRAINING_DATA, VALIDATION_DATA)}
        return [generators[side].standard_normal(shape) for side, shape in draws], transcript.flow

    numbers, flow = notes((TRAINING_DATA, (3,)), (TRAINING_DATA, (3,)))
    assert np.array_equal(numbers[0], notes((TRAINING_DATA, (3,)))[0][0])
    assert not np.array_equal(*numbers)
    assert flow == [("noise", "D", "normal", (3,))] * 2
    others = [[(TRAINING_DATA, (3,))], [(TRAINING_DATA, (3,)), (TRAINING_DATA, (2,))],
              [(VALIDATION_DATA, (3,)), (TRAINING_DATA, (3,))]]  # fmt: skip
    assert all(notes(*draws)[1] != flow for draws in others)


# --- steps -----------------------------------------------------------------------------------------------------------


class Deep(nn.Module):
    def __init__(self, inputs, hidden, classes, act):
        super().__init__()
        self.one, self.two = nn.Linear(inputs, hidden), nn.Linear(hidden, classes)
        self.act = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU}[act]()

    def forward(self, x):
        return self.two(self.act(self.one(x)))


def net_of(mode, seed, hidden, classes, act):
    torch.manual_seed(seed)
    return LinearNet(4, classes) if mode == "linear" else Deep(4, hidden, classes, act)


class StepTape:
    """What goes into the noise of a step, and which noise is asked for."""

    def __init__(self):
        self.shapes, self.sums = [], []

    def noise(self, shape):
        self.shapes.append(shape)
        return np.random.default_rng(len(self.shapes)).standard_normal(shape)

    def watch(self, monkeypatch):
        real, tape = noisy_sum.NoisySumOptimizer.add_noise, self

        def add_noise(self):
            tape.sums.append(torch.cat([p.summed_grad.double().reshape(-1) for p in self.params]))
            real(self)

        monkeypatch.setattr(noisy_sum.NoisySumOptimizer, "add_noise", add_noise)


def step_of(monkeypatch, mode, model_keys, x, y, w, *, clip, piece, normalise=False):
    tape = StepTape()
    with monkeypatch.context() as patch:
        tape.watch(patch)
        engine, recorder = recording_engine(
            net_of(mode, *model_keys), mode, sigma=1.3, clip=clip, batch=4, noise=tape.noise,
            max_physical_batch_size=piece, normalise=normalise,
        )  # fmt: skip
        engine.step(x, y, w)
    (total,) = tape.sums
    return total, tape.shapes, recorder.seen


@pytest.mark.parametrize("mode", GRADIENT_MODES)
@SEARCH
@given(data=st.data())
def test_a_step_moves_by_at_most_the_clip_norm(mode, data, monkeypatch):
    """A batch with a record, and with a null one in its place: weight 0, or not there. One draw per weight."""
    draw = data.draw
    seed, classes = draw(st.integers(0, 10_000)), draw(st.integers(2, 4))
    model = (seed, draw(st.integers(1, 6)), classes, draw(st.sampled_from(["tanh", "relu", "gelu"])))
    clip, size = draw(st.sampled_from([1e-3, 0.5, 30.0])), draw(st.integers(1, 7))
    generator = torch.Generator().manual_seed(seed)
    x = draw(st.sampled_from([1e-3, 1.0, 1e4])) * torch.randn(size, 4, generator=generator)
    y, w = torch.randint(0, classes, (size,), generator=generator), torch.rand(size, generator=generator)
    for index, value in draw(st.lists(st.tuples(st.integers(0, size - 1), st.sampled_from(HUGE)), max_size=2)):
        x[index] = value
    w[draw(st.integers(0, size - 1))] = 1.0
    record, piece = draw(st.integers(0, size - 1)), draw(st.sampled_from([2, 512]))
    options = {"clip": clip, "piece": piece, "normalise": draw(st.booleans())}

    def taken(x, y, w):
        return step_of(monkeypatch, mode, model, x, y, w, **options)

    nulled = w.clone()
    nulled[record] = 0.0
    keep = torch.arange(size) != record
    total, shapes, _ = taken(x, y, w)
    with_null = taken(x, y, nulled)
    for neighbour in (with_null, taken(x[keep], y[keep], w[keep])):
        assert neighbour[1] == shapes  # as many draws, in the same shapes and order
        # without it other records fall into other places of the net's products, which may round them otherwise
        exact = neighbour is with_null and gradient_mode(mode).proved
        assert float((total - neighbour[0]).norm()) <= clip * (1 if exact else 1 + 1e-6 * size)
    alone = slice(record, record + 1)
    (part, _, _), (nothing, _, _) = taken(x[alone], y[alone], w[alone]), taken(x[:0], y[:0], w[:0])
    assert float((part - nothing).norm()) <= clip
    assert not nothing.any()


# --- what the replay found -------------------------------------------------------------------------------------------


def distance_on_v(r, a):
    """How far the first record moves what is released on V, over the clip norm that is declared."""
    everyone, nulled = LastLayerGradients(r, a), LastLayerGradients(r.clone(), a)
    nulled.r[0] = 0.0
    return float((everyone.clipped_sum(1.0).double() - nulled.clipped_sum(1.0).double()).norm())


def test_the_sum_on_v_is_not_rounded_before_its_noise():
    """Found by replay: 6,000 alike records with 64 features: neighbours were 1.00018 clip norms apart."""
    r = torch.ones(6000, 10)
    r[:, 5:] = -1.0
    assert distance_on_v(r, torch.ones(6000, 65)) <= 1.0


def test_norms_on_v_do_not_understate():
    """Found by replay: with float32 norms a record of 25,088 features, as VGG has them, moved V by 1.0000146 C_v."""
    assert distance_on_v(torch.tensor([[0.9, -0.4, -0.5]]), torch.full((1, 25_088), 0.3)) <= 1.0


def test_sums_of_threshold_leave_room_for_rounding():
    """Found by replay: where a loss has large gradients a part was 1 + 2e-7 long; cross-entropy stays below 1."""
    worst = 0.0
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        r, a = 1e7 * torch.randn(64, 10, generator=generator), torch.randn(64, 9, generator=generator)
        direction, inputs = unit_gradient_rows(LastLayerGradients(r, a).with_unit_inputs())
        worst = max(worst, float((direction.double().norm(dim=1) * inputs.double().norm(dim=1)).max()))
    assert worst <= 1.0
