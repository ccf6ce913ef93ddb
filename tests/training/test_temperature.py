"""The temperature of a run that reads V: one charged release when it ends, and the same model in all its files."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from builders import data_of, make_plan
from scipy import stats

from cords_dp import load_model
from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, gaussian
from cords_dp.config.presets import config_for, merge_into
from cords_dp.data.record_set import Splits
from cords_dp.errors import ConfigError
from cords_dp.evaluation import temperature as fitting
from cords_dp.evaluation.temperature import TEMPERATURES
from cords_dp.planning.plan import TEMPERATURE_RELEASE
from cords_dp.runs.run import run_and_hand_over
from cords_dp.selection import releases
from cords_dp.selection.session import SelectionArchive
from cords_dp.training import temperature
from cords_dp.training.private_session import PrivateSession
from cords_dp.training.resolve import resolve
from cords_dp.training.temperature import steps_on
from cords_dp.training.trainer import TrainClassifier
from cords_dp.verify import verify

GLISTER = {"privacy": {"temperature": True}}
WITHOUT = {"privacy": {"temperature": False}}


def undivided(session) -> dict[str, torch.Tensor]:
    """The weights that the steps have led to."""
    return (session.model if session.average is None else session.average.model).state_dict()


def sum_on_v(session) -> np.ndarray:
    """The sum that was released, without its noise."""
    records = session.records(session.data.validation, session.calibrated)
    kept = {name: value.clone() for name, value in session.calibrated.state_dict().items()}
    session.calibrated.load_state_dict(undivided(session))
    found = steps_on(records)
    session.calibrated.load_state_dict(kept)
    return found


def released(session) -> np.ndarray:
    found = SelectionArchive(session.ledger, session.ledger.path.parent).find(TEMPERATURE_RELEASE)
    return found["released"].numpy()


# --- the plan ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["align", "match", "threshold", "top_k", "exponential"])
def test_v_pays_within_its_own_budget_and_d_does_not_notice(mechanism):
    keys = {"mechanism": mechanism, "n": 2000, "k": 200, "select_every": 2, "train_on_validation": False}
    plan, before = make_plan(**keys), make_plan(**keys, temperature=False)
    on_d, on_d_before = ([e.event for e in p.entries() if e.dataset == TRAINING_DATA] for p in (plan, before))
    assert on_d == on_d_before
    assert (plan.sigma, plan.selection_noise, plan.branches) == (before.sigma, before.selection_noise, before.branches)
    assert plan.entries()[-1].event == gaussian(plan.sigma_temperature)
    assert plan.entries()[-1].dataset == VALIDATION_DATA
    assert 1.045 < plan.sigma_validation / before.sigma_validation < 1.055
    assert 0.99 * 3 < plan.cost().validation_data.epsilon <= 3
    assert plan.cost().training_data == before.cost().training_data


def test_plans_without_it_are_as_they_were():
    plan = make_plan(mechanism="align", n=2000, k=200, temperature=False)
    assert plan.sigma_temperature is None
    assert not plan.fits_temperature
    assert not plan.temperature_releases()
    assert not [key for key in json.dumps(plan.facts()).split('"') if "temperature" in key]
    for strategy in ("FullDP", "RandomDP"):
        on, off = (make_plan(strategy, n=2000, k=2000, temperature=value) for value in (True, False))
        assert on.fingerprint == off.fingerprint
        assert not on.fits_temperature
    assert make_plan(mechanism="align", n=2000, k=200).fingerprint != plan.fingerprint


def test_noise_on_v_that_leaves_nothing_over_is_refused():
    keys = {"mechanism": "align", "n": 2000, "k": 200, "train_on_validation": False}
    given = make_plan(**keys, temperature=False).sigma_validation
    assert make_plan(**keys, temperature=False, validation_noise=given)
    with pytest.raises(ConfigError, match="raise it"):
        make_plan(**keys, validation_noise=given)
    plan = make_plan(**keys, validation_noise=2 * given)
    assert plan.cost().validation_data.epsilon < 3


def test_a_strategy_that_reads_no_v_refuses_the_key(make_config):
    with pytest.raises(ConfigError, match=r"privacy\.temperature"):
        resolve(make_config("FullDP", **GLISTER), plan=False)
    assert resolve(make_config("FullDP", **WITHOUT), plan=False).privacy.temperature is False
    assert resolve(make_config("GLISTERDP", **GLISTER), plan=False).privacy.temperature


# --- the release ------------------------------------------------------------------------------------------------------


def test_the_release_is_the_sum_on_v_with_noise_of_the_charged_event(train):
    noise = []
    for _ in range(4):
        session = train("GLISTERDP", train_args={"seed": None}).session
        events = session.ledger.events(VALIDATION_DATA)
        assert events.count(gaussian(session.plan.sigma_temperature)) == 1
        noise.append((released(session) - sum_on_v(session)) / session.plan.sigma_temperature)
    assert len(np.concatenate(noise)) == 4 * (len(TEMPERATURES) - 1)
    assert stats.kstest(np.concatenate(noise), "norm").pvalue > 1e-4


def test_it_is_charged_on_disk_before_it_is_drawn(train, monkeypatch):
    seen, original, calibrate = [], releases.gaussian_release, PrivateSession.calibrate

    def spied(self):
        def spy(total, **options):
            assert options["noise_multiplier"] == self.plan.sigma_temperature
            seen.append(f'"sigma":{self.plan.sigma_temperature}' in self.ledger.path.read_text().replace(" ", ""))
            return original(total, **options)

        monkeypatch.setattr(releases, "gaussian_release", spy)
        calibrate(self)
        monkeypatch.setattr(releases, "gaussian_release", original)

    monkeypatch.setattr(PrivateSession, "calibrate", spied)
    monkeypatch.setattr(TrainClassifier, "_after_epoch", lambda *_: None)  # it would calibrate as well, and first
    train("GLISTERDP")
    assert seen == [True]


def test_the_temperature_follows_from_what_was_released(train, monkeypatch):
    """Not from the exact sum: another released one makes another model."""
    original = temperature.released_once

    def told(name, *arguments, **options):
        found = original(name, *arguments, **options)
        steps = torch.zeros_like(found["released"])
        steps[TEMPERATURES.tolist().index(1.0)] = -1e6  # from 1 to √2
        return {**found, "released": steps}

    monkeypatch.setattr(temperature, "released_once", told)
    session = train("GLISTERDP").session
    before, after = undivided(session), session.released.state_dict()
    torch.testing.assert_close(after["linear.weight"], before["linear.weight"] / 2**0.5)
    torch.testing.assert_close(after["linear.bias"], before["linear.bias"] / 2**0.5)


def test_d_is_charged_the_same_with_it_and_without(train):
    on, off = train("GLISTERDP"), train("GLISTERDP", **WITHOUT)
    assert on.ledger.events(TRAINING_DATA) == off.ledger.events(TRAINING_DATA)
    assert off.session.released is not off.session.calibrated is None


def test_removing_a_record_of_v_moves_the_sum_by_one_at_most(train):
    session = train("GLISTERDP").session
    whole, validation = sum_on_v(session), session.data.validation
    moved = []
    for left_out in range(0, len(validation), 7):
        keep = np.delete(np.arange(len(validation)), left_out)
        session.data = session.data._replace(validation=validation.at(keep))
        moved.append(np.linalg.norm(whole - sum_on_v(session)))
    assert 0 < max(moved) <= 1 + 1e-9


def test_an_owner_of_several_records_of_v_counts_once(make_config):
    data = Splits(data_of(300, 0), data_of(80, 1), data_of(90, 2), 3)
    given = dict(zip(("trainset", "validset", "testset", "num_cls"), data, strict=True))
    config = make_config(
        "GLISTERDP",
        dataset={"name": "custom", "type": None},
        model={"architecture": "LinearHead", "numclasses": 3},
        dataloader={"batch_size": 32},
    )
    trainer = TrainClassifier(config)
    trainer.show_progress = False
    trainer.train(**given, owners=(np.arange(300) // 3, 1000 + np.arange(80) // 4))
    session = trainer.session
    undivided(session)["linear.weight"].mul_(30)  # sure, and often wrong
    whole, validation = sum_on_v(session), session.data.validation
    assert validation.units == 20
    moved = []
    for owner in range(20):
        keep = np.flatnonzero(validation.owners.codes != owner)
        session.data = session.data._replace(validation=validation.at(keep))
        moved.append(np.linalg.norm(whole - sum_on_v(session)))
    assert 1 / 3 < max(moved) <= 1 + 1e-9  # each of its four records counts a quarter


# --- the model --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("temperature"))


def config_of(folder, **changes):
    config = config_for(
        "digits",
        "GLISTERDP",
        dss_args={"fraction": 0.3},
        train_args={"num_epochs": 3, "print_every": 1, "seed": 0, "device": "cpu"},
        privacy={"epsilon": 100.0, "accountant": "rdp"},  # so that noise does not decide whether there is one
        ckpt={"is_save": True},
    )
    merge_into(config, changes)
    return config, folder / "run"


def finished(folder, **changes):
    config, out = config_of(folder, **changes)
    return run_and_hand_over(config, out, progress=False)[0], out


def test_every_file_has_the_model_that_was_measured(run):
    trainer, out = run
    session = trainer.session
    weights = trainer.model.state_dict()
    assert trainer.model is session.calibrated
    assert not torch.equal(weights["linear.weight"], undivided(session)["linear.weight"])
    assert torch.equal(load_model(out).model.state_dict()["linear.weight"], weights["linear.weight"])
    assert trainer.history.rows[-1]["tst_loss"] == pytest.approx(
        json.loads((out / "result.json").read_text())["metrics"]["log_loss"], rel=1e-4
    )


def test_a_checkpoint_is_loaded_as_the_model_that_was_released(run, tmp_path):
    trainer, out = run
    checkpoint = max(out.rglob("model.pt"), key=lambda path: len(path.parts))
    state = torch.load(checkpoint, weights_only=False)
    assert torch.equal(state["state_dict"]["linear.weight"], trainer.session.model.state_dict()["linear.weight"])
    shutil.copy(out / "model.json", tmp_path / "model.json")
    shutil.copy(checkpoint, tmp_path / "model.pt")
    loaded = load_model(tmp_path).model.state_dict()
    assert torch.equal(loaded["linear.weight"], trainer.model.state_dict()["linear.weight"])


def test_statement_ledger_and_plan_agree_and_are_verified(run):
    trainer, out = run
    report = json.loads((out / "privacy.json").read_text())
    assert report["plan"]["sigma_temperature"] == trainer.plan.sigma_temperature
    assert "temperature" not in report["plan"]["privacy"]
    (row,) = [row for row in report["mechanisms"] if "temperature" in row["parameters"]]
    assert (row["phase"], row["mechanism"], row["count"]) == ("validation", "Gaussian", 1)
    assert verify(out)["verified"], verify(out)["verdict"]


def test_a_plan_that_leaves_its_event_out_is_not_verified(run, tmp_path):
    out = shutil.copytree(run[1], tmp_path / "copy")
    path = out / "privacy.json"
    report = json.loads(path.read_text())
    (data,) = [one for one in report["events"]["datasets"] if one["dataset"] == "V"]
    sigma = report["plan"]["sigma_temperature"]
    data["parts"][0]["events"] = [e for e in data["parts"][0]["events"] if e["event"]["sigma"] != sigma]
    path.write_text(json.dumps(report, indent=2))
    assert "uses fewer than planned, on V" in verify(out)["verdict"]


# --- once -------------------------------------------------------------------------------------------------------------


def test_a_resumed_run_has_the_temperature_that_it_had(tmp_path):
    first, _ = finished(tmp_path)
    again, _ = finished(tmp_path, ckpt={"is_load": True})
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name])
    sigma = again.plan.sigma_temperature
    assert sum(event.count for event in again.ledger.events(VALIDATION_DATA) if event.sigma == sigma) == 1


def test_a_run_that_was_killed_before_it_was_on_record_pays_once(tmp_path, monkeypatch):
    keep = SelectionArchive.keep

    def killed(self, name, state):
        if name == TEMPERATURE_RELEASE:
            raise KeyboardInterrupt
        keep(self, name, state)

    with monkeypatch.context() as patch:
        patch.setattr(SelectionArchive, "keep", killed)
        with pytest.raises(KeyboardInterrupt):
            finished(tmp_path, ckpt={"save_every": 1})
    config, out = config_of(tmp_path, ckpt={"is_load": True})
    # the last epoch was not on disk: it is spent, and the model of the epoch before is what there is
    trainer = run_and_hand_over(config, out, progress=False)[0]
    sigma = trainer.plan.sigma_temperature
    assert sum(event.count for event in trainer.ledger.events(VALIDATION_DATA) if event.sigma == sigma) == 1
    assert trainer.session.calibrated is trainer.model


def test_a_run_without_the_key_resumes_without_it(tmp_path):
    first, _ = finished(tmp_path, **WITHOUT)
    again, _ = finished(tmp_path, ckpt={"is_load": True}, **WITHOUT)
    assert first.session.calibrated is again.session.calibrated is None
    assert torch.equal(first.model.state_dict()["linear.weight"], again.model.state_dict()["linear.weight"])


# --- where there is nothing to charge ---------------------------------------------------------------------------------


def test_of_a_public_v_it_is_exact_and_free(train):
    session = train("GLISTERDP", privacy={"validation": "public"}).session
    assert session.plan.sigma_temperature is None
    assert not session.ledger.events(VALIDATION_DATA)
    np.testing.assert_allclose(released(session), sum_on_v(session))
    off = train("GLISTERDP", privacy={"validation": "public", "temperature": False})
    assert off.plan.fingerprint == session.plan.fingerprint


def test_a_model_without_a_last_linear_layer_is_left_alone_and_nothing_is_read(train, monkeypatch):
    monkeypatch.setattr(temperature, "last_linear", lambda *_: None)
    monkeypatch.setattr(fitting, "loss_steps", None)
    session = train("GLISTERDP").session
    sigma = session.plan.sigma_temperature
    assert gaussian(sigma) not in session.ledger.events(VALIDATION_DATA)
    assert torch.equal(session.released.state_dict()["linear.weight"], undivided(session)["linear.weight"])


def test_a_run_without_a_v_has_none(train):
    session = train("FullDP").session
    assert session.calibrated is None
    assert session.released is session.model or session.released is session.average.model
