"""Digests that only who has the key can make or check."""

from __future__ import annotations

import hashlib
import hmac
import json

import pytest

from cords_dp.cli import main
from cords_dp.data.digests import key_file, owner_digest, owner_key
from cords_dp.errors import OwnerKeyError


@pytest.fixture
def key(tmp_path, monkeypatch):
    monkeypatch.setenv("CORDS_DP_KEY", str(tmp_path / "home" / "digest.key"))
    return owner_key()


def test_the_key_is_drawn_once_and_is_the_owner_s_alone(tmp_path, monkeypatch):
    path = tmp_path / "home" / "digest.key"
    monkeypatch.setenv("CORDS_DP_KEY", str(path))
    key = owner_key()
    assert len(key) == 32
    assert owner_key() == key == path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]


def test_a_key_that_others_can_read_is_refused(key, tmp_path):
    (tmp_path / "home" / "digest.key").chmod(0o640)
    with pytest.raises(OwnerKeyError, match="others"):
        owner_key()


def test_a_damaged_or_missing_key_is_refused(key, tmp_path, monkeypatch):
    (tmp_path / "home" / "digest.key").write_bytes(b"short")
    with pytest.raises(OwnerKeyError, match="damaged"):
        owner_key()
    monkeypatch.setenv("CORDS_DP_KEY", str(tmp_path / "none"))
    with pytest.raises(OwnerKeyError, match="cannot be read"):
        owner_key(create=False)
    assert not (tmp_path / "none").exists()
    monkeypatch.setenv("CORDS_DP_KEY", "off")
    assert key_file() is None
    with pytest.raises(OwnerKeyError):
        owner_key()


def test_without_the_key_a_guess_of_the_content_cannot_be_confirmed(tmp_path):
    """The digest is HMAC-SHA256: another key, salt or byte gives another; a plain hash is none of them."""
    file = tmp_path / "mine.csv"
    file.write_text("a,b\n1,2\n")
    inner = hashlib.sha256(file.read_bytes()).hexdigest()
    found = owner_digest(file, b"k" * 32, "salt")
    assert found == hmac.new(b"k" * 32, json.dumps(["salt", [["", inner]]]).encode(), "sha256").hexdigest()
    assert found != inner
    assert found != owner_digest(file, b"l" * 32, "salt")
    assert found != owner_digest(file, b"k" * 32, "another")
    renamed = file.rename(tmp_path / "other.csv")
    assert owner_digest(renamed, b"k" * 32, "salt") == found
    renamed.write_text("a,b\n1,3\n")
    assert owner_digest(renamed, b"k" * 32, "salt") != found


def test_a_folder_s_digest_follows_names_and_contents(tmp_path):
    folder = tmp_path / "photos"
    (folder / "cat").mkdir(parents=True)
    (folder / "cat" / "1.png").write_bytes(b"one")
    (folder / "cat" / "2.png").write_bytes(b"two")
    first = owner_digest(folder, b"k" * 32, "salt")
    (folder / "cat" / "2.png").rename(folder / "cat" / "3.png")
    assert owner_digest(folder, b"k" * 32, "salt") != first


def test_the_owner_can_ask_which_file_a_statement_speaks_of(key, tmp_path, capsys, monkeypatch):
    mine, other = tmp_path / "mine.csv", tmp_path / "other.csv"
    mine.write_text("1")
    other.write_text("2")
    files = [{"key": "dataset.path", "file": "mine.csv", "digest": owner_digest(mine, key, "s")}]
    statement = tmp_path / "privacy.json"
    statement.write_text(json.dumps({"about": {"data": {"files": files, "salt": "s"}}}))
    assert main(["data", "digest", str(mine), "--statement", str(statement)]) == 0
    assert "is the statement's dataset.path" in capsys.readouterr().out
    assert main(["data", "digest", str(other), "--statement", str(statement)]) == 1
    statement.write_text("{}")
    assert main(["data", "digest", str(mine), "--statement", str(statement)]) == 2
