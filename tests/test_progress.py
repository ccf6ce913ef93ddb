"""Progress bars are for people in front of a terminal."""

from __future__ import annotations

import contextlib
import io

import pytest
import yaml
from frames import blobs, quick

from cords_dp.cli import main
from cords_dp.config import to_plain
from cords_dp.progress import quiet, shown_bar
from cords_dp.runs.workers import InThisProcess
from cords_dp.training.trainer import TrainClassifier
from cords_dp.tuning.tune import tune


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def drawn(monkeypatch):
    """What a bar of three steps draws on a stream."""

    def draw(stream, **options):
        monkeypatch.setattr("sys.stderr", stream)
        for _ in shown_bar(range(3), desc="three", mininterval=0, file=stream, **options):
            pass
        return stream.getvalue()

    return draw


def test_a_terminal_sees_bars_and_a_pipe_none(drawn):
    assert "three" in drawn(Terminal())
    assert drawn(io.StringIO()) == ""
    assert drawn(Terminal(), shown=False) == ""


def test_quiet_covers_every_bar_meanwhile(drawn):
    with quiet():
        with quiet(False):  # who asks for nothing does not lift it
            assert drawn(Terminal()) == ""
        assert drawn(Terminal()) == ""
    assert "three" in drawn(Terminal())


@contextlib.contextmanager
def terminal():
    """Two terminals, stdout and stderr, which see bars and log lines meanwhile."""
    out, err = Terminal(), Terminal()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield out, err


@pytest.fixture
def config(make_config):
    return make_config("FullDP", train_args={"num_epochs": 2, "seed": None}, privacy={"accountant": "rdp"})


@pytest.fixture
def config_file(config, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(to_plain(config)))
    return str(path)


def test_a_run_without_progress_says_nothing(config, tmp_path):
    from cords_dp.runs.run import run_experiment

    with terminal() as (out, err):
        run_experiment(config, tmp_path, progress=False)
    assert (out.getvalue(), err.getvalue()) == ("", "")
    assert next(tmp_path.rglob("*.log")).stat().st_size > 0, "the log file holds every line in any case"


@pytest.mark.parametrize("shown", [True, False])
def test_a_trainer_without_progress_says_nothing(config, tmp_path, shown):
    config.train_args.results_dir = str(tmp_path)
    with terminal() as (out, err):
        trainer = TrainClassifier(config)
        trainer.show_progress = shown
        trainer.train()
    assert ("Privacy spent" in out.getvalue(), "FullDP:" in err.getvalue()) == (shown, shown)
    assert bool(out.getvalue() + err.getvalue()) == shown
    assert "Privacy spent" in next(tmp_path.rglob("*.log")).read_text()


def test_a_quiet_trainer_still_warns_on_stderr(config, tmp_path):
    config.train_args.results_dir, config.privacy.epsilon = str(tmp_path), None
    with terminal() as (out, err):
        trainer = TrainClassifier(config)
        trainer.show_progress = False
        trainer.train()
    assert out.getvalue() == ""
    assert "NOT PRIVATE" in err.getvalue()


def test_an_estimator_says_nothing():
    X, y = blobs()
    with terminal() as (out, err):
        quick(data_norm=5.0, classes=[0, 1]).fit(X, y).predict(X)
    assert (out.getvalue(), err.getvalue()) == ("", "")


@pytest.mark.parametrize("shown", [True, False])
def test_a_tuning_without_progress_says_nothing(config, tmp_path, shown):
    with terminal() as (out, err):
        search, backend = ["optimizer.lr=loguniform(0.1, 1)"], InThisProcess()
        tune(config, search, trials=1.5, out=tmp_path, backend=backend, progress=shown)
    assert out.getvalue() == ""
    assert bool(err.getvalue()) == shown


@pytest.mark.parametrize("quietly", [False, True])
@pytest.mark.parametrize("command", [["run"], ["sweep", "--workers", "1"]], ids=lambda words: words[0])
def test_a_quiet_command_prints_its_result_alone(command, config_file, tmp_path, quietly):
    with terminal() as (out, err):
        loudness = ["--quiet"] if quietly else []
        assert main([*command, "--config", config_file, "--out", str(tmp_path / "out"), *loudness]) == 0
    assert "accuracy" in out.getvalue()
    assert bool(err.getvalue()) != quietly
    assert not (quietly and "INFO" in out.getvalue())


def test_a_pipe_sees_no_bars(config_file, tmp_path, capsys):
    assert main(["run", "--config", config_file, "--out", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert "Privacy spent" in out
    assert err == ""
