"""Privacy bugs of the kinds that have been found in published code, planted one by one: an audit finds each.

The audits themselves replace nothing; the bugs are put in by the tests. `test_broken_builds` has many more, by audits
that take minutes.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from dotmap import DotMap

from cords_dp.auditing import canary_run, replay, selections, steps
from cords_dp.auditing.audit import own_epsilon
from cords_dp.auditing.findings import Finding, judge
from cords_dp.config import load_config
from cords_dp.errors import UnsupportedModelError
from cords_dp.planning import registered_mechanisms
from cords_dp.selection import Records
from cords_dp.selection.align import AlignSelector
from cords_dp.selection.likelihood import of_class_shares, of_tables
from cords_dp.selection.releases import Releases
from cords_dp.training import step as step_module
from cords_dp.training.gradients import mode as mode_module
from cords_dp.training.step import NoisySumOptimizer, PrivateEngine

ALIGN = next(kind for kind in registered_mechanisms() if kind.name == "align")


def failing(findings):
    """(what, kind) of the rows that fail, judged as in an audit with many more rows."""
    filler = [Finding("filler", "", 1.0, 1e-5, "", lambda _: 0.0)] * 60
    verdicts = judge([*findings, *filler])
    return {(v.finding.target.split(": ")[-1], v.finding.kind) for v in verdicts if not v.passed}


def run_of(name, count, owner=None):
    """The rows of one run under a ready-made config, at its own ε. ``owner``: canaries are owners of two records."""
    config = DotMap(load_config(name))
    if owner is not None:
        config.dataset.owner = owner
    return canary_run.audit_trainer(config, own_epsilon(config), count=count)[1]


def structure_of_align():
    return replay.audit_structure(selections.mechanism_plan(ALIGN, selections.INFORMATIVE, {}))


# --- as it is -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["full_dp", "random_dp", "glister_dp"])
@pytest.mark.parametrize("data", ["digits", pytest.param("synthetic", marks=pytest.mark.slow)])
def test_ready_made_configs_pass_at_their_own_epsilon(strategy, data):
    assert failing(run_of(f"{strategy}_{data}", 600)) == set()


@pytest.mark.parametrize("name", ["full_dp_digits", "glister_dp_synthetic"])
def test_a_run_of_owners_passes(name):
    assert failing(run_of(name, 600, owner="patient")) == set()


def test_a_sound_align_passes_in_all_of_its_looks():
    assert structure_of_align().violations == ()


# --- half the noise -------------------------------------------------------------------------------------------------


@pytest.fixture
def half_the_noise(monkeypatch):
    real = NoisySumOptimizer._noise_like
    monkeypatch.setattr(NoisySumOptimizer, "_noise_like", lambda self, p: real(self, p) / 2)


@pytest.mark.parametrize(
    ("name", "count"), [("full_dp_digits", 600), pytest.param("glister_dp_digits", 2000, marks=pytest.mark.slow)]
)
def test_half_the_noise_is_found_by_the_steps_of_one_run(name, count, half_the_noise):
    assert ("steps, drawn", "one run, trade-off") in failing(run_of(name, count))


@pytest.mark.slow  # the steps of one run find the same bug in a third of the time
def test_half_the_noise_is_seen_by_guesses_against_the_curve_and_by_no_others(half_the_noise):
    """Canaries may hang together in any way here: one (ε, δ) allows as many right guesses, the curve does not.

    With 95 % confidence in this row alone; with that of all rows together it takes a tenth of the noise.
    """
    by_kind = {v.finding.kind: v for v in judge(run_of("full_dp_digits", 2500)) if v.finding.target.endswith(": steps")}
    pair, curve = by_kind["one run, guesses"], by_kind["one run, f-DP"]
    assert pair.low < pair.finding.claimed
    assert curve.low > curve.finding.claimed


@pytest.mark.slow  # the steps of one run find less
def test_a_tenth_of_the_noise_is_found_by_guesses_against_the_curve(monkeypatch):
    real = NoisySumOptimizer._noise_like
    monkeypatch.setattr(NoisySumOptimizer, "_noise_like", lambda self, p: real(self, p) / 10)
    assert ("steps", "one run, f-DP") in failing(run_of("full_dp_digits", 2500))


# --- no clipping ----------------------------------------------------------------------------------------------------


@pytest.fixture
def no_clipping(monkeypatch):
    """The engine's steps are not clipped; the noise is that of the clip norm."""
    real = PrivateEngine._clipped_sums

    def unclipped(self, *batch):
        self.clipping = dataclasses.replace(self.clipping, max_norm=1e9)
        return real(self, *batch)

    monkeypatch.setattr(PrivateEngine, "_clipped_sums", unclipped)


