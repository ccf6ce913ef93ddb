"""The one-run audit goes through the real trainer; its null records are null."""

from __future__ import annotations

import json

import pytest
from builders import make_plan
from dotmap import DotMap

from cords_dp.auditing import canary_run
from cords_dp.auditing.findings import judge
from cords_dp.cli import main
from cords_dp.config import config_for
from cords_dp.errors import ConfigError
from cords_dp.training import private_session as epochs
from cords_dp.training.step import NoisySumOptimizer


def config(strategy="FullDP", **changes):
    changes = {"train_args": {"num_epochs": 4}, "dataloader": {"batch_size": 100}, **changes}
    return DotMap(config_for("digits", strategy, privacy={"epsilon": 3.0, "accountant": "rdp"}, **changes))


def audit(cfg, count=200, epsilon=2.0):
    return judge(canary_run.audit_trainer(cfg, epsilon, count=count)[1])


def failing(verdicts):
    return {(v.finding.target.split(": ")[-1], v.finding.kind) for v in verdicts if not v.passed}


@pytest.mark.parametrize("strategy", ["FullDP", "RandomDP", "GLISTERDP"])
def test_sound_runs_pass(strategy):
    changes = {} if strategy == "FullDP" else {"dss_args": {"fraction": 0.5}}
    verdicts = audit(config(strategy, **changes))
    assert failing(verdicts) == set()
    assert len(verdicts) == 8
    assert sum(v.finding.kind == "one run, f-DP" for v in verdicts) == 2


def test_half_the_noise_is_caught(monkeypatch):
    real = NoisySumOptimizer._noise_like
    monkeypatch.setattr(NoisySumOptimizer, "_noise_like", lambda self, p: real(self, p) / 2)
    assert ("steps, drawn", "one run, trade-off") in failing(audit(config(), count=800))


def test_a_run_without_noise_is_caught_by_guesses_alone(monkeypatch):
    real = NoisySumOptimizer._noise_like
    monkeypatch.setattr(NoisySumOptimizer, "_noise_like", lambda self, p: real(self, p) / 100)
    caught = failing(audit(config(), count=1500, epsilon=1.0))
    kinds = ("one run, guesses", "one run, f-DP")
    assert {(what, kind) for what in ("steps", "final losses") for kind in kinds} <= caught


def test_the_bound_on_the_curve_is_the_nearer_one():
    """One run at a config's own ε; the same guesses, told as ε at the same δ. Both stay below their claims."""
    by_kind = {v.finding.kind: v for v in audit(config(), count=1500, epsilon=8.0) if "final" not in v.finding.target}
    pair, curve = by_kind["one run, guesses"], by_kind["one run, f-DP"]
    assert pair.low / pair.finding.claimed < curve.low / curve.finding.claimed < 1


def test_events_without_a_loss_distribution_have_no_mu():
    sizes = {"n": 400, "k": 100, "n_validation": 50, "batch_size": 20, "epochs": 3, "select_every": 1}
    assert canary_run._claimed_mu(make_plan(mechanism="exponential", greedy="RGreedy", **sizes)) is None
    assert canary_run._claimed_mu(make_plan(mechanism="exponential", **sizes)) > 0.1


def test_a_trainer_that_draws_more_often_than_charged_is_caught(monkeypatch):
    real = epochs.poisson_batches
    monkeypatch.setattr(epochs, "poisson_batches", lambda *a, rate, **kw: real(*a, rate=1.3 * rate, **kw))
    assert ("batches", "one run, frequency") in failing(audit(config()))


def test_null_canaries_are_never_drawn_and_the_plan_does_not_know_them(tmp_path):
    data = canary_run.CanarySet(40)
    run = canary_run.observe(canary_run.audited_config(config(), 2.0, data, str(tmp_path)), data)
    assert not run.drawn[:, ~run.included].any()
    assert run.drawn[:, run.included].any()
    assert run.plan.shape.n == 80
    assert run.projections.shape == (run.plan.shape.steps, 40)


def test_a_config_without_privacy_is_refused():
    with pytest.raises(ConfigError, match="private strategy"):
        canary_run.audit_trainer(DotMap({"dss_args": {"type": "Random"}}), 1.0, count=20)


@pytest.mark.slow
def test_the_command_prints_a_table_and_tells_by_its_code(tmp_path, capsys, monkeypatch):
    effort = ["--canaries", "100", "--steps", "10", "--draws", "500", "--trainings", "50", "--epsilon", "2"]
    command = ["audit", "--config", "configs/full_dp_digits.py", "--out", str(tmp_path), *effort]
    assert main(command) == 0
    assert "all" in capsys.readouterr().out
    assert json.loads((tmp_path / "audit.json").read_text())["passed"]
    assert (tmp_path / "audit.png").stat().st_size > 0
    real = NoisySumOptimizer._noise_like
    monkeypatch.setattr(NoisySumOptimizer, "_noise_like", lambda self, p: real(self, p) / 10)
    assert main([*command, "--json"]) == 1
    assert not json.loads(capsys.readouterr().out)["passed"]
