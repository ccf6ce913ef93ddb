"""Durable writes: whole or not at all, private from the first byte on, and no litter."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cords_dp.accounting import ledger
from cords_dp.files import cache_folder, caches_in, remove_stale, write_durably


@pytest.mark.parametrize("content", ["text with ε\n", b"\x00bytes"])
def test_it_replaces_the_content(tmp_path, content):
    path = tmp_path / "below" / "file.txt"
    for _ in range(2):
        write_durably(path, content)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("call", ["os.replace", "os.fsync"])
def test_a_failure_keeps_the_old_content_and_leaves_no_litter(tmp_path, monkeypatch, call):
    path = tmp_path / "file.txt"
    write_durably(path, "old")
    monkeypatch.setattr(call, lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        write_durably(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_data_is_on_the_device_before_the_rename_and_the_folder_after(tmp_path, monkeypatch):
    calls = []
    real_sync, real_replace = os.fsync, os.replace
    monkeypatch.setattr("os.fsync", lambda fd: calls.append("fsync") or real_sync(fd))
    monkeypatch.setattr("os.replace", lambda *p: calls.append("rename") or real_replace(*p))
    write_durably(tmp_path / "file.txt", "content")
    assert calls == ["fsync", "rename", "fsync"]


def test_a_mode_holds_from_the_first_byte_on(tmp_path, monkeypatch):
    modes = []
    real = os.fsync
    monkeypatch.setattr("os.fsync", lambda fd: modes.append(os.fstat(fd).st_mode & 0o777) or real(fd))
    write_durably(tmp_path / "secret", "content", mode=0o600)
    assert modes[0] == 0o600
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


KILLED = """
import os, signal, sys
from pathlib import Path
from cords_dp.files import write_durably
os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)
write_durably(Path(sys.argv[1]) / "file.txt", "content")
"""


def test_temporary_files_of_killed_writers_are_removed_and_no_others(tmp_path):
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, cwd=os.getcwd())
    (left,) = tmp_path.iterdir()
    living = tmp_path / left.name.replace(left.name.split("-")[1], str(os.getpid()))
    elsewhere = tmp_path / left.name.replace(left.name.split(".")[3].split("-")[0], "0" * 8)
    others = [living, elsewhere, tmp_path / ".notes.tmp", tmp_path / "file.tmp"]
    for path in others:
        path.write_text("")
    assert remove_stale(tmp_path) == [left]
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_the_old_name_still_works():
    assert ledger.write_durably is write_durably


def test_caches_lie_elsewhere_for_a_while_unless_none_are_kept(tmp_path, monkeypatch):
    for before, meanwhile in ((str(tmp_path / "usual"), tmp_path / "own/noise"), ("off", None)):
        monkeypatch.setenv("CORDS_DP_CACHE", before)
        usual = cache_folder("noise")
        with caches_in(tmp_path / "own"):
            assert cache_folder("noise") == meanwhile
        assert cache_folder("noise") == usual
    monkeypatch.delenv("CORDS_DP_CACHE")
    with caches_in(tmp_path / "own"):
        assert cache_folder("noise") == tmp_path / "own/noise"
    assert "CORDS_DP_CACHE" not in os.environ