def test_no_clipping_is_found_by_the_steps_of_one_run(no_clipping):
    """Not by the modes' own check, which refuses to train where a made-up record exceeds the clip norm."""
    assert ("steps, drawn", "one run, trade-off") in failing(run_of("full_dp_digits", 200))


def test_a_mode_that_does_not_clip_is_refused_before_it_trains(monkeypatch):
    monkeypatch.setattr(mode_module, "clip_factors", lambda norms, *_, **__: torch.isfinite(norms).to(norms))
    with pytest.raises(UnsupportedModelError, match="more than the clip norm"):
        run_of("full_dp_digits", 200)


def test_no_clipping_is_found_by_two_neighbours_under_the_same_noise(no_clipping):
    plan = selections.mechanism_plan(ALIGN, 2.0, {})
    assert all(replay.audit_step_replay(plan, mode).violations for mode in steps.MODES)


# --- a look that nobody paid for ------------------------------------------------------------------------------------


@pytest.fixture
def uncharged(monkeypatch):
    def count(self, release, draws):
        self._left[release.name] = self._left.get(release.name, release.event.count) - draws

    monkeypatch.setattr(Releases, "_count", count)


def test_an_uncharged_look_is_found_in_the_ledger_of_one_run(uncharged):
    assert ("run, GLISTERDP", "bookkeeping") in failing(run_of("glister_dp_digits", 100))


def test_an_uncharged_look_is_found_by_replays(uncharged):
    assert any("does not charge" in problem for problem in structure_of_align().violations)


def test_one_look_more_than_planned_is_found(monkeypatch):
    """A second table of the same records, with noise that its author has drawn himself."""
    real = AlignSelector._pool

    def looks_again(self, kinds, predicted):
        table = self.context.training.count(kinds, *self._chances.shape)
        again = np.maximum(table + np.random.default_rng(7).normal(0, 1, table.shape), 0.0)
        self._chances = again / max(1.0, again.max())
        return real(self, kinds, predicted)

    monkeypatch.setattr(AlignSelector, "_pool", looks_again)
    assert any("other records" in problem for problem in structure_of_align().violations)


# --- a likelihood from tables without noise -------------------------------------------------------------------------


@pytest.mark.parametrize("look", ["labels", "predictions"])
def test_a_likelihood_from_exact_tables_is_found(look, monkeypatch):
    count, labels, later = Records.count, AlignSelector._look_at_labels, AlignSelector._look
    exact = []

    def remembering(self, *cells):
        exact.append(count(self, *cells))
        return exact[-1]

    def from_labels(self, on_d, on_v, sigma_d, sigma_v):
        labels(self, on_d, on_v, sigma_d, sigma_v)
        counts = exact[-2][:, 0] + 1.0  # D's table is made before V's
        self._given = of_class_shares(counts / counts.sum() * len(counts))

    def from_predictions(self, on_d, on_v, sigma_d, sigma_v, **options):
        later(self, on_d, on_v, sigma_d, sigma_v, **options)
        self._given = of_tables(exact[-2], on_v, 0.0, sigma_v)

    monkeypatch.setattr(Records, "count", remembering)
    if look == "labels":
        monkeypatch.setattr(AlignSelector, "_look_at_labels", from_labels)
    else:
        monkeypatch.setattr(AlignSelector, "_look", from_predictions)
    assert any("loss of other records" in problem for problem in structure_of_align().violations)


# --- an owner cut in two --------------------------------------------------------------------------------------------


def test_an_owner_whose_records_are_clipped_one_by_one_is_found(monkeypatch):
    real = PrivateEngine._clipped_sums
    monkeypatch.setattr(
        PrivateEngine,
        "_clipped_sums",
        lambda self, x, y, weights, owners: real(self, x, y, weights, torch.arange(len(owners))),
    )
    assert ("steps, drawn", "one run, trade-off") in failing(run_of("full_dp_digits", 300, owner="patient"))


@pytest.mark.slow  # ten seconds; the one above is its quick cousin
def test_an_owner_in_two_pieces_of_a_batch_is_found(monkeypatch):
    monkeypatch.setattr(step_module, "_owner_pieces", lambda owners, piece: step_module._pieces(len(owners), 1))
    assert ("steps, drawn", "one run, trade-off") in failing(run_of("full_dp_digits", 250, owner="patient"))


def test_an_owner_under_two_numbers_is_found(monkeypatch):
    """Each half is drawn by its own coin, and counts as a whole owner."""
    monkeypatch.setattr(
        "cords_dp.data.handed_over.named_owners",
        lambda names, count, numbered: numbered.codes([f"{name}{place % 2}" for place, name in enumerate(names)]),
    )
    found = failing(run_of("full_dp_digits", 300, owner="patient"))
    assert ("batches", "one run, frequency") in found
