"""``python -m cords_dp data``: a schema from declared knowledge, and never from values."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from cords_dp.cli import main
from cords_dp.data.sources.table.files import TableFile
from cords_dp.data.sources.table.schema import load_schema
from cords_dp.errors import ConfigError

CSV = "age,sex,no,income\n41,Male,7,low\n"


@pytest.fixture(autouse=True)
def no_values(monkeypatch):
    """Reading a value is an error."""

    def read(self, names):
        raise AssertionError("a record was read")

    for kind in TableFile.__subclasses__():
        monkeypatch.setattr(kind, "chunks", read)


def describe(tmp_path, *options, name="people.csv"):
    out = tmp_path / "schema.yaml"
    code = main(["data", "describe", str(tmp_path / name), "--public-schema", str(out), *options])
    return code, out


def test_a_template_holds_names_and_what_was_declared(tmp_path, capsys):
    (tmp_path / "people.csv").write_text(CSV)
    code, out = describe(tmp_path, "--target", "income", "--range", "age=0:100", "--categories", "sex=Male,Female")
    assert code == 0
    assert yaml.safe_load(out.read_text()) == {
        "target": {"name": "income", "classes": "TODO"},
        "columns": {"age": {"range": [0, 100]}, "sex": {"categories": ["Male", "Female"]}, "no": "TODO"},
        "ignore": [],
    }
    told = capsys.readouterr().out
    assert "2 values to be filled in" in told
    assert "data check" in told
    assert not {"41", "7", "low,"} & set(out.read_text().split())
    with pytest.raises(ConfigError, match=r"'TODO': still to be filled in: column 'no', the target; .* `ignore`"):
        load_schema(out)


def test_the_next_command_can_be_copied(tmp_path, capsys):
    (tmp_path / "our people.csv").write_text(CSV)
    describe(tmp_path, "--target", "income", name="our people.csv")
    assert f"data check '{tmp_path / 'our people.csv'}' --schema" in capsys.readouterr().out


def test_what_is_declared_in_full_can_be_used(tmp_path, capsys):
    (tmp_path / "people.csv").write_text(CSV)
    options = ["--range", "age=0:100", "--categories", "sex=Male,Female", "--ignore", "no"]
    code, out = describe(tmp_path, "--target", "income", "--categories", "income=low,high", *options)
    assert code == 0
    assert load_schema(out).classes == ("low", "high")
    assert main(["data", "check", str(tmp_path / "people.csv"), "--schema", str(out)]) == 0
    assert "has the 2 columns of the schema: 6 cells, target 2 classes" in capsys.readouterr().out
    (tmp_path / "other.csv").write_text(CSV.replace("sex", "SECRET"))
    assert main(["data", "check", str(tmp_path / "other.csv"), "--schema", str(out)]) == 2
    shown = capsys.readouterr().err
    assert "number 2 of its header" in shown
    assert "SECRET" not in shown


def test_another_delimiter_is_guessed_at_in_words_only(tmp_path, capsys):
    (tmp_path / "people.csv").write_text(CSV.replace(",", ";"))
    assert describe(tmp_path, "--target", "income")[0] == 2
    assert "single column" in capsys.readouterr().err
    declared = ["--range", "age=0:100", "--categories", "sex=Male,Female", "--ignore", "no"]
    code, out = describe(
        tmp_path, "--target", "income", "--categories", "income=low,high", *declared, "--delimiter", ";"
    )
    assert code == 0
    assert main(["data", "check", str(tmp_path / "people.csv"), "--schema", str(out)]) == 2
    told = capsys.readouterr().err
    assert "by what (delimiter)" in told
    assert "age;sex" not in told  # in a file without a header that line is a record


def test_storage_types_of_parquet_are_used(tmp_path):
    table = pa.table({"age": [41], "sex": ["Male"], "born": pa.array([0], pa.date32()), "income": ["low"]})
    pq.write_table(table, tmp_path / "people.parquet")
    _, out = describe(tmp_path, "--target", "income", name="people.parquet")
    columns = yaml.safe_load(out.read_text())["columns"]
    assert columns == {"age": {"range": "TODO"}, "sex": {"categories": "TODO"}, "born": {"range": "TODO"}}


def test_a_file_without_a_header_is_described_by_the_names_given(tmp_path, capsys):
    (tmp_path / "people.csv").write_text(CSV.split("\n", 1)[1])
    assert describe(tmp_path, "--target", "income")[0] == 2
    assert "41" not in capsys.readouterr().err
    code, out = describe(tmp_path, "--target", "income", "--header", "age,sex,no,income")
    assert code == 0
    assert yaml.safe_load(out.read_text())["header"] == ["age", "sex", "no", "income"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "wage"], "--target = 'wage'"),
        (["--target", "income", "--range", "age"], "--range = 'age'"),
        (["--target", "income", "--range", "aeg=0:1"], "--range = 'aeg'"),
        (["--target", "income", "--categories", "sex="], "--categories"),
        (["--target", "income", "--range", "age=0:1", "--categories", "age=a"], "--range = 'age'"),
    ],
)
def test_mistakes_are_named(tmp_path, capsys, options, message):
    (tmp_path / "people.csv").write_text(CSV)
    code, out = describe(tmp_path, *options)
    assert code == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_a_schema_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "people.csv").write_text(CSV)
    (tmp_path / "schema.yaml").write_text("mine")
    assert describe(tmp_path, "--target", "income")[0] == 2
    assert (tmp_path / "schema.yaml").read_text() == "mine"
