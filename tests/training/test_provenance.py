"""What a statement says about its run: data, day, versions, model and account, and nothing of the machine."""

from __future__ import annotations

import datetime
import hashlib
import json
import re

import pytest

from cords_dp.accounting import Account
from cords_dp.cli import main
from cords_dp.errors import AccountingError
from cords_dp.runs.run import run_experiment
from cords_dp.training.provenance import about_files


@pytest.fixture
def table(tmp_path, monkeypatch):
    """The section of a user's own file, and a key of its owner's."""
    monkeypatch.setenv("CORDS_DP_KEY", str(tmp_path / "key"))
    lines = [f"{i / 1000},{'yes' if i % 3 else 'no'}" for i in range(1000)]
    (tmp_path / "secret-place").mkdir()
    (tmp_path / "secret-place" / "mine.csv").write_text("a,b\n" + "\n".join(lines) + "\n")
    schema = {"target": {"name": "b", "classes": ["no", "yes"]}, "columns": {"a": {"range": [0, 1]}}}
    return {"path": str(tmp_path / "secret-place" / "mine.csv"), "schema": schema, "datadir": str(tmp_path / "cache")}


def test_a_statement_names_its_data_day_versions_and_model(make_config, table, tmp_path):
    out = tmp_path / "run"
    run_experiment(make_config("FullDP", "table", dataset=table), out, progress=False)
    report = json.loads((out / "privacy.json").read_text())
    about = report["about"]
    assert about["date"] == datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    assert {"python", "torch", "opacus", "cords-dp", "prv-accountant", "dp-accounting"} <= set(about["versions"])
    assert about["model"]["sha256"] == hashlib.sha256((out / "model.pt").read_bytes()).hexdigest()
    assert about["account"] is None
    (file,) = about["data"]["files"]
    assert (file["key"], file["file"]) == ("dataset.path", "mine.csv")
    assert sum(about["data"]["records"].values()) == 1000
    assert main(["data", "digest", table["path"], "--statement", str(out / "privacy.json")]) == 0
    for name in ("privacy.json", "privacy.md", "privacy.html"):
        text = (out / name).read_text()
        assert "secret-place" not in text, "a path of the machine"
        assert str(tmp_path) not in text
        assert not re.search(r"\d\d:\d\d", text), "a time of day"
        assert about["model"]["sha256"] in text
        assert file["digest"] in text


def test_no_plain_digest_of_private_data_is_released(make_config, table, tmp_path):
    """Whoever can guess the file could confirm the guess by it."""
    out = tmp_path / "run"
    run_experiment(make_config("FullDP", "table", dataset=table), out, progress=False)
    content = (tmp_path / "secret-place" / "mine.csv").read_bytes()
    plain = [hashlib.new(kind, content).hexdigest() for kind in ("md5", "sha1", "sha256", "blake2b")]
    for path in out.rglob("*"):
        if path.is_file():
            assert not any(digest[:16].encode() in path.read_bytes() for digest in plain)
    key = (tmp_path / "key").read_bytes()
    assert not any(key in path.read_bytes() or key.hex().encode() in path.read_bytes()
                   for path in out.rglob("*") if path.is_file())  # fmt: skip


def test_two_statements_do_not_tell_that_they_are_about_one_file(table):
    first, second = (about_files({"name": "table", **table}, built=True) for _ in range(2))
    assert first["files"][0]["digest"] != second["files"][0]["digest"]


def test_a_missing_key_leaves_the_digest_out_and_says_why(table, monkeypatch):
    monkeypatch.setenv("CORDS_DP_KEY", "off")
    (file,) = about_files({"name": "table", **table}, built=True)["files"]
    assert file["digest"] is None
    assert "key" in file["no_digest"]


def test_a_run_is_not_resumed_on_a_file_that_was_changed(make_config, table, tmp_path, monkeypatch):
    """An owner's name was changed in place: another split, and a person's records were in D, then in T."""
    path, out = tmp_path / "secret-place" / "mine.csv", tmp_path / "run"
    header, *rows = path.read_text().splitlines()
    whole = [f"{header},who", *(f"{row},p{i // 3}" for i, row in enumerate(rows))]
    path.write_text("\n".join(whole) + "\n")
    section = {**table, "owner": "who", "validation_fraction": 0.1}

    def run(**ckpt):
        config = make_config("FullDP", "table", dataset=section, ckpt={"is_save": True, "save_every": 1, **ckpt})
        return run_experiment(config, out, progress=False)

    run()
    path.write_text("\n".join([*whole[:1], whole[1].replace(",p0", ",p300"), *whole[2:]]) + "\n")
    with pytest.raises(AccountingError, match="was changed since the run began"):
        run(is_load=True)
    path.write_text("\n".join(whole) + "\n")
    run(is_load=True)
    monkeypatch.setenv("CORDS_DP_KEY", str(tmp_path / "another"))
    run(is_load=True)
    (log,) = out.rglob("*.log")
    assert "cannot be compared" in log.read_text()


def test_published_and_handed_over_sets_have_no_files():
    assert about_files({"name": "digits", "path": "x"}, built=True) == {"name": "digits", "files": []}
    assert about_files({"name": "table", "path": "x"}, built=False)["files"] == []


def test_a_statement_says_what_is_left_of_its_account(make_config, tmp_path):
    account = tmp_path / "folder" / "hospital.account"
    Account.open(account, 10.0, 1e-4)
    config = make_config("FullDP", privacy={"account": str(account)}, train_args={"num_epochs": 2})
    run_experiment(config, tmp_path / "run", progress=False)
    found = json.loads((tmp_path / "run" / "privacy.json").read_text())["about"]["account"]
    assert (found["file"], found["epsilon"], found["delta"], found["runs"]) == ("hospital.account", 10.0, 1e-4, 1)
    assert found["share_left"] == pytest.approx(1 - Account.read(account).share())
    page = (tmp_path / "run" / "privacy.html").read_text()
    assert "hospital.account" in page
    assert f"{found['share_left']:.1%} is left" in page


def test_a_script_s_statement_names_its_checkpoint(train, tmp_path):
    train("FullDP", ckpt={"is_save": True}, train_args={"num_epochs": 2})
    statement = next(tmp_path.rglob("privacy.json"))
    about = json.loads(statement.read_text())["about"]
    assert about["model"]["sha256"] == hashlib.sha256((statement.parent / "model.pt").read_bytes()).hexdigest()
    train("FullDP", train_args={"num_epochs": 2, "results_dir": str(tmp_path / "other")})
    about = json.loads(next((tmp_path / "other").rglob("privacy.json")).read_text())["about"]
    assert about["model"] is None
