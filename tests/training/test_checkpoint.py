"""Ledgers beside checkpoints: what is left of a run that was interrupted, by whom- or whatever."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from builders import make_plan

from cords_dp.accounting import journal
from cords_dp.cli import main
from cords_dp.config import to_plain
from cords_dp.errors import AccountingError, StorageError
from cords_dp.files import _host
from cords_dp.runs.run import run_experiment
from cords_dp.training.log import progress_bar
from cords_dp.training.opening import open_ledger
from cords_dp.training.trainer import TrainClassifier


def test_the_beginning_of_a_ledger_that_a_killed_process_left_is_removed(tmp_path):
    """Found by killing a run in the first write of its ledger: there is nothing to load, and nothing was cleaned up."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    stale = tmp_path / f".ledger.jsonl.{_host()}-{gone.pid}-0badcafe.tmp"
    stale.write_text("{")
    plan = make_plan("FullDP", n=100, batch_size=10)
    open_ledger(plan, tmp_path / "model.pt", resume=True, binding="", name="run").close()
    assert not stale.exists()


# --- a run that was interrupted, and one that begins anew in its folder -----------------------------------------


def interrupted_run(make_config, folder, **changes):
    """A run that is killed after its second epoch of four."""
    trainer = TrainClassifier(make_config("RandomDP", ckpt={"is_save": True, "save_every": 1}, **changes))
    original = trainer._save

    def stop_after_two(path, epoch):
        original(path, epoch)
        if epoch == 2:
            raise KeyboardInterrupt

    trainer._save = stop_after_two
    trainer.output_dir = folder
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    return trainer


def test_whoever_starts_over_is_told_what_the_interrupted_run_has_spent(make_config, tmp_path, capsys):
    first = interrupted_run(make_config, tmp_path)
    spent = first.spent().training_data.epsilon
    assert 0 < spent < 3
    capsys.readouterr()
    run_experiment(make_config("RandomDP"), tmp_path, progress=False)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "WARNING" in line]
    assert f"has spent epsilon {spent:.4f} on D" in line
    assert "--resume (ckpt.is_load) would have continued it" in line
    run_experiment(make_config("RandomDP"), tmp_path, progress=False)  # that one did end
    assert "WARNING" not in capsys.readouterr().err


def test_whoever_resumes_is_not_warned_and_another_plan_needs_its_own_config(make_config, tmp_path, capsys):
    interrupted_run(make_config, tmp_path)
    run_experiment(make_config("RandomDP", ckpt={"is_load": True}), tmp_path, progress=False)
    assert "did not end" not in capsys.readouterr().err
    interrupted_run(make_config, tmp_path)
    run_experiment(make_config("RandomDP", privacy={"epsilon": 5.0}), tmp_path, progress=False)
    assert "(ckpt.is_load), with the config of that run, would have" in capsys.readouterr().err


@pytest.mark.parametrize("dataset", [{}, {"feature": "mildimb"}])  # whose sizes are known, or have to be counted
def test_a_run_that_began_with_v_split_off_goes_on_with_its_own_split(make_config, tmp_path, monkeypatch, dataset):
    """Versions before V's records were trained on split it off in every run."""
    with monkeypatch.context() as earlier:
        earlier.setattr("cords_dp.training.resolve._with_records_of_validation", lambda run, **_: run)
        begun = interrupted_run(make_config, tmp_path, dataset=dataset)
    assert begun.plan.shape.n_validation > 0
    before = begun.spent().training_data.epsilon
    trainer = TrainClassifier(make_config("RandomDP", ckpt={"is_load": True}, dataset=dataset))
    trainer.output_dir = tmp_path
    trainer.train()
    assert trainer.plan.fingerprint == begun.plan.fingerprint
    assert trainer.ledger.id == begun.ledger.id
    assert trainer.data.train.rows.tolist() == begun.data.train.rows.tolist()
    assert [row["epoch"] for row in trainer.history.rows] == [2, 4]
    assert before < trainer.spent().epsilon <= 3.0


