"""Tables: the schema, what a record becomes, files of every kind and state, and a run from CSV."""

from __future__ import annotations

import io
import json
import stat
import traceback

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cords_dp.config import config_for
from cords_dp.data.build import build_dataset
from cords_dp.data.sources.base import find_source
from cords_dp.data.sources.table import csv_lines as lines
from cords_dp.data.sources.table.csv_lines import SEPARATOR, clean_blocks
from cords_dp.data.sources.table.encoding import Encoding
from cords_dp.data.sources.table.schema import Numeric, read_schema
from cords_dp.errors import ConfigError, CordsDPError, DataError, DatasetUnavailableError
from cords_dp.training.trainer import TrainClassifier

PLAIN = {
    "target": {"name": "income", "classes": ["low", "high"]},
    "columns": {
        "age": {"range": [0, 100]},
        "sex": {"categories": ["Male", "Female"]},
        "hours": {"range": [0, 80], "bins": 4},
        "wealth": {"range": [-1000, 1000000], "log": True},
    },
    "ignore": ["id"],
}
SCHEMA = read_schema(PLAIN)
CSV = """id,age,sex,hours,wealth,income
1,50, Male,30,0,low
2,150,Female,80,-99999,high
3,,Other,,x,high
4,25,?,10,"1,000",nobody
5,0,"Female",20,1000000,low
"""


def table(tmp_path, content=CSV, name="people.csv", **section):
    """The records of a file through the source, all of them in the training set."""
    path = tmp_path / name
    if isinstance(content, str):
        content = content.encode()
    if content is not None:
        path.write_bytes(content)
    parts = dict(validation_path=str(path), test_path=str(path))
    section = {"name": "table", "path": str(path), "schema": PLAIN, "datadir": str(tmp_path / "data"), **section}
    source = find_source("table")
    source.check(section, private=True)
    splits = build_dataset({"dataset": {**parts, **section}}, np.random.default_rng(0))
    order = np.argsort(splits.train.rows)
    return splits, splits.train.batch(order)


def silent(error):
    """The text of an error and of everything that its traceback would show as a cause."""
    assert error.value.__cause__ is None
    assert error.value.__context__ is None
    return "".join(traceback.format_exception_only(error.value))


# --- what a record becomes ----------------------------------------------------------------------------------------


def test_values_are_clamped_and_unknown_and_missing_ones_have_cells(tmp_path):
    _, (x, y) = table(tmp_path)
    cells = x * 2  # four columns: every cell is divided by √4
    assert x.shape == (5, 2 + 4 + 5 + 2)
    assert y.tolist() == [0, 1, 1, -100, 0]
    assert cells[:, 0].tolist() == [0, 1, 0, -0.5, -1]  # age: 150 is moved to 100
    assert cells[:, 1].tolist() == [0, 0, 1, 0, 0]
    assert cells[:, 2:6].argmax(dim=1).tolist() == [0, 1, 2, 3, 1]  # Male, Female, unknown, missing
    assert cells[:, 6:11].argmax(dim=1).tolist() == [1, 3, 4, 0, 1]  # four bins, missing
    assert cells[:, 12].tolist() == [0, 0, 1, 1, 0]  # x and 1,000 are no numbers
    assert cells[1, 11] == -1
    assert cells[4, 11] == 1


TEXTS = st.text(max_size=6) | st.sampled_from(
    ["Male", " Female ", "", "?", "12", "1e3", "-5", "inf", "nan", "0x1", "1_0"]
)
RECORDS = st.lists(st.tuples(TEXTS, TEXTS, TEXTS, TEXTS, TEXTS), min_size=1, max_size=12)
NAMES = ("age", "sex", "hours", "wealth", "income")


def encoded(records):
    columns = zip(*records, strict=True)
    chunk = {name: pa.array(list(values), pa.string()) for name, values in zip(NAMES, columns, strict=True)}
    encoding = Encoding(SCHEMA)
    rows = encoding.rows(chunk)
    return encoding.vectors(rows), rows["label"]


