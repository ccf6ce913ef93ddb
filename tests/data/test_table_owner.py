"""What the owner of a table does outside of a run: import a CSV file, and look at what a run would not say."""

from __future__ import annotations

import io
import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hospital import SCHEMA, STAY, messy, patients, write_csv
from hypothesis import given
from hypothesis import strategies as st

from cords_dp.cli import main
from cords_dp.config import config_for
from cords_dp.data.sources.base import find_source
from cords_dp.data.sources.table.csv_lines import quoted_records
from cords_dp.runs.run import run_experiment

ROWS = messy(patients(400))


def records_of(path, folder, schema=SCHEMA, **section):
    """What a run would make of a file, in the file's order."""
    source = find_source("table")
    section = {"path": str(path), "schema": schema, "datadir": str(folder / "data"), **section}
    section |= {"validation_path": str(path), "test_path": str(path)}
    source.check(section, private=True)
    train = source.build(section, np.random.default_rng(0)).train
    return train.batch(np.argsort(train.rows))


def imported(tmp_path, *options):
    return main(["data", "import", str(tmp_path / "in.csv"), "--out", str(tmp_path / "out.parquet"), *options])


# --- import --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [SCHEMA, STAY])
def test_an_imported_file_holds_the_records_of_a_clean_one(tmp_path, capsys, schema):
    write_csv(tmp_path / "in.csv", ROWS)
    assert imported(tmp_path) == 0
    told = capsys.readouterr().out
    assert "400 records, 9 columns" in told
    assert "could not be read" not in told
    assert pq.read_table(tmp_path / "out.parquet").to_pylist() == ROWS
    write_csv(tmp_path / "clean.csv", [{**row, "notes": ""} for row in ROWS])
    x, y = records_of(tmp_path / "out.parquet", tmp_path, schema)
    clean_x, clean_y = records_of(tmp_path / "clean.csv", tmp_path, schema)
    assert x.equal(clean_x)
    np.testing.assert_array_equal(y, clean_y)
    assert len(records_of(tmp_path / "in.csv", tmp_path, schema)[0]) > 400  # lines, as a run has to read it


def test_what_cannot_be_read_is_told_with_its_line_and_left_out(tmp_path, capsys):
    write_csv(tmp_path / "in.csv", ROWS[:30], delimiter=";", broken=(0, 7))
    assert imported(tmp_path, "--delimiter", ";") == 0
    told = capsys.readouterr().out
    assert "28 records" in told
    assert "2 could not be read and are left out; they begin at line 2, 13\n" in told  # some notes have four lines
    kept = pq.read_table(tmp_path / "out.parquet")["patient_id"].to_pylist()
    assert kept == [row["patient_id"] for place, row in enumerate(ROWS[:30]) if place not in (0, 7)]
    assert imported(tmp_path, "--delimiter", ";", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["records"], facts["refused"], facts["foreign"]) == (28, [2, 13], 0)


def test_another_delimiter_is_not_taken_for_a_single_column(tmp_path, capsys):
    write_csv(tmp_path / "in.csv", ROWS[:5], delimiter="\t")
    assert imported(tmp_path) == 2
    assert "single column" in capsys.readouterr().err
    assert imported(tmp_path, "--delimiter", "\\t") == 0
    assert "5 records, 9 columns" in capsys.readouterr().out


def test_a_file_without_a_header_and_with_bytes_of_another_encoding(tmp_path, capsys):
    (tmp_path / "in.csv").write_bytes("1,Müller\n2,Meier\n".encode("latin-1"))
    assert imported(tmp_path) == 2
    assert "--header" in capsys.readouterr().err
    assert imported(tmp_path, "--header", "id,name") == 0
    assert "1 values hold bytes that are no UTF-8" in capsys.readouterr().out
    assert pq.read_table(tmp_path / "out.parquet")["name"].to_pylist() == ["M\ufffdller", "Meier"]