def test_a_run_on_all_records_goes_on_with_them_and_another_plan_is_refused(make_config, tmp_path):
    begun = interrupted_run(make_config, tmp_path)
    trainer = TrainClassifier(make_config("RandomDP", ckpt={"is_load": True}))
    trainer.output_dir = tmp_path
    trainer.train()
    assert (trainer.ledger.id, trainer.plan.shape.n_validation) == (begun.ledger.id, 0)
    for changes in ({"dataset": {"validation_fraction": 0.1}}, {"privacy": {"epsilon": 5.0}}):
        with pytest.raises(AccountingError):
            TrainClassifier(make_config("RandomDP", ckpt={"is_load": True}, **changes)).train()


def test_a_ledger_that_cannot_be_read_is_warned_about(make_config, tmp_path, capsys):
    interrupted_run(make_config, tmp_path)
    (ledger,) = tmp_path.rglob("ledger.jsonl")
    ledger.write_text(ledger.read_text().replace("poisson", "passion", 1))
    run_experiment(make_config("RandomDP"), tmp_path, progress=False)
    assert "has spent is unknown" in capsys.readouterr().err


def test_a_resumed_bar_begins_at_the_steps_that_are_done(make_config, tmp_path, monkeypatch):
    interrupted_run(make_config, tmp_path)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    bars = []
    monkeypatch.setattr(
        "cords_dp.training.trainer.progress_bar",
        lambda *args, **keys: bars.append(progress_bar(*args, **keys)) or bars[0],
    )
    trainer = TrainClassifier(make_config("RandomDP", ckpt={"is_load": True}))
    trainer.train()
    epochs = [epoch.steps for epoch in trainer.plan.shape.epochs]
    assert bars[0].initial == sum(epochs[:2])
    assert bars[0].n == bars[0].total == sum(epochs)


# --- a full disk ------------------------------------------------------------------------------------------------


def fill_disk(monkeypatch, name):
    """From the second time on nothing can be written to this file."""
    written = []

    def refuse(target):
        written.append(target.name)
        if written.count(name) >= 2 and target.name == name:
            raise OSError(errno.ENOSPC, "No space left on device")

    replace, write = os.replace, journal._write_whole
    monkeypatch.setattr("os.replace", lambda old, new: refuse(Path(new)) or replace(old, new))
    monkeypatch.setattr(
        "cords_dp.accounting.journal._write_whole",
        lambda file, line, at: refuse(Path(os.readlink(f"/proc/self/fd/{file}"))) or write(file, line, at),
    )


@pytest.mark.skipif(sys.platform != "linux", reason="looks up a descriptor's path in /proc")
@pytest.mark.parametrize("name", ["model.pt", "metrics.csv", "ledger.jsonl", "model.json"])
def test_a_full_disk_ends_a_run_with_the_file_the_cost_and_the_way_on(make_config, tmp_path, monkeypatch, capsys, name):
    config = tmp_path / "config.yaml"
    made = make_config("RandomDP", ckpt={"is_save": True, "save_every": 1}, train_args={"print_every": 1})
    config.write_text(yaml.safe_dump(to_plain(made)))
    command = ["run", "--config", str(config), "--out", str(tmp_path / "run"), "--quiet"]
    with monkeypatch.context() as patched:
        fill_disk(patched, name)
        if name == "model.json":
            assert main(command) == 0  # written once; the second run finds no room
        assert main(command) == 2
    told = capsys.readouterr().err
    (line,) = [line for line in told.splitlines() if line.startswith("error: ")]
    assert f"No space left on device: {tmp_path / 'run'}" in line
    assert f"{name}. ε = " in line
    assert "of 3 is charged and stays charged" in line
    assert "--resume" in line
    assert main([*command, "--resume"]) == 0
    assert json.loads((tmp_path / "run/privacy.json").read_text())["charged_so_far"]["epsilon"] <= 3.0
    assert (tmp_path / "run/result.json").is_file()


def test_a_script_s_full_disk_is_an_error_of_its_kind_and_other_errors_stay_as_they_are(make_config, monkeypatch):
    for code, kind in ((errno.EDQUOT, StorageError), (errno.EFBIG, StorageError), (errno.EIO, OSError)):
        with monkeypatch.context() as patched:
            patched.setattr(
                "cords_dp.training.checkpoint.save_checkpoint",
                lambda *_, code=code: (_ for _ in ()).throw(OSError(code, "no", "model.pt")),
            )
            with pytest.raises(OSError) as caught:
                TrainClassifier(make_config("RandomDP", ckpt={"is_save": True})).train()
        assert type(caught.value) is kind
