"""First steps on V: charged to V alone, taken once, from sums that no record moves by more than C."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from builders import data_of, make_plan
from scipy import stats

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, gaussian
from cords_dp.config.presets import config_for, merge_into
from cords_dp.data.record_set import Splits
from cords_dp.errors import ConfigError
from cords_dp.planning.plan import HEAD_START
from cords_dp.runs.run import run_and_hand_over
from cords_dp.selection import releases
from cords_dp.selection.releases import Releases
from cords_dp.selection.session import SelectionArchive
from cords_dp.training import head_start
from cords_dp.training.private_session import PrivateSession
from cords_dp.training.resolve import resolve
from cords_dp.training.trainer import TrainClassifier
from cords_dp.verify import verify

STEPS = 5
WITH = {"privacy": {"head_start": STEPS}}


@pytest.fixture
def totals(monkeypatch):
    """The sums that were handed in to be released, before their noise, by name."""
    seen: dict[str, list[np.ndarray]] = {}
    original = Releases.gaussian

    def spied(self, name, total):
        seen.setdefault(name, []).append(np.array(total))
        return original(self, name, total)

    monkeypatch.setattr(Releases, "gaussian", spied)
    return seen


# --- the plan ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["align", "match", "threshold", "top_k"])
def test_v_pays_within_its_own_budget_and_d_does_not_notice(mechanism):
    keys = {"mechanism": mechanism, "n": 2000, "k": 200, "select_every": 2}
    plan, before = make_plan(**keys, head_start=STEPS), make_plan(**keys)
    on_d, on_d_before = ([e.event for e in p.entries() if e.dataset == TRAINING_DATA] for p in (plan, before))
    assert on_d == on_d_before
    first = plan.entries()[0]
    assert (first.dataset, first.event) == (VALIDATION_DATA, gaussian(plan.sigma_head_start, STEPS))
    assert 0.99 * 3 < plan.cost().validation_data.epsilon <= 3
    assert plan.cost().training_data == before.cost().training_data


def test_plans_without_it_are_as_they_were():
    plan = make_plan(mechanism="align", n=2000, k=200)
    assert plan.sigma_head_start is None
    assert "head_start" not in json.dumps(plan.facts())
    assert make_plan(mechanism="align", n=2000, k=200, head_start=STEPS).fingerprint != plan.fingerprint


def test_it_is_refused_where_v_is_not_read_or_has_no_budget(make_config):
    with pytest.raises(ConfigError, match=r"privacy\.head_start"):
        resolve(make_config("FullDP", **WITH), plan=False)
    with pytest.raises(ConfigError, match=r"privacy\.head_start"):
        resolve(make_config("GLISTERDP", privacy={"head_start": STEPS, "validation": "public"}), plan=False)
    assert resolve(make_config("GLISTERDP", **WITH), plan=False).privacy.head_start == STEPS


# --- the steps --------------------------------------------------------------------------------------------------------


def test_the_steps_are_gradient_steps_on_v_with_noise_of_the_charged_event(train, monkeypatch):
    """Each vector that was released, less the sum that was handed in, is noise of the plan's deviation."""
    noise, original = [], Releases.gaussian

    def spied(self, name, total):
        found = original(self, name, total)
        if name == HEAD_START:
            noise.append((found - total) / (self.noise_multiplier(name) * session_clip))
        return found

    session_clip = 1.0
    monkeypatch.setattr(Releases, "gaussian", spied)
    session = train("GLISTERDP", train_args={"seed": None}, privacy={"head_start": STEPS, "max_grad_norm": 1.0}).session
    assert len(noise) == STEPS
    assert stats.kstest(np.concatenate(noise), "norm").pvalue > 1e-4
    assert session.ledger.events(VALIDATION_DATA).count(gaussian(session.plan.sigma_head_start, STEPS)) == 1


def test_removing_a_record_of_v_moves_a_sum_by_the_clip_norm_at_most(train, totals):
    session = train("GLISTERDP", **WITH).session
    whole, clip = _first_sum(session, totals), session.plan.privacy.max_grad_norm
    moved = []
    for left_out in range(0, len(session.data.validation), 11):
        moved.append(np.linalg.norm(whole - _first_sum(session, totals, without=left_out)))
    assert 0.5 * clip < max(moved) <= clip


def _first_sum(session, totals, without=None):
    """Return the first sum that a head start from zero hands in, without one of the records."""
    totals.clear()
    for parameter in session.model.parameters():
        torch.nn.init.zeros_(parameter)
    whole = session.data
    kept = np.delete(np.arange(len(whole.validation)), [] if without is None else without)
    released = Releases(
        session.plan.head_start_releases(),
        charge=lambda *_: None,
        generators={VALIDATION_DATA: np.random.default_rng(0)},
    )
    try:
        session.data = whole._replace(validation=whole.validation.at(kept))
        head_start._steps_on_validation(session, released)
    finally:
        session.data = whole
    return totals[HEAD_START][0]


