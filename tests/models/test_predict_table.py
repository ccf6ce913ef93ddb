"""Predictions for tables: one row for each record of a CSV file as every tool writes it, and pandas tables."""

from __future__ import annotations

import csv

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hospital import SCHEMA, STAY, messy, patients, write_csv

from cords_dp import load_model
from cords_dp.cli import main
from cords_dp.config import config_for
from cords_dp.errors import ConfigError, DatasetUnavailableError
from cords_dp.runs.run import run_experiment

CLINIC = patients(600)
NEW = patients(60, seed=1)


def train(folder, name, schema, **changes):
    pq.write_table(pa.Table.from_pylist(CLINIC), folder / "clinic.parquet")
    dataset = {"path": str(folder / "clinic.parquet"), "schema": schema, "datadir": str(folder / "data")}
    training = {"num_epochs": 4, "print_every": 4, "device": "cpu", "seed": 0}
    privacy = {"epsilon": 8.0, "accountant": "rdp", "reproducible_noise": True}
    dataset.update(changes.pop("dataset", {}))
    config = config_for("table", "FullDP", dataset=dataset, train_args=training, privacy=privacy, **changes)
    run_experiment(config, folder / name, progress=False)
    return folder / name


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("clinic"), "run", SCHEMA, dataset={"scaling": "private"})


@pytest.fixture(scope="module")
def stay_run(tmp_path_factory):
    return train(tmp_path_factory.mktemp("clinic"), "run", STAY, loss={"type": "MeanSquaredLoss"})


@pytest.fixture(scope="module")
def expected(run, tmp_path_factory):
    """By a file without a note, on which nobody can stumble."""
    path = tmp_path_factory.mktemp("clean") / "clean.csv"
    write_csv(path, [{**row, "notes": ""} for row in NEW])
    return load_model(run).predict_file(path)


def predicted(out):
    with open(out, newline="") as file:
        return list(csv.DictReader(file))


def test_a_note_with_line_breaks_stays_in_its_record(run, expected, tmp_path):
    assert sum("\n" in row["notes"] for row in NEW) == 20
    write_csv(tmp_path / "new.csv", NEW)
    pd.testing.assert_frame_equal(load_model(run).predict_file(tmp_path / "new.csv"), expected)


def test_the_command_copies_identifiers_and_tells_what_it_could_not_read(run, expected, tmp_path, capsys):
    rows = [{**row, "room": "12"} for row in NEW]  # the schema knows no rooms
    write_csv(tmp_path / "new.csv", rows, delimiter=";", broken=(3, 17))
    command = ["predict", str(run), "--input", str(tmp_path / "new.csv"), "--out", str(tmp_path / "p.csv"), "--quiet"]
    assert main([*command, "--id", "patient_id", "--delimiter", ";"]) == 0
    told = capsys.readouterr().out
    assert "60 predictions" in told
    assert "2 of the records could not be read; their rows are empty" in told
    found = predicted(tmp_path / "p.csv")
    assert len(found) == len(NEW)
    for place, (row, patient) in enumerate(zip(found, NEW, strict=True)):
        if place in (3, 17):
            assert (row["patient_id"], row["prediction"], row["p_yes"]) == ("", "", "")
        else:
            assert row["patient_id"] == patient["patient_id"]
            assert float(row["p_yes"]) == pytest.approx(expected["p_yes"][place], rel=1e-5)
    assert list(found[0]) == ["record", "patient_id", "prediction", "p_no", "p_yes"]
    assert main(command) == 2
    assert "single column" in capsys.readouterr().err


def test_a_quotation_mark_that_is_not_closed_costs_its_own_record_only(run, expected, tmp_path):
    write_csv(
        tmp_path / "new.csv", [{**row, "notes": "well" if row["patient_id"] != "P000010" else "open"} for row in NEW]
    )
    text = (tmp_path / "new.csv").read_text()
    (tmp_path / "new.csv").write_text(text.replace(",open,", ',"open,'))
    frame = load_model(run).predict_file(tmp_path / "new.csv", id_column="patient_id")
    assert len(frame) == len(NEW)
    assert frame.index[frame["p_yes"].isna()].tolist() == [10]
    others = frame.index != 10
    assert frame["patient_id"][others].tolist() == [row["patient_id"] for row in NEW if row["patient_id"] != "P000010"]
    np.testing.assert_array_equal(frame["p_yes"][others], expected["p_yes"][others])


