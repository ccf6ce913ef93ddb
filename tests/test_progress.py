"""Progress bars are for people in front of a terminal."""

from __future__ import annotations

import io

import pytest

from cords_dp.progress import quiet, shown_bar


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


def test_a_run_without_progress_says_nothing(make_config, tmp_path, capsys, monkeypatch):
    from cords_dp.runs.run import run_experiment

    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    config = make_config("FullDP", train_args={"num_epochs": 2, "seed": None})
    run_experiment(config, tmp_path, progress=False)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "")
    assert next(tmp_path.rglob("*.log")).stat().st_size > 0, "the log file holds every line in any case"