def test_an_owner_of_several_records_moves_it_no_further(make_config, totals):
    data = Splits(data_of(300, 0), data_of(80, 1), data_of(90, 2), 3)
    given = dict(zip(("trainset", "validset", "testset", "num_cls"), data, strict=True))
    config = make_config(
        "GLISTERDP",
        dataset={"name": "custom", "type": None},
        model={"architecture": "LinearHead", "numclasses": 3},
        dataloader={"batch_size": 32},
        **WITH,
    )
    trainer = TrainClassifier(config)
    trainer.show_progress = False
    trainer.train(**given, owners=(np.arange(300) // 3, 1000 + np.arange(80) // 4))
    session = trainer.session
    clip = session.plan.privacy.max_grad_norm
    assert np.linalg.norm(totals[HEAD_START][0]) <= 20 * clip  # twenty owners, one clipped vector each


def test_it_is_charged_on_disk_before_noise_is_drawn(train, monkeypatch):
    seen, original, begin = [], releases.gaussian_release, PrivateSession._begin_on_validation

    def spied(self):
        def spy(total, **options):
            assert options["noise_multiplier"] == self.plan.sigma_head_start
            seen.append(f'"sigma":{self.plan.sigma_head_start}' in self.ledger.path.read_text().replace(" ", ""))
            return original(total, **options)

        monkeypatch.setattr(releases, "gaussian_release", spy)
        begin(self)
        monkeypatch.setattr(releases, "gaussian_release", original)

    monkeypatch.setattr(PrivateSession, "_begin_on_validation", spied)
    train("GLISTERDP", **WITH)
    assert seen == [True] * STEPS


# --- once -------------------------------------------------------------------------------------------------------------


def config_of(folder, **changes):
    config = config_for(
        "digits",
        "GLISTERDP",
        dss_args={"fraction": 0.3},
        train_args={"num_epochs": 3, "print_every": 1, "seed": 0, "device": "cpu"},
        privacy={"epsilon": 8.0, "accountant": "rdp", "head_start": STEPS},
        ckpt={"is_save": True, "save_every": 1},
    )
    merge_into(config, changes)
    return config, folder / "run"


def test_a_run_that_was_killed_after_its_head_start_has_it_and_pays_once(tmp_path, monkeypatch, totals):
    with monkeypatch.context() as patch:
        patch.setattr(PrivateSession, "step", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        config, out = config_of(tmp_path)
        with pytest.raises(KeyboardInterrupt):
            run_and_hand_over(config, out, progress=False)
    assert len(totals[HEAD_START]) == STEPS
    config, out = config_of(tmp_path, ckpt={"is_load": True})
    trainer = run_and_hand_over(config, out, progress=False)[0]
    assert len(totals[HEAD_START]) == STEPS
    events = trainer.ledger.events(VALIDATION_DATA)
    assert events.count(gaussian(trainer.plan.sigma_head_start, STEPS)) == 1
    assert verify(out)["verified"], verify(out)["verdict"]


def test_a_run_that_was_killed_before_it_was_on_record_takes_it_anew_and_pays_once(tmp_path, monkeypatch):
    keep = SelectionArchive.keep

    def killed(self, name, state):
        if name == HEAD_START:
            raise KeyboardInterrupt
        keep(self, name, state)

    config, out = config_of(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(SelectionArchive, "keep", killed)
        with pytest.raises(KeyboardInterrupt):
            run_and_hand_over(config, out, progress=False)
    config, out = config_of(tmp_path, ckpt={"is_load": True})
    trainer = run_and_hand_over(config, out, progress=False)[0]
    events = trainer.ledger.events(VALIDATION_DATA)
    assert events.count(gaussian(trainer.plan.sigma_head_start, STEPS)) == 1
    assert verify(out)["verified"], verify(out)["verdict"]


def test_a_plan_that_leaves_its_event_out_is_not_verified(tmp_path):
    config, out = config_of(tmp_path)
    run_and_hand_over(config, out, progress=False)
    assert verify(out)["verified"], verify(out)["verdict"]
    path = out / "privacy.json"
    report = json.loads(path.read_text())
    (data,) = [one for one in report["events"]["datasets"] if one["dataset"] == "V"]
    sigma = report["plan"]["sigma_head_start"]
    data["parts"][0]["events"] = [e for e in data["parts"][0]["events"] if e["event"]["sigma"] != sigma]
    path.write_text(json.dumps(report, indent=2))
    assert "uses fewer than planned, on V" in verify(out)["verdict"]