@settings(max_examples=50)
@given(RECORDS)
def test_a_record_becomes_the_same_alone_and_among_others(records):
    together, labels = encoded(records)
    for i, record in enumerate(records):
        alone, label = encoded([record])
        np.testing.assert_array_equal(together[i], alone[0])
        assert labels[i] == label[0]


@settings(max_examples=50)
@given(RECORDS)
def test_no_record_is_longer_than_one(records):
    vectors, _ = encoded(records)
    assert np.isfinite(vectors).all()
    assert (np.linalg.norm(vectors.astype(np.float64), axis=1) <= 1 + 1e-6).all()


@given(st.floats(-1e6, 1e6), st.booleans())
def test_a_regression_is_told_in_its_own_unit(value, log):
    column = Numeric("y", -500.0, 2000.0, log=log)
    assert column.unscaled(column.scaled(np.array([value])))[0] == pytest.approx(np.clip(value, -500, 2000), abs=1e-6)


# --- lines --------------------------------------------------------------------------------------------------------

LINES = st.lists(
    st.text(st.sampled_from([*'ab,,,"\r\x1f \té\ufeff']), max_size=12).map(str.encode)
    | st.binary(max_size=8).map(lambda line: line.replace(b"\n", b"")),
    min_size=1,
    max_size=8,
)


@given(LINES, st.integers(1, 40))
def test_a_line_is_read_by_itself_wherever_blocks_end(given_lines, block):
    given_lines = [*given_lines, b"a,b,c"]  # blank lines at the end are left out
    text = b"\n".join(given_lines) + b"\n"
    together = b"".join(clean_blocks(io.BytesIO(text), 3, ",", block=block)).split(b"\n")[:-1]
    assert len(together) == len(given_lines)
    for got, line in zip(together, given_lines, strict=True):
        alone = b"".join(clean_blocks(io.BytesIO(line + b"\na,b,c\n"), 3, ",")).split(b"\n")[0]
        assert got == alone
        assert got.count(SEPARATOR.encode()) == 2


def test_a_line_that_never_ends_is_one_record(monkeypatch):
    monkeypatch.setattr(lines, "_LONGEST_LINE", 100)
    for length in (90, 101, 150, 1000):
        text = b"a,b\n" + b"x" * length + b",y\nc,d\n"
        for block in (16, 64, 100):
            got = b"".join(clean_blocks(io.BytesIO(text), 2, ",", block=block)).split(b"\n")[:-1]
            assert (len(got), got[0], got[2]) == (3, b"a\x1fb", b"c\x1fd")
            assert got[1] == (b"x" * length + b"\x1fy" if length + 2 <= 100 else b"\x1f")


@pytest.mark.parametrize(
    "bad", ['9,"50,Male,3,4,low', "9,50", "", '"', "9,50,Male,30,0,low,more", "\x00", "9,5\r0,Male,1,1,low"]
)
def test_a_bad_line_is_a_record_without_a_label_and_touches_no_other(tmp_path, bad):
    first, *rest = CSV.splitlines()
    _, (x, y) = table(tmp_path)
    _, (x_bad, y_bad) = table(tmp_path, "\n".join([first, rest[0], bad, *rest[1:]]) + "\n")
    others = [0, 2, 3, 4, 5]
    assert x_bad[others].equal(x)
    assert y_bad[others].equal(y)
    assert y_bad[1] == -100


def test_the_end_of_a_file_may_be_blank_or_missing(tmp_path):
    expected = table(tmp_path)[1][0]
    for content in (CSV.rstrip("\n"), CSV + "\n\r\n \n", CSV.replace("\n", "\r\n"), "\ufeff" + CSV):
        assert table(tmp_path, content)[1][0].equal(expected)


# --- files --------------------------------------------------------------------------------------------------------

