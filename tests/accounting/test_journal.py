"""The journal: cuts, edits, torn appends, full disks and second writers, byte by byte."""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cords_dp.accounting.journal import Journal
from cords_dp.errors import AccountingError

HEADER = {"header": "ε"}
RECORDS = [{"n": 0, "x": 0.1}, {"n": 1}, {"n": 2, "text": 'a "quoted"\nline'}]


def write(path, records=RECORDS):
    with Journal.create(path, HEADER) as journal:
        for record in records:
            journal.append(record)


def read(path):
    with Journal.open(path) as journal:
        return list(journal.records())


def test_what_was_appended_is_read(tmp_path):
    write(tmp_path / "j")
    assert read(tmp_path / "j") == [HEADER, *RECORDS]
    with Journal.open(tmp_path / "j") as journal:
        list(journal.records())
        journal.append({"n": 3})
    assert read(tmp_path / "j") == [HEADER, *RECORDS, {"n": 3}]


VALUES = st.none() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=30)
@given(records=st.lists(st.dictionaries(st.text(), VALUES), max_size=8))
def test_any_record_comes_back_as_it_was(tmp_path, records):
    path = tmp_path / os.urandom(8).hex()
    write(path, records)
    assert read(path) == [HEADER, *records]


def test_nothing_is_appended_to_what_was_not_read_to_the_end(tmp_path):
    write(tmp_path / "j")
    with Journal.open(tmp_path / "j") as journal:
        next(journal.records())
        with pytest.raises(AccountingError, match="cannot be written"):
            journal.append({"n": 3})


# --- damage ------------------------------------------------------------------------------------------------


def test_a_file_that_was_cut_anywhere_is_refused(tmp_path):
    path = tmp_path / "j"
    write(path)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(AccountingError, match="cannot read j"):
            read(path)
        assert path.read_bytes() == content[:length]  # and nothing else was lost