def test_identifiers_of_other_files(run, stay_run, tmp_path):
    numbered = [{**row, "patient_id": place} for place, row in enumerate(NEW)]
    pq.write_table(pa.Table.from_pylist(numbered), tmp_path / "new.parquet")
    frame = load_model(run).predict_file(tmp_path / "new.parquet", id_column="patient_id")
    assert frame["patient_id"].tolist() == list(range(len(NEW)))
    write_csv(tmp_path / "new.csv", NEW, broken=(5,))
    stays = load_model(stay_run).predict_file(tmp_path / "new.csv", id_column="patient_id")
    assert stays.index[stays["prediction"].isna()].tolist() == [5]
    for column, message in (("nobody", "no such column"), ("record", "rename it")):
        pq.write_table(pa.Table.from_pylist([{**row, "record": "1"} for row in NEW]), tmp_path / "odd.parquet")
        with pytest.raises(ConfigError, match=f"--id = '{column}'.*{message}"):
            load_model(run).predict_file(tmp_path / "odd.parquet", id_column=column)


# --- pandas tables -------------------------------------------------------------------------------------------------


def test_a_data_frame_is_predicted_as_its_file_is(run, tmp_path):
    """Read by pandas, which takes numbers for numbers and empty fields for missing ones; any order, other columns."""
    rows = messy(NEW)
    write_csv(tmp_path / "new.csv", rows)
    model = load_model(run)
    expected = model.predict_file(tmp_path / "new.csv")
    frame = pd.read_csv(tmp_path / "new.csv")
    frames = {
        "as read": frame,
        "texts": pd.DataFrame(rows),
        "another order": frame[frame.columns[::-1]].assign(room=3),
        "only what is needed": frame[list(SCHEMA["columns"])],
        "dates": frame.assign(admitted=pd.to_datetime(frame["admitted"]).dt.tz_localize("Europe/Berlin")),
        "categories": frame.astype({"ward": "category", "sex": "string"}),
    }
    for name, given in frames.items():
        np.testing.assert_array_equal(model.predict_proba(given), expected[["p_no", "p_yes"]], err_msg=name)
        assert model.predict(given).tolist() == expected["prediction"].tolist()
    assert len(model.predict(frame[:0])) == 0


def test_a_data_frame_of_a_regression(stay_run, tmp_path):
    write_csv(tmp_path / "new.csv", NEW)
    model = load_model(stay_run)
    days = model.predict(pd.DataFrame(NEW))
    assert days.shape == (60,)
    np.testing.assert_array_equal(days, model.predict_file(tmp_path / "new.csv")["prediction"])


def test_cells_are_still_taken_as_they_are(run):
    model = load_model(run)
    x = model._source()[0].read_frame(model._source()[1], pd.DataFrame(NEW)).batch(np.arange(len(NEW)))[0].numpy()
    expected = model.predict_proba(pd.DataFrame(NEW))
    for cells in (x, pd.DataFrame(x.copy())):
        np.testing.assert_allclose(model.predict_proba(cells), expected, rtol=1e-4)


def test_a_data_frame_without_the_schema_s_columns_is_refused(run):
    model, frame = load_model(run), pd.DataFrame(NEW)
    with pytest.raises(DatasetUnavailableError, match=r"the DataFrame has no column 'ward', which the schema names$"):
        model.predict_proba(frame.drop(columns="ward"))
    with pytest.raises(DatasetUnavailableError, match="column 'age' of the DataFrame is stored as date"):
        model.predict(frame.assign(age=pd.Timestamp("2020-01-01")))


@pytest.mark.parametrize("spelling", [[True, False], ["True", "False"], [True, False, None]])
def test_categories_that_pandas_does_not_take_for_texts(tmp_path, spelling):
    """0 and 1 with gaps become 0.0 and 1.0, True and False become booleans; in the file they are texts."""
    from cords_dp.data.sources.base import find_source

    schema = {
        "target": {"name": "y", "classes": ["a", "b"]},
        "columns": {"flag": {"categories": ["True", "False"]}, "code": {"categories": [0, 1]}},
    }
    source = find_source("table")
    card = source.card({"schema": schema})
    codes = [0, 1, np.nan][: len(spelling)]
    frame = pd.DataFrame({"flag": spelling, "code": codes})
    (tmp_path / "t.csv").write_text("flag,code\nTrue,0\nFalse,1\n,\n")
    expected = source.read(card, str(tmp_path / "t.csv")).batch(np.arange(len(frame)))[0]
    assert source.read_frame(card, frame).batch(np.arange(len(frame)))[0].equal(expected)