VALUES = {
    "age": [50, 150, 25],
    "sex": ["Male", "Female", "Other"],
    "hours": [30.0, 80.0, 10.0],
    "wealth": [0.0, -5.0, float("nan")],
    "income": ["low", "high", "high"],
}


def parquet(columns):
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def archive(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def test_csv_parquet_and_npz_hold_the_same_records(tmp_path):
    header = ",".join(VALUES)
    text = "\n".join([header, *(",".join(map(str, row)) for row in zip(*VALUES.values(), strict=True))])
    expected = table(tmp_path, text)[1]
    numbers = pa.array(VALUES["age"], pa.int16())
    coded = {**VALUES, "sex": pa.array(VALUES["sex"]).dictionary_encode(), "age": numbers}
    arrays = {name: np.array(column) for name, column in VALUES.items()}
    contents = {
        "a.parquet": parquet(VALUES),
        "b.parquet": parquet(coded),
        "c.npz": archive(**arrays),
        "d.npz": archive(**{**arrays, "sex": arrays["sex"].astype("S"), "age": arrays["age"].astype(">f4")}),
    }
    for name, content in contents.items():
        x, y = table(tmp_path, content, name)[1]
        assert x.equal(expected[0]), name
        assert y.equal(expected[1]), name


def test_bytes_that_are_no_text_spoil_their_own_value_only(tmp_path):
    """In Parquet and .npz, as in CSV: neither does the run fail, nor does another record change."""
    expected = table(tmp_path, parquet(VALUES), "good.parquet")[1]
    raw = pa.array([b"Male", b"\xff\xfe", b"Other"])
    broken = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    arrays = {name: np.array(column) for name, column in VALUES.items()}
    contents = {
        "bad.parquet": parquet({**VALUES, "sex": broken}),
        "bad.npz": archive(**{**arrays, "sex": np.array(["Male", "\ud800", "Other"])}),
        "bad.csv": b"age,sex,hours,wealth,income\n50,Male,30,0,low\n150,\xff,80,-5,high\n25,Other,10,,high\n",
    }
    for name, content in contents.items():
        x, y = table(tmp_path, content, name)[1]
        assert x[[0, 2]].equal(expected[0][[0, 2]]), name
        assert x[1, 2:6].argmax() >= 2, name  # unknown, or missing
        assert y.equal(expected[1])


def test_an_index_without_a_name_can_be_ignored(tmp_path):
    content = CSV.replace("id,age", ",age")
    with pytest.raises(DatasetUnavailableError, match="number 1 of its header"):
        table(tmp_path, content)
    schema = {**PLAIN, "ignore": ["column 1"]}
    assert table(tmp_path, content, schema=schema)[1][0].equal(table(tmp_path, name="b.csv")[1][0])


def test_another_delimiter_is_another_copy(tmp_path):
    schema = {**PLAIN, "header": ["id", *NAMES]}
    body = CSV.split("\n", 1)[1].replace('"1,000"', "x")
    x, _ = table(tmp_path, body.replace(",", ";"), schema=schema, delimiter=";")[1]
    spoiled, _ = table(tmp_path, None, schema=schema)[1]
    assert not x.equal(spoiled)
    assert (spoiled * 2)[:, 1].tolist() == [1] * 5  # every line has one field: nothing is known


def test_a_matrix_with_named_columns_is_a_table(tmp_path):
    schema = {"target": {"classes": [0, 1]}, "columns": {"a": {"range": [0, 1]}, "b": {"range": [0, 1]}}}
    content = archive(x=np.eye(2, dtype=np.float32), columns=np.array(["a", "b"]), y=np.array([0, 1]))
    _, (x, y) = table(tmp_path, content, "m.npz", schema=schema, target="label")
    assert y.tolist() == [0, 1]
    assert (x[:, [0, 2]] * 2**0.5).round().tolist() == [[1, -1], [-1, 1]]


def test_a_file_without_a_header_has_one_in_the_schema(tmp_path):
    body = CSV.split("\n", 1)[1]
    with pytest.raises(DatasetUnavailableError, match="does not name the columns") as error:
        table(tmp_path, body)
    assert "Male" not in silent(error)
    schema = {**PLAIN, "header": ["id", *NAMES]}
    assert table(tmp_path, body, schema=schema)[1][0].equal(table(tmp_path, name="named.csv")[1][0])


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("id,age,sex,hours,wealth,SECRET,income", r"people\.csv has columns .*number 6 of its header"),
        ("id,age,sex,hours,income", "people.csv has no column 'wealth'"),
        ("id,age,age,sex,hours,wealth,income", "names a column twice"),
        ("", "does not name the columns"),
    ],
)
def test_columns_must_be_those_of_the_schema(tmp_path, header, message):
    with pytest.raises(DatasetUnavailableError, match=message) as error:
        table(tmp_path, header + "\n1,2,3,4,5,6\n")
    assert "SECRET" not in silent(error)