def test_a_file_that_was_edited_anywhere_is_refused(tmp_path):
    path = tmp_path / "j"
    write(path)
    content = path.read_bytes()
    mark = re.search(rb"\d{16}", content).span()
    for at in set(range(len(content))) - set(range(*mark)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(AccountingError, match="cannot read j"):
            read(path)


@pytest.mark.parametrize("edit", ["drop", "swap", "repeat"])
def test_lines_that_were_removed_moved_or_repeated_are_noticed(tmp_path, edit):
    path = tmp_path / "j"
    write(path)
    lines = path.read_bytes().splitlines(keepends=True)
    changed = {
        "drop": [lines[0], lines[1], lines[3]],
        "swap": [lines[0], lines[2], lines[1], lines[3]],
        "repeat": [*lines, lines[3]],
    }[edit]
    path.write_bytes(b"".join(changed))
    with pytest.raises(AccountingError, match="cannot read j"):
        read(path)


def test_of_an_interrupted_append_only_that_record_is_lost(tmp_path):
    """The state after a crash: the last line is there in part, and the mark does not count it yet."""
    path = tmp_path / "j"
    write(path, RECORDS[:2])
    before = path.read_bytes()
    path.unlink()
    write(path)
    line = path.read_bytes()[len(before) :]
    for length in range(len(line) + 1):
        path.write_bytes(before + line[:length])
        whole = length >= len(line) - 1  # only the newline is missing: rather count it than lose it
        assert read(path) == [HEADER, *RECORDS[: 3 if whole else 2]]
        with Journal.open(path) as journal:
            list(journal.records())
            journal.append({"n": "next"})
        assert read(path)[-1] == {"n": "next"}


def test_garbage_with_an_end_is_not_an_interrupted_append(tmp_path):
    path = tmp_path / "j"
    write(path)
    with open(path, "ab") as file:
        file.write(b'{"chain":"\n')
    with pytest.raises(AccountingError, match="line 5"):
        read(path)


@pytest.mark.parametrize("content", [b"", b"{", b'{\n "version": 1,\n "entries": []\n}', b"\x00" * 100])
def test_what_is_no_journal_is_refused(tmp_path, content):
    (tmp_path / "j").write_bytes(content)
    with pytest.raises(AccountingError, match="cannot read j"):
        read(tmp_path / "j")


def test_a_line_is_on_the_device_before_it_is_marked_as_committed(tmp_path, monkeypatch):
    calls = []
    pwrite, fsync = os.pwrite, os.fsync
    with Journal.create(tmp_path / "j", HEADER) as journal:
        monkeypatch.setattr("os.pwrite", lambda fd, data, at: calls.append(len(data)) or pwrite(fd, data, at))
        monkeypatch.setattr("os.fsync", lambda fd: calls.append("fsync") or fsync(fd))
        journal.append(RECORDS[0])
        monkeypatch.undo()
    line = (tmp_path / "j").read_bytes().splitlines(keepends=True)[1]
    assert calls == [len(line), "fsync", 16]


# --- failing writes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["os.pwrite", "os.fsync"])
def test_a_failed_append_leaves_the_journal_as_it_was_and_ends_it(tmp_path, monkeypatch, call):
    path = tmp_path / "j"
    write(path)
    content = path.read_bytes()
    with Journal.open(path) as journal:
        list(journal.records())
        full = OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr(call, lambda *_: (_ for _ in ()).throw(full))
        with pytest.raises(AccountingError, match="No space left"):
            journal.append({"n": 3})
        monkeypatch.undo()
        with pytest.raises(AccountingError, match="cannot be written any more"):
            journal.append({"n": 3})
    assert path.read_bytes() == content


def test_short_writes_are_continued(tmp_path, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr("os.pwrite", lambda fd, data, at: real(fd, data if len(data) == 16 else data[:3], at))
    write(tmp_path / "j")
    monkeypatch.undo()
    assert read(tmp_path / "j") == [HEADER, *RECORDS]


def test_a_really_full_disk(tmp_path):
    """The system's own limit on the size of a file, which cuts a write in two."""
    path = tmp_path / "j"
    write(path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with Journal.open(path) as journal:
            list(journal.records())
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, limits[1]))
            with pytest.raises(AccountingError, match="cannot write j"):
                journal.append({"n": 3})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert read(path) == [HEADER, *RECORDS]


# --- second writers ----------------------------------------------------------------------------------------


def test_an_existing_file_is_not_begun_anew(tmp_path):
    write(tmp_path / "j")
    with pytest.raises(AccountingError, match="another run writes to j"):
        Journal.create(tmp_path / "j", HEADER)


def test_in_one_process_the_later_opener_has_the_file(tmp_path):
    first = Journal.create(tmp_path / "j", HEADER)
    with Journal.open(tmp_path / "j") as second:
        list(second.records())
        second.append({"n": 0})
    with pytest.raises(AccountingError, match="another run"):
        first.append({"n": 1})


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_moved_away_is_not_written(tmp_path, replaced):
    journal = Journal.create(tmp_path / "j", HEADER)
    (tmp_path / "j").rename(tmp_path / "old")
    if replaced:
        Journal.create(tmp_path / "j", HEADER)
    with pytest.raises(AccountingError, match=r"another run|is gone"):
        journal.append({"n": 0})


OTHER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from cords_dp.accounting.journal import Journal
    journal = Journal.open(Path(sys.argv[1]))
    print("open", flush=True)
    sys.stdin.read()
""")


def test_another_process_is_refused_until_the_first_ends(tmp_path):
    path = tmp_path / "j"
    write(path)
    with subprocess.Popen(
        [sys.executable, "-c", OTHER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=os.getcwd()
    ) as other:
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(AccountingError, match="another process uses j"):
            Journal.open(path)
        other.kill()  # a lock does not outlive its process
        other.wait()
    assert read(path) == [HEADER, *RECORDS]


def test_a_forked_process_cannot_write_and_takes_no_lock_along(tmp_path):
    journal = Journal.create(tmp_path / "j", HEADER)
    child = os.fork()
    if child == 0:
        try:
            journal.append({"n": 0})
        except AccountingError:
            journal.close()
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    refused = subprocess.run(
        [sys.executable, "-c", OTHER, str(tmp_path / "j")], capture_output=True, input=b"", cwd=os.getcwd(), check=False
    )
    assert b"another process uses j" in refused.stderr
    journal.append({"n": 1})