@pytest.mark.parametrize(
    ("content", "out", "message"),
    [("a,b\n", "out.parquet", "no records"), ("a,b\n1,2\n", "out.csv", "--out"), (None, "out.parquet", "no such file")],
)
def test_nothing_is_left_of_an_import_that_fails(tmp_path, capsys, content, out, message):
    if content is not None:
        (tmp_path / "in.csv").write_text(content)
    assert main(["data", "import", str(tmp_path / "in.csv"), "--out", str(tmp_path / out)]) == 2
    assert message in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} <= {"in.csv"}


def read(text, width=3):
    return [record.fields for record in quoted_records(io.StringIO(text, newline=""), width, ",")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('1,"open,no\n2,b,no\n3,c,no\n', [None, ["2", "b", "no"], ["3", "c", "no"]]),
        ('1,"open,no\n2,"b",no\n3,c,no\n', [None, ["2", "b", "no"], ["3", "c", "no"]]),  # pyarrow makes one of two
        ('1,"a "b"\n\nc\nd",no\n2,b,no\n', [None, ["2", "b", "no"]]),
        ('1,"a\nb\nc" d,no\n2,b,no\n', [None, ["2", "b", "no"]]),
        ('1,"a "b" c",no\n2,"a "b" c",no\n3,c,no\n', [None, None, ["3", "c", "no"]]),
        ("1,a\n2,b\n3,c,no,more\n", [None, None, None]),
        ('1, "a, b",no\r\n\r\n2,"c ""d""\r\ne",no\r\n', [["1", "a, b", "no"], ["2", 'c "d"\r\ne', "no"]]),
        ('1,5" nail,no', [["1", '5" nail', "no"]]),
    ],
)
def test_a_broken_record_swallows_no_other(text, expected):
    assert read(text) == expected


FIELDS = st.lists(st.lists(st.text(st.sampled_from([*'ab,"\n\r \t']), max_size=6), min_size=3, max_size=3), max_size=8)


@given(FIELDS, st.sampled_from(["\n", "\r\n"]))
def test_whatever_a_tool_has_quoted_comes_back(rows, end):
    quote = '"'
    text = "".join(",".join(f'"{value.replace(quote, 2 * quote)}"' for value in row) + end for row in rows)
    assert read(text) == rows


# --- look ----------------------------------------------------------------------------------------------------------


def look(tmp_path, path, schema, *options):
    (tmp_path / "schema.yaml").write_text(yaml.safe_dump(schema))
    return main(["data", "check", str(path), "--schema", str(tmp_path / "schema.yaml"), "--read", *options])


def count(column, *values):
    return sum(row[column] in values for row in ROWS)


def test_every_fault_is_counted_and_spelt(tmp_path, capsys):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "in.parquet")
    assert look(tmp_path, tmp_path / "in.parquet", SCHEMA, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["records"] == 400
    unknown = Counter(row["readmitted"] for row in ROWS if row["readmitted"] not in ("no", "yes"))
    assert len(unknown) == 4
    assert facts["labelled"] == 400 - sum(unknown.values())
    columns = facts["columns"]
    assert columns["readmitted"] == {"missing": 0, "unlisted": sum(unknown.values()), "spellings": dict(unknown)}
    assert columns["age"] == {
        "missing": count("age", ""),
        "unreadable": count("age", "forty", "n/a"),
        "out of range": count("age", "250"),
        "spellings": {"forty": count("age", "forty"), "n/a": count("age", "n/a")},
    }
    assert columns["ward"]["missing"] == count("ward", "", "?")
    assert columns["ward"]["spellings"] == {"Cardiology": count("ward", "Cardiology"), "ICU": count("ward", "ICU")}
    assert all(columns["admitted"][kind] == 0 for kind in ("missing", "unreadable", "out of range"))


def test_the_owner_reads_it_on_the_screen_and_nothing_is_written(tmp_path, capsys):
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "in.parquet")
    assert look(tmp_path, tmp_path / "in.parquet", SCHEMA) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Exact figures and values of records, for the data's owner only: not private.")
    lines = {line.split()[0]: line for line in shown.splitlines() if line}
    assert "25.0 %" in lines["readmitted"]
    assert f"'YES' {count('readmitted', 'YES')}" in lines["readmitted"]
    assert "75.0 % of the records have a label that the schema knows" in shown
    assert "spell labels as it does (no, yes)" in shown
    assert look(tmp_path, tmp_path / "in.parquet", STAY) == 0
    assert "have a target that can be read" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"in.parquet", "schema.yaml"}


