"""Audits pass on the package as it is and fail on a package with a privacy bug in its own code."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from toy_mechanism import Toy as ToyMechanism

from cords_dp.auditing import replay, selections, steps
from cords_dp.auditing.findings import judge
from cords_dp.config.settings import GRADIENT_MODES
from cords_dp.planning import registered_mechanisms
from cords_dp.planning.mechanism import register_mechanism, unregister_mechanism
from cords_dp.selection import Pool
from cords_dp.selection import releases as releases_module
from cords_dp.selection.releases import Releases
from cords_dp.selection.scores import ScoredRecords
from cords_dp.selection.threshold import ThresholdSelector
from cords_dp.studies.match import MatchSelector, Tilt
from cords_dp.training import step as engine
from cords_dp.training import step as noisy_sum
from cords_dp.training.gradients import mode as mode_module

KINDS = {kind.name: kind for kind in registered_mechanisms()}

pytestmark = pytest.mark.slow  # whole audits, minutes of drawing


@pytest.fixture(scope="module")
def plan():
    return selections.mechanism_plan(KINDS["match"], 2.0, {})


def fails(*findings):
    """The targets that fail, of findings judged as in a run with many more rows."""
    filler = [selections.Finding("filler", "", 1.0, 1e-5, "", lambda _: 0.0)] * 60
    return [v.finding.target for v in judge([*findings, *filler]) if not v.passed]


def structure_of(name):
    return replay.audit_structure(selections.mechanism_plan(KINDS[name], selections.INFORMATIVE, {}))


def releases_of(name, draws=1500):
    plan = selections.mechanism_plan(KINDS[name], 2.0, {})
    return selections.audit_mechanism(plan, draws=draws)


# --- as it is ----------------------------------------------------------------------------------------------


def test_sound_steps_pass(plan):
    rows = [steps.audit_step(plan, mode, steps=20) for mode in steps.MODES]
    rows += [steps.audit_sampled_step(plan, "linear", steps=20), steps.audit_rate(plan, steps=100)]
    rows += [replay.audit_step_replay(plan, mode) for mode in GRADIENT_MODES]
    assert fails(*rows) == []


@pytest.mark.parametrize("name", KINDS)
def test_sound_mechanisms_pass(name):
    rows = [structure_of(name), *releases_of(name, draws=500)]
    assert fails(*rows) == []
    assert "selection" in rows[0].target


def test_a_mechanism_of_somebody_else_is_audited_too():
    register_mechanism(ToyMechanism)
    try:
        assert any("toy" in row.target for row in selections.audit_structures({}))
    finally:
        unregister_mechanism("toy")


# --- the step ------------------------------------------------------------------------------------------------


def test_half_the_noise_is_caught(plan, monkeypatch):
    real = noisy_sum.NoisySumOptimizer._noise_like
    monkeypatch.setattr(noisy_sum.NoisySumOptimizer, "_noise_like", lambda self, p: real(self, p) / 2)
    assert len(fails(*(steps.audit_step(plan, mode, steps=20) for mode in steps.MODES))) == 2


@pytest.mark.slow
def test_a_third_of_the_noise_is_caught_by_whole_trainings(monkeypatch):
    real = noisy_sum.NoisySumOptimizer._noise_like
    monkeypatch.setattr(noisy_sum.NoisySumOptimizer, "_noise_like", lambda self, p: real(self, p) / 3)
    assert fails(steps.audit_training(2.0, trainings=400))


def test_no_clipping_is_caught(plan, monkeypatch):
    monkeypatch.setattr(mode_module, "clip_factors", lambda norms, *_, **__: torch.isfinite(norms).to(norms))
    rows = [steps.audit_step(plan, mode, steps=10) for mode in steps.MODES]
    rows += [replay.audit_step_replay(plan, mode) for mode in GRADIENT_MODES]
    rows.append(steps.audit_training(1.0, trainings=300))
    assert len(fails(*rows)) == len(rows)


def test_weights_above_one_are_caught(plan, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "clamp", lambda self, *_, **__: self)
    assert fails(replay.audit_step_replay(plan, "linear"))


def test_dividing_by_the_realised_batch_is_caught(plan, monkeypatch):
    real = engine.PrivateEngine.step

    def step(self, x, y, weights):
        self.optimizer.expected_batch_size = max(1, len(y))
        real(self, x, y, weights)

    monkeypatch.setattr(engine.PrivateEngine, "step", step)
    assert len(fails(*(replay.audit_step_replay(plan, mode) for mode in GRADIENT_MODES))) == len(GRADIENT_MODES)


def test_a_sampler_that_draws_more_often_than_charged_is_caught(plan, monkeypatch):
    real = steps.poisson_batches
    monkeypatch.setattr(
        steps, "poisson_batches", lambda *args, rate, **rest: real(*args, rate=min(1.0, 1.3 * rate), **rest)
    )
    assert fails(steps.audit_rate(plan, steps=100))


# --- what selections release -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_half_the_noise_of_a_release_is_caught(name, monkeypatch):
    real, freeze = releases_module.gaussian_release, releases_module.ScoreFreeze

    def quieter(total, *, noise_multiplier, **rest):
        return real(total, noise_multiplier=noise_multiplier / 2, **rest)

    monkeypatch.setattr(releases_module, "gaussian_release", quieter)
    monkeypatch.setattr(releases_module, "ScoreFreeze", lambda s, *, epsilon0, sensitivity: freeze(
        s, epsilon0=2 * epsilon0, sensitivity=sensitivity))  # fmt: skip
    rows = releases_of(name)
    assert len(fails(*rows)) == len(rows)


@pytest.mark.parametrize("name", KINDS)
def test_releases_without_noise_and_charge_are_caught(name, monkeypatch):
    """An uncharged selection: sums as they are, picks by rank, nothing in the ledger."""
    monkeypatch.setattr(Releases, "_noisy", lambda self, name, total, *, stretch: np.asarray(total, dtype=np.float64))
    monkeypatch.setattr(Releases, "picks", lambda self, name, scores, size: np.argsort(-scores)[:size])
    rows = releases_of(name, draws=300)
    assert len(fails(*rows)) == len(rows)
    assert any("does not charge" in problem for problem in structure_of(name).violations)


def test_a_release_that_moves_farther_than_declared_is_caught(monkeypatch):
    real = MatchSelector._noisy_sum

    def doubled(self, releases, name, gradients):
        return real(self, releases, name, type(gradients)(2 * gradients.r, gradients.a))

    monkeypatch.setattr(MatchSelector, "_noisy_sum", doubled)
    assert any("sensitivity" in problem for problem in structure_of("match").violations)


# --- what selections hand over ---------------------------------------------------------------------------------


def test_exact_top_k_inside_threshold_is_caught(monkeypatch):
    def by_rank(self, released, coins):
        member = coins.copy()
        for v, _ in released:
            member[np.argsort(-self.scored.scores(v), kind="stable")[: self.k // 2]] = True
        return member

    monkeypatch.setattr(ThresholdSelector, "membership", by_rank)
    assert any("other records" in problem for problem in structure_of("threshold").violations)


@pytest.mark.parametrize("what", ["weights", "chances"])
def test_match_weights_that_look_at_other_records_are_caught(what, monkeypatch):
    real = getattr(Tilt, what)

    def normalised(self, scores):
        values = real(self, scores)
        return values / values.sum()

    monkeypatch.setattr(Tilt, what, normalised)
    assert any("other records" in problem for problem in structure_of("match").violations)


@pytest.mark.parametrize("name", ["threshold", "top_k"])
def test_a_validation_gradient_without_noise_is_caught(name, monkeypatch):
    from cords_dp.selection.last_layer import moved_sum, to_norm

    def exact(self, releases, name, move=None):
        clip = self.context.plan.privacy.validation_clip
        return to_norm(moved_sum(self.validation, self.context.training.loss, clip, move).to(self.zeros()), 1.0)

    monkeypatch.setattr(ScoredRecords, "direction", exact)
    problems = structure_of(name).violations
    assert any("never drawn" in problem for problem in problems)
    assert any("record of V moves" in problem or "V changes" in problem for problem in problems)


def test_a_branch_on_private_values_is_caught(monkeypatch):
    """One draw more where an exact count says so: the numbers of draws of neighbours differ."""
    real = ThresholdSelector._noisy_sum

    def twice_if_many(self, releases, members):
        if int(members.sum()) % 2:
            self.context.coins.random()
        return real(self, releases, members)

    monkeypatch.setattr(ThresholdSelector, "_noisy_sum", twice_if_many)
    monkeypatch.setattr(ThresholdSelector, "exploration", lambda self, sigma: 0.0)
    assert structure_of("threshold").violations


# --- leaks that a toy of two classes hides ----------------------------------------------------------------------


class Leaky:
    """Counts of labels, of which some records move more than one cell by more than one."""

    def __init__(self, context, leak):
        self.context, self.leak = context, leak

    def select(self, weights, releases):
        layer = self.context.training.at(weights)
        there = torch.isfinite(layer.logits).all(dim=1).numpy()
        labels = layer.labels.numpy()[there]
        counts = np.bincount(labels, minlength=self.context.num_classes).astype(float)
        if self.leak == "rare classes" and self.context.num_classes > 2:
            counts[counts < 4] *= 3  # by exact counts
        if self.leak == "twelve classes" and self.context.num_classes > 11:
            counts += 0.5 * counts.sum()
        releases.gaussian("labels", counts)
        return Pool(np.arange(len(self.context.training)))


@pytest.mark.parametrize("leak", ["rare classes", "twelve classes", "none"])
def test_a_leak_on_data_of_one_shape_only_is_found(leak):
    """The single toy of 120 records in two classes hid a planted one."""

    @dataclass(frozen=True, kw_only=True)
    class Planted(ToyMechanism):
        name = "planted"

        def build(self, context):
            return Leaky(context, leak)

    register_mechanism(Planted)
    try:
        plan = selections.mechanism_plan(Planted, selections.INFORMATIVE, {})
        found = replay.audit_structure(plan)
    finally:
        unregister_mechanism("planted")
    assert any("more than its sensitivity" in v for v in found.violations) == (leak != "none")
