"""A column of dates: days in a public range, each value by itself."""

from __future__ import annotations

import datetime
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from cords_dp.cli import main
from cords_dp.data.sources.base import find_source
from cords_dp.data.sources.table.encoding import Encoding
from cords_dp.data.sources.table.schema import load_schema, read_schema
from cords_dp.errors import ConfigError

YAML = """
target: {name: ill, classes: ["no", "yes"]}
columns:
  seen: {range: [2020-01-01, 2020-12-31]}
"""
PLAIN = yaml.safe_load(YAML)


def numbers(*values):
    chunk = {"seen": pa.array(values), "ill": pa.array(["no"] * len(values))}
    return Encoding(read_schema(PLAIN)).rows(chunk)["numbers"][:, 0]


def test_dates_are_days_in_their_range():
    got = numbers("2020-01-01", "2020-12-31", "1999-01-01", "2020-07-01T23:59:00Z", " 2020-07-01 ", "2020-07-01")
    assert got[:3] == pytest.approx([-1, 1, -1])
    assert abs(got[3]) < 0.01
    assert got[3] == got[4] == got[5]  # the time of day is left out


def test_what_is_no_date_is_missing_and_touches_no_other_value():
    alone = numbers("2020-03-01")[0]
    assert np.isnan(numbers("", "NA", "01.03.2020", "2020-02-30", "2020")).all()
    assert numbers("nonsense", "2020-03-01", "")[1] == alone


@pytest.mark.parametrize("stored", [pa.timestamp("s"), pa.timestamp("ms", tz="UTC"), pa.date64()])
def test_a_date_that_no_calendar_has_ends_no_run(stored):
    extreme = pa.array([2**62, -(2**62), 18_262 * 86_400], pa.int64()).cast(stored)
    rows = Encoding(read_schema(PLAIN)).rows({"seen": extreme, "ill": pa.array(["no"] * 3)})
    assert np.isfinite(rows["numbers"]).all()  # moved to an end of the range, as any value outside of it


def test_the_schema_survives_json():
    schema = read_schema(PLAIN)
    plain = json.loads(json.dumps(schema.to_plain()))
    assert plain["columns"][0]["range"] == ["2020-01-01", "2020-12-31"]
    assert read_schema(plain) == schema


@pytest.mark.parametrize(
    "facts",
    [
        {"range": [datetime.date(2020, 1, 1), 5]},
        {"range": ["2020-01-01", "later"]},
        {"range": ["2021-01-01", "2020-01-01"]},
        {"range": ["2020-01-01", "2020-12-31"], "log": True},
        {"range": ["2020-01-01", "2020-12-31"], "bins": [1, 2]},
    ],
)
def test_other_ranges_are_refused(facts):
    with pytest.raises(ConfigError, match=r"schema\.columns\.seen"):
        read_schema({**PLAIN, "columns": {"seen": facts}})


def test_bins_of_dates():
    schema = read_schema({**PLAIN, "columns": {"seen": {"range": ["2020-01-01", "2020-12-31"], "bins": 4}}})
    rows = Encoding(schema).rows({"seen": pa.array(["2020-01-02", "2020-12-30", ""])})
    assert rows["codes"][:, 0].tolist() == [0, 3, 4]


@pytest.mark.parametrize("stored", [pa.date32(), pa.timestamp("us"), pa.timestamp("ns", tz="UTC")])
def test_parquet_s_own_dates(tmp_path, capsys, stored):
    when = pa.array([datetime.date(2020, 1, 1), datetime.date(2020, 12, 31), None], pa.date32()).cast(stored)
    pq.write_table(pa.table({"seen": when, "ill": ["no", "yes", "no"]}), tmp_path / "t.parquet")
    (tmp_path / "s.yaml").write_text(YAML)
    assert main(["data", "check", str(tmp_path / "t.parquet"), "--schema", str(tmp_path / "s.yaml")]) == 0
    read = find_source("table").read({"schema": read_schema(PLAIN).to_plain()}, str(tmp_path / "t.parquet"))
    assert read.batch([0, 1, 2])[0].tolist() == [[-1, 0], [1, 0], [0, 1]]  # the second cell is that of missing ones
    (tmp_path / "n.yaml").write_text(YAML.replace("[2020-01-01, 2020-12-31]", "[0, 1]"))
    assert main(["data", "check", str(tmp_path / "t.parquet"), "--schema", str(tmp_path / "n.yaml")]) == 2
    assert "range has to be one of dates" in capsys.readouterr().err


def test_a_range_of_dates_is_declared_on_the_command_line(tmp_path):
    (tmp_path / "t.csv").write_text("seen,ill\n2020-01-01,no\n")
    command = ["data", "describe", str(tmp_path / "t.csv"), "--target", "ill", "--categories", "ill=no,yes"]
    out = tmp_path / "s.yaml"
    assert main([*command, "--range", "seen=2020-01-01:2020-12-31", "--public-schema", str(out)]) == 0
    assert load_schema(out) == read_schema(PLAIN)
    assert main([*command, "--range", "seen=2020-01-01:soon"]) == 2


def test_dates_are_trained_on_and_predicted(make_config, tmp_path):
    from cords_dp import load_model
    from cords_dp.runs.run import run_experiment

    days = [datetime.date(2020, 1, 1) + datetime.timedelta(days=i % 366) for i in range(1500)]
    lines = [f"{day},{'yes' if day.month > 6 else 'no'}" for day in days]
    (tmp_path / "t.csv").write_text("seen,ill\n" + "\n".join(lines) + "\n")
    section = {"path": str(tmp_path / "t.csv"), "schema": PLAIN, "datadir": str(tmp_path), "test": "public"}
    config = make_config("FullDP", "table", dataset=section, privacy={"epsilon": 8.0})
    assert run_experiment(config, tmp_path / "run", progress=False).accuracy > 0.9
    (tmp_path / "new.csv").write_text("seen\n2020-02-01\n2020-11-01\n")
    assert load_model(tmp_path / "run").predict_file(tmp_path / "new.csv")["prediction"].tolist() == ["no", "yes"]