@pytest.mark.parametrize("name", ["people.parquet", "people.npz"])
def test_a_damaged_file_says_nothing_about_what_is_in_it(tmp_path, name):
    whole = parquet(VALUES) if name.endswith("parquet") else archive(**{k: np.array(v) for k, v in VALUES.items()})
    for content in (b"", b"Male,50", whole[: len(whole) // 2]):
        with pytest.raises(DatasetUnavailableError, match=f"{name} cannot be read") as error:
            table(tmp_path, content, name)
        silent(error)
    spoiled = bytearray(whole)
    spoiled[8 : len(whole) // 3] = bytes(len(whole) // 3 - 8)
    with pytest.raises(DatasetUnavailableError) as error:
        table(tmp_path, bytes(spoiled), name)
    silent(error)
    assert not list((tmp_path / "data").rglob("*.rows")), "nothing half-written"
    assert not list((tmp_path / "data").rglob("*.tmp"))


def test_types_that_are_neither_numbers_nor_texts_are_named(tmp_path):
    timed = {**VALUES, "age": pa.array([0, 1, 2], pa.duration("s"))}
    with pytest.raises(DatasetUnavailableError, match=r"column 'age' of t\.parquet is stored as duration"):
        table(tmp_path, parquet(timed), "t.parquet")


def test_a_table_without_records_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"people\.csv has no records"):
        table(tmp_path, CSV.splitlines()[0] + "\n")


# --- the compact copy ---------------------------------------------------------------------------------------------


def test_the_compact_copy_is_for_its_owner_and_made_once(tmp_path, monkeypatch):
    from cords_dp.data.sources.table import store

    first = table(tmp_path)[1][0]
    (copy,) = (tmp_path / "data" / "tables").glob("*.rows")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert "private" in (copy.parent / "README.txt").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(store, "_convert", None)
        assert table(tmp_path, None)[1][0].equal(first)
    table(tmp_path, CSV.replace("50, Male", "51, Male"))
    (changed,) = (tmp_path / "data" / "tables").glob("*.rows")
    assert changed.name != copy.name
    assert table(tmp_path, cache=False)[1][0].shape == first.shape


def test_without_a_cache_nothing_stays(tmp_path):
    table(tmp_path, cache=False)
    assert not [path for path in (tmp_path / "data").rglob("*") if path.is_file()]


def test_an_interrupted_conversion_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(self, chunk):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Encoding, "rows", interrupted)
        with pytest.raises(KeyboardInterrupt):
            table(tmp_path)
    assert {path.suffix for path in (tmp_path / "data" / "tables").iterdir()} <= {".txt", ".lock"}
    table(tmp_path)


# --- the schema ---------------------------------------------------------------------------------------------------


def changed(**columns):
    return {**PLAIN, "columns": {**PLAIN["columns"], **columns}}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (None, "dataset.schema = None"),
        ("nowhere.yaml", "nowhere.yaml.*no such file"),
        ({**PLAIN, "colums": {}}, "schema.colums.*did you mean 'columns'"),
        ({**PLAIN, "columns": {}}, "schema.columns"),
        ({**PLAIN, "columns": [{"range": [0, 1]}]}, "schema.columns.*entry 1"),
        ({**PLAIN, "target": {}}, "schema.target"),
        ({**PLAIN, "target": {"name": "income", "classes": ["one"]}}, "two or more"),
        (changed(age="TODO"), "schema.columns.age = 'TODO': still to be filled in"),
        (changed(age={"range": "TODO"}), "schema.columns.age.range = 'TODO': still to be filled in"),
        (changed(sex={"categories": "TODO"}), "schema.columns.sex.categories = 'TODO': still to be filled in"),
        (changed(age={"range": [1, 1]}), "the first must be below"),
        (changed(age={"range": [1, float("inf")]}), "two numbers"),
        (changed(age={"range": [0, 1], "categories": ["a"]}), "schema.columns.age"),
        (changed(age={"range": [0, 9], "bins": [3, 2]}), "ascending"),
        (changed(age={"range": [0, 9], "bins": [3, 10]}), "inside of the range"),
        (changed(age={"range": [0, 9], "bins": 1}), "schema.columns.age.bins"),
        (changed(sex={"categories": ["a", " a"]}), "stands twice"),
        (changed(sex={"categories": [True, False]}), "in quotes"),
        (changed(income={"range": [0, 1]}), "named twice"),
        ({**PLAIN, "header": ["age", "strange"]}, "schema.header = 'strange'"),
    ],
)
def test_a_schema_is_checked_before_the_file_is_opened(tmp_path, schema, message):
    with pytest.raises(ConfigError, match=message):
        table(tmp_path, None, schema=schema)