def test_lines_that_are_no_records_are_told_of_a_csv_file(tmp_path, capsys):
    write_csv(tmp_path / "in.csv", ROWS)
    assert look(tmp_path, tmp_path / "in.csv", SCHEMA, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    with open(tmp_path / "in.csv", newline="") as file:
        assert facts["records"] == len(file.read().rstrip("\r\n").split("\n")) - 1
    whole = [row for row in ROWS if "\n" not in row["notes"]]
    assert facts["records"] - facts["unreadable"] == len(whole)
    assert facts["columns"]["age"]["missing"] == sum(row["age"] == "" for row in whole)
    assert look(tmp_path, tmp_path / "in.csv", SCHEMA) == 0
    assert "lines cannot be read" in capsys.readouterr().out


def test_no_known_label_is_an_answer_of_no(tmp_path, capsys):
    rows = [{**row, "readmitted": str(int(row["readmitted"] == "yes"))} for row in ROWS]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet")
    assert look(tmp_path, tmp_path / "in.parquet", SCHEMA) == 1
    assert "No record has a label that the schema knows.\nA run would learn nothing" in capsys.readouterr().out


def test_numbers_and_dates_as_they_are_stored(tmp_path, capsys):
    """Not as texts: missing is what is null, unreadable what is not finite."""
    table = pa.table(
        {
            "day": pa.array([0, None, 40_000], pa.date32()),
            "dose": [1.0, float("inf"), float("nan")],
            "kind": pa.array([1, 2, None], pa.int8()),
            "y": [0, 1, 1],
        }
    )
    pq.write_table(table, tmp_path / "in.parquet")
    schema = {
        "target": {"name": "y", "classes": [0, 1]},
        "columns": {
            "day": {"range": ["1970-01-01", "2000-01-01"]},
            "dose": {"range": [2, 3]},
            "kind": {"categories": [1]},
        },
    }
    assert look(tmp_path, tmp_path / "in.parquet", schema, "--json") == 0
    columns = json.loads(capsys.readouterr().out)["columns"]
    assert columns["day"] == {"missing": 1, "unreadable": 0, "out of range": 1, "spellings": {}}
    assert columns["dose"] == {"missing": 1, "unreadable": 1, "out of range": 1, "spellings": {"inf": 1}}
    assert columns["kind"] == {"missing": 1, "unlisted": 1, "spellings": {"2": 1}}
    assert columns["y"] == {"missing": 0, "unlisted": 0, "spellings": {}}


# --- the line that a run says --------------------------------------------------------------------------------------


def test_a_run_names_both_commands_whatever_the_file_holds(tmp_path, capsys):
    said = []
    for rows in (ROWS, [{**row, "notes": ""} for row in patients(400, seed=3)]):
        write_csv(tmp_path / "in.csv", rows)
        dataset = {"path": str(tmp_path / "in.csv"), "schema": SCHEMA, "datadir": str(tmp_path / "data")}
        config = config_for("table", "FullDP", dataset=dataset, train_args={"num_epochs": 1, "device": "cpu"},
                            privacy={"epsilon": 8.0, "accountant": "rdp"})  # fmt: skip
        run_experiment(config, tmp_path / "run")
        lines = [line for line in capsys.readouterr().out.splitlines() if "data import" in line]
        assert len(lines) == 1
        said.append(lines[0].partition("INFO: ")[2])
    assert said[0] == said[1]
    assert "data check FILE --schema FILE --read" in said[0]


def test_what_a_run_says_about_reading_depends_on_no_file():
    """There is none at these places."""
    source = find_source("table")
    csv, parquet = (source.remark({"path": f"/nowhere/in.{kind}"}) for kind in ("csv", "parquet"))
    assert csv == source.remark({"path": "/nowhere/other.parquet", "test_path": "/nowhere/test.tsv"})
    assert "data import" in csv
    assert "data import" not in parquet
    assert "--read" in parquet
