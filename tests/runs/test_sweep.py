"""Sweeps: grids, resuming, failures, dead workers and drivers, Ray."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest
from conftest import REPOSITORY

from cords_dp.cli import main
from cords_dp.config import to_plain
from cords_dp.errors import ConfigError
from cords_dp.runs.jobs import Job, grid_jobs, parse_axis
from cords_dp.runs.sweep import collect, is_finished, run_jobs
from cords_dp.runs.workers import Failed, Finished, LocalWorkers, RayTasks, Started, available_cores

RESULT = {
    "strategy": "RandomDP",
    "accuracy": 0.5,
    "seed": 0,
    "out": "x",
    "train_seconds": 1.0,
    "selection_seconds": 0.0,
}
FILES = {"result.json": json.dumps(RESULT).encode()}


class Pretend:
    """A backend that finishes every job but those it is told to fail."""

    def __init__(self, failing=()):
        self.failing, self.ran = failing, []

    def run(self, jobs):
        for job in jobs:
            self.ran.append(job)
            yield Started(job)
            yield Failed(job, "boom\nValueError: no") if job.labels["seed"] in self.failing else Finished(job, FILES)


def tiny(make_config, **changes):
    cfg = make_config("RandomDP", **changes)
    cfg.train_args.num_epochs = 1
    return cfg


def jobs_of(make_config, seeds=3):
    return grid_jobs(tiny(make_config), [], seeds)


# --- grids ---------------------------------------------------------------------------------------------------


def test_a_grid_is_every_combination_and_seed(make_config):
    jobs = grid_jobs(make_config("RandomDP"), ["dss_args.fraction=0.1,0.3", "privacy.epsilon=3,8"], 2)
    assert len(jobs) == len({job.id for job in jobs}) == 8
    assert jobs[3].labels == {"dss_args.fraction": 0.1, "privacy.epsilon": 8.0, "seed": 1}
    assert jobs[3].config["privacy"]["epsilon"] == 8
    assert jobs[3].config["train_args"]["seed"] == 1


def test_a_job_s_hash_ignores_folders_and_nothing_else(make_config):
    one, other, different = make_config(), make_config(), make_config()
    other.train_args.results_dir = other.ckpt.dir = other.dataset.datadir = "/elsewhere"
    different.privacy.epsilon = 3.1
    assert Job(one.toDict()).id == Job(other.toDict()).id != Job(different.toDict()).id


@pytest.mark.parametrize("axis", ["a.b", "a.b=", "a.b=1,,2", "=1"])
def test_a_malformed_axis_is_refused(axis):
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        parse_axis(axis)


def test_an_axis_given_twice_is_refused(make_config):
    with pytest.raises(ConfigError, match="twice"):
        grid_jobs(make_config(), ["privacy.epsilon=3", "privacy.epsilon=8"], 1)


def test_mistakes_are_found_before_anything_runs(tmp_path, capsys):
    arguments = ["--grid", "dss_args.fraction=0.1,7", "--out", str(tmp_path)]
    assert main(["sweep", "--config", str(REPOSITORY / "configs" / "random_dp_digits.py"), *arguments]) == 2
    assert "dss_args.fraction = 7" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# --- resuming ------------------------------------------------------------------------------------------------


def test_finished_runs_are_not_repeated_and_failed_ones_are(make_config, tmp_path):
    jobs = jobs_of(make_config)
    first = run_jobs(jobs, tmp_path, Pretend(failing=[1]))
    assert len(first.frame) == 2
    assert list(first.failures.values()) == ["boom\nValueError: no"]
    assert len(list((tmp_path / "failed").iterdir())) == 1
    second = Pretend()
    result = run_jobs(jobs, tmp_path, second)
    assert [job.labels["seed"] for job in second.ran] == [1]
    assert len(result.frame) == 3
    assert not result.failures
    assert not list((tmp_path / "failed").iterdir())
    third = Pretend()
    run_jobs(jobs, tmp_path, third)
    assert not third.ran


def test_a_run_without_its_result_is_not_finished(make_config, tmp_path):
    """The result is written last: a driver killed while storing a run leaves nothing that counts as done."""
    (job,) = jobs_of(make_config, seeds=1)
    folder = tmp_path / "runs" / job.id
    folder.mkdir(parents=True)
    (folder / "metrics.csv").write_text("epoch\n1\n")
    (folder / "result.json.tmp").write_text("{")
    assert not is_finished(job, tmp_path)
    assert collect([job], tmp_path).empty


def test_rows_carry_hash_seed_and_versions(make_config, tmp_path):
    jobs = grid_jobs(tiny(make_config), [], 1)
    frame = run_jobs(jobs, tmp_path, LocalWorkers(1)).frame
    row = pd.read_csv(tmp_path / "runs.csv").iloc[0]
    assert row["config_hash"] == jobs[0].id
    assert row["seed"] == 0
    assert row["v_opacus"] == frame["v_opacus"].iloc[0] != "not installed"
    assert 0 < row["accuracy"] <= 1
    assert row["epsilon"] <= 3.0
    kept = {p.name for p in (tmp_path / "runs" / jobs[0].id).iterdir()}
    statement = {"privacy.json", "privacy.md", "privacy.html"}
    assert kept == {"result.json", "config.yaml", "metrics.csv", "about.json"} | statement


# --- workers -------------------------------------------------------------------------------------------------


def test_workers_share_the_cores():
    cores = available_cores()
    assert (LocalWorkers().workers, LocalWorkers().threads) == (cores, 1)
    assert (LocalWorkers(1).workers, LocalWorkers(1).threads) == (1, cores)
    assert LocalWorkers(10_000).workers == cores


def test_an_exception_in_one_run_does_not_stop_the_others(make_config, tmp_path):
    good, bad = tiny(make_config), tiny(make_config)
    bad.model.architecture = "NoSuchNet"
    jobs = [Job(bad.toDict(), {"which": "bad", "seed": 0}), Job(good.toDict(), {"which": "good", "seed": 0})]
    result = run_jobs(jobs, tmp_path, LocalWorkers(1))
    assert result.frame["which"].tolist() == ["good"]
    assert "NoSuchNet" in result.failures["which=bad, seed=0"]


def test_a_killed_worker_loses_only_its_run_which_is_tried_again(make_config, monkeypatch):
    """Kill the process of the first job as soon as it is seen; a new worker does the job."""
    from cords_dp.runs import workers

    seen = []
    original = workers._Worker.start

    def start(self, job, attempt):
        original(self, job, attempt)
        seen.append((job.labels["seed"], attempt))
        if seen == [(0, 1)]:
            os.kill(self.process.pid, signal.SIGKILL)

    monkeypatch.setattr(workers._Worker, "start", start)
    happenings = list(LocalWorkers(1).run(jobs_of(make_config, seeds=2)))
    assert seen == [(0, 1), (0, 2), (1, 1)]
    assert sum(isinstance(h, Finished) for h in happenings) == 2
    assert not any(isinstance(h, Failed) for h in happenings)


def test_a_run_after_others_is_the_run_in_a_process_of_its_own(make_config):
    """Nothing of a run stays behind in its worker: no seed, no cache, no setting of torch decides the next one."""

    def private(strategy, seed, **privacy):
        cfg = tiny(make_config)
        cfg.dss_args.type, cfg.train_args.seed = strategy, seed
        cfg.privacy.update(reproducible_noise=True, grad_sample_mode="hooks", **privacy)
        return Job(cfg.toDict(), {"seed": seed})

    last = private("GLISTERDP", 3)
    before = [private("RandomDP", 1, epsilon=8.0), private("FullDP", 2), private("GLISTERDP", 4)]
    alone, after = (list(LocalWorkers(1).run(jobs))[-1] for jobs in ([last], [*before, last]))
    assert isinstance(alone, Finished)
    assert isinstance(after, Finished)
    assert measured(alone.files) == measured(after.files)


def measured(files):
    """What a run has found, without what it took."""
    result = json.loads(files["result.json"])
    columns = pd.read_csv(io.BytesIO(files["metrics.csv"])).drop(columns=["seconds"], errors="ignore")
    return {key: result[key] for key in ("accuracy", "loss", "epsilon")}, columns.to_dict("list"), files["privacy.md"]


def test_workers_import_torch_once_for_all(make_config):
    """They are forks of one process: what it has imported has the same address in all of them."""
    jobs = [Job({"seed": number}, {"seed": number}, work=where_torch_is) for number in range(2)]
    workers = [Finished(h.job, h.files) for h in LocalWorkers(2).run(jobs) if isinstance(h, Finished)]
    assert len({w.files["torch"] for w in workers}) == 1
    assert len(workers) == 2


def where_torch_is(config):
    found = [name for name in ("torch", "opacus", "cords") if name in sys.modules]
    return {"torch": f"{found} {id(sys.modules['torch'])}".encode()}


def test_a_worker_that_dies_twice_is_reported(make_config, monkeypatch):
    from cords_dp.runs import workers

    original = workers._Worker.start

    def start(self, job, attempt):
        original(self, job, attempt)
        os.kill(self.process.pid, signal.SIGKILL)

    monkeypatch.setattr(workers._Worker, "start", start)
    *_, last = LocalWorkers(1).run(jobs_of(make_config, seeds=1))
    assert isinstance(last, Failed)
    assert "died" in last.error


@pytest.mark.slow  # twenty seconds
def test_a_killed_driver_leaves_no_workers_and_its_sweep_goes_on(make_config, tmp_path):
    import yaml

    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(to_plain(tiny(make_config))))
    out = tmp_path / "out"
    command = [sys.executable, "-m", "cords_dp", "sweep", "--config", str(config), "--seeds", "3", "--workers", "1"]
    command += ["--out", str(out)]
    driver = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.time() + 120
    while not list(out.glob("runs/*/result.json")) and time.time() < deadline:
        time.sleep(0.1)
    driver.kill()
    driver.wait()
    done = {p.parent.name: p.stat().st_mtime_ns for p in out.glob("runs/*/result.json")}
    assert 1 <= len(done) <= 3
    finished = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "3 of 3 runs finished" in finished.stdout
    after = {p.parent.name: p.stat().st_mtime_ns for p in out.glob("runs/*/result.json")}
    assert len(after) == 3
    assert done.items() <= after.items()  # nothing that was finished was run again


def test_exit_status_says_that_a_run_failed(make_config, tmp_path, monkeypatch, capsys):
    import yaml

    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(to_plain(tiny(make_config))))
    monkeypatch.setattr("cords_dp.cli.arguments.backend", lambda args: Pretend(failing=[1]))
    assert main(["sweep", "--config", str(config), "--seeds", "2", "--out", str(tmp_path / "out")]) == 1
    printed = capsys.readouterr()
    assert "FAILED seed=1: ValueError: no" in printed.err
    assert "1 of 2 runs finished" in printed.out


@pytest.mark.slow
def test_a_real_ray_cluster_runs_the_same_jobs(make_config, tmp_path):
    bad = tiny(make_config)
    bad.model.architecture = "NoSuchNet"
    jobs = [*jobs_of(make_config, seeds=2), Job(bad.toDict(), {"seed": "bad"})]
    result = run_jobs(jobs, tmp_path, RayTasks(None))
    assert sorted(result.frame["seed"]) == [0, 1]
    assert "NoSuchNet" in result.failures["seed=bad"]