def test_a_schema_is_written_and_read_back(tmp_path):
    assert read_schema(json.loads(json.dumps(SCHEMA.to_plain(), sort_keys=True))) == SCHEMA
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(PLAIN, sort_keys=False))
    _, (x, _) = table(tmp_path, schema=str(tmp_path / "s.yaml"))
    assert x.equal(table(tmp_path, name="b.csv")[1][0])
    with pytest.raises(ConfigError, match=r"dataset\.target = 'age': the schema's target is 'income'"):
        table(tmp_path, target="age")
    binned = find_source("table").facts({"schema": PLAIN, "binning": 10})
    assert binned.shape == (11 + 4 + 5 + 11,)


def test_prediction_reads_a_file_without_a_target(tmp_path):
    _, (x, _) = table(tmp_path)
    source = find_source("table")
    card = json.loads(json.dumps(source.card({"schema": PLAIN})))
    (tmp_path / "new.csv").write_text("\n".join(line.rsplit(",", 1)[0] for line in CSV.splitlines()))
    new = source.read(card, str(tmp_path / "new.csv"))
    assert new.batch(np.arange(5))[0].equal(x)
    assert card["classes"] == ["low", "high"]
    card = source.card({"schema": {**PLAIN, "header": ["id", *NAMES]}})
    for content in (CSV.splitlines()[1:], [line.rsplit(",", 1)[0] for line in CSV.splitlines()[1:]]):
        (tmp_path / "unnamed.csv").write_text("\n".join(content))
        assert source.read(card, str(tmp_path / "unnamed.csv")).batch(np.arange(5))[0].equal(x)


# --- training -----------------------------------------------------------------------------------------------------


def people(n, seed=0):
    rng = np.random.default_rng(seed)
    age, sex, hours = rng.uniform(0, 100, n), rng.choice(["Male", "Female", "Other"], n), rng.uniform(0, 80, n)
    rich = (age - 50) / 20 + (sex == "Female") * 2 - 1 + (np.abs(hours - 40) > 20) > 0
    rows = (
        f"{i},{a:.1f},{s},{h:.0f},0,{'high' if r else 'low'}"
        for i, (a, s, h, r) in enumerate(zip(age, sex, hours, rich, strict=True))
    )
    return "\n".join(["id,age,sex,hours,wealth,income", *rows]) + "\n"


def training(tmp_path, strategy="FullDP", epochs=4, **changes):
    path = tmp_path / "people.csv"
    if not path.is_file():
        path.write_text(people(1500))
    dataset = dict(path=str(path), target="income", schema=PLAIN, datadir=str(tmp_path / "data"))
    config = config_for(
        "table",
        strategy,
        dataset={**dataset, **changes.pop("dataset", {})},
        dss_args={} if strategy == "FullDP" else {"fraction": 0.4},
        train_args=dict(num_epochs=epochs, print_every=2, device="cpu", seed=0, results_dir=str(tmp_path / "r")),
        ckpt=dict(dir=str(tmp_path / "r"), save_every=1, **changes.pop("ckpt", {})),
        privacy=dict(epsilon=3.0, accountant="rdp", reproducible_noise=True, **changes.pop("privacy", {})),
    )
    for section, values in changes.items():
        config[section].update(values)
    return config


def trained(config):
    trainer = TrainClassifier(config)
    trainer.show_progress = False
    trainer.train()
    return trainer


@pytest.mark.parametrize("strategy", ["FullDP", "GLISTERDP"])
def test_a_csv_file_trains_with_a_planned_learning_rate(tmp_path, strategy):
    trainer = trained(training(tmp_path, strategy))
    assert trainer.history.last("tst_acc") > 0.8
    shape = trainer.plan.shape  # a fifth is for testing; of the others a tenth of the file where V is read
    assert (shape.n, shape.n_validation) == ((1200, 0) if strategy == "FullDP" else (1050, 150))
    assert trainer.plan.spent(trainer.ledger).epsilon <= 3.0


def test_a_regression_on_a_numeric_target(tmp_path):
    schema = {
        **PLAIN,
        "target": {"name": "age", "range": [0, 100]},
        "columns": dict(list(PLAIN["columns"].items())[1:]),
    }
    schema["columns"]["income"] = {"categories": ["low", "high"]}
    dataset = dict(schema=schema, target="age")
    config = training(tmp_path, dataset=dataset, loss={"type": "MeanSquaredLoss"})
    assert trained(config).history.last("tst_rmse") < 28.8  # of a constant prediction, in years; released with noise
    with pytest.raises(ConfigError, match=r"loss\.type.*MeanSquaredLoss"):
        trained(training(tmp_path, dataset=dataset))
    with pytest.raises(ConfigError, match="labels of table are classes"):
        trained(training(tmp_path, loss={"type": "MeanSquaredLoss"}))


def test_a_run_is_resumed_on_the_same_rows(tmp_path):
    trained(training(tmp_path, epochs=4, ckpt={"is_save": True}))
    resumed = trained(training(tmp_path, epochs=4, ckpt={"is_load": True}))
    assert resumed.history.last("epoch") == 4
    with pytest.raises(CordsDPError, match="other data"):
        trained(training(tmp_path, epochs=4, ckpt={"is_load": True}, dataset={"binning": 8}))


def test_labels_that_are_no_class_change_nothing_but_their_record(tmp_path):
    """A record whose label is no class contributes zero: the same as any other such record."""
    text = people(1500).splitlines()
    released = []
    for label in ("nobody", "", "low,high"):
        text[7] = text[7].rsplit(",", 1)[0] + "," + label
        (tmp_path / "people.csv").write_text("\n".join(text) + "\n")
        released.append(trained(training(tmp_path, epochs=2)).model.state_dict()["linear.weight"])
    assert torch.isfinite(released[0]).all()
    assert released[0].equal(released[1])
    assert released[0].equal(released[2])
