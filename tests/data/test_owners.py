"""Owners: names become numbers, sets are made of whole owners, and nothing tells who they are."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cords_dp.config import config_for
from cords_dp.data.build import build_dataset
from cords_dp.data.owners import Numbered, Owners, own_file, owner_rows
from cords_dp.data.sources.base import find_source
from cords_dp.errors import ConfigError, DataError
from cords_dp.noise.generators import Streams
from cords_dp.training.resolve import resolve
from tests.hospital import SCHEMA, patients, write_csv

SECRET = "Zaphod"  # begins every name, so that a leak is found


def visits(n, each=5, seed=0):
    """A hospital's table with several rows of most patients, in any order; every 40th row has no name."""
    rows = patients(n, seed)
    rng = np.random.default_rng([seed, 7])
    for place, row in enumerate(rows):
        row["notes"] = "stable"  # the others run over several lines, which only `data import` reads
        row["patient_id"] = "" if place % 40 == 0 else f"{SECRET}{rng.integers(n // each)}"
    return rows


def hospital(folder, n=600, **dataset):
    path = folder / "visits.csv"
    if not path.is_file():
        write_csv(path, visits(n))
    section = {"path": str(path), "schema": SCHEMA, "owner": "patient_id", "datadir": str(folder / "data")}
    return config_for(
        "table",
        "FullDP",
        dataset={**section, **dataset},
        train_args=dict(num_epochs=3, device="cpu", seed=0, results_dir=str(folder / "r"), print_every=1),
        privacy=dict(epsilon=3.0, accountant="rdp", reproducible_noise=True),
    )


def built(config, seed=0):
    return build_dataset(resolve(config, plan=False).config, Streams(seed).numpy("data"))


def names_in(records, rows):
    return {rows[place]["patient_id"] for place in records.rows} - {""}


# --- names ------------------------------------------------------------------------------------------------------------


def test_equal_names_are_one_owner_and_a_missing_name_is_an_owner_of_one_record():
    names = ["ann", " ann ", b"ann", 7, 7.0, np.int64(7), "7", "7.0", None, "", "  ", float("nan"), None]
    codes = Numbered().codes(names)
    assert len(set(codes[:3])) == 1
    assert len(set(codes[3:8])) == 1
    assert len(set(codes[8:])) == 5
    assert codes[0] != codes[3]


def test_names_mean_the_same_in_all_files_of_a_run():
    numbered = Numbered()
    first, second = numbered.codes(["a", "b", None]), numbered.codes(["b", "c", None, "a"])
    assert second[0] == first[1]
    assert second[3] == first[0]
    assert len({*first, *second}) == 5


def test_the_records_of_an_owner_have_the_mass_of_one_record():
    owners = Owners(np.array([0, 2, 2, 2, 0, 1]), 4)
    assert owners.masses == pytest.approx([1 / 2, 1 / 3, 1 / 3, 1 / 3, 1 / 2, 1])
    assert owners.at(np.array([0, 1, 2])).masses == pytest.approx([1, 1 / 2, 1 / 2])


# --- splits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.1, None])  # without one, nothing reads V: its owners are in D
def test_sets_are_made_of_whole_owners(tmp_path, share):
    data, rows = built(hospital(tmp_path, validation_fraction=share)), visits(600)
    sets = [names_in(part, rows) for part in data[:3]]
    assert [bool(part) for part in sets] == [True, share is not None, True]
    assert not sets[0] & sets[1]
    assert not sets[0] & sets[2]
    assert not sets[1] & sets[2]
    assert sum(len(part) for part in data[:3]) == 600  # each record is in one of them
    people = len({row["patient_id"] for row in rows} - {""}) + 600 // 40
    assert sum(part.units for part in data[:3]) == people


def test_which_owner_is_where_depends_on_their_number_and_the_seed_alone():
    """An owner with a million records moves nobody else."""
    few = np.arange(30)
    many = np.concatenate([few, np.full(1_000_000, 11)])
    one, other = (owner_rows(codes, 0.2, 0.2, np.random.default_rng(3)) for codes in (few, many))
    for (rows, _), (more, owners) in zip(one, other, strict=True):
        assert set(few[rows]) == set(many[more])
        assert owners.count in (6, 18)


def test_of_a_file_of_its_own_owners_who_are_elsewhere_lose_their_records_and_still_count():
    rows, owners = own_file(np.array([4, 9, 4, 8]), elsewhere=np.array([1, 4]))
    assert rows.tolist() == [1, 3]
    assert owners.count == 3


def test_too_few_owners_for_three_sets_are_refused_without_a_word_about_them(tmp_path):
    rows = visits(60)
    for row in rows:
        row["patient_id"] = f"{SECRET}{row['sex']}"
    write_csv(tmp_path / "visits.csv", rows)
    with pytest.raises(DataError) as refused:
        built(hospital(tmp_path))
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("owner", "words"),
    [("readmitted", "column to predict"), ("age", "learn from"), ("nobody", "no such column")],
)
def test_a_column_that_cannot_say_whose_records_these_are_is_refused(tmp_path, owner, words):
    with pytest.raises(ConfigError, match=words):
        built(hospital(tmp_path, owner=owner))


def test_a_cap_without_owners_is_refused(tmp_path):
    config = hospital(tmp_path, owner=None)
    config["privacy"]["records_per_owner"] = 3
    with pytest.raises(ConfigError, match="records_per_owner"):
        resolve(config, plan=False)


def test_the_schema_s_words_for_a_missing_value_are_no_name(tmp_path):
    rows = visits(300)
    for place, row in enumerate(rows):
        row["patient_id"] = ("NA", "?", " n/k ")[place % 3] if place % 2 else f"{SECRET}{place % 20}"
    write_csv(tmp_path / "visits.csv", rows)
    config = hospital(tmp_path, schema={**SCHEMA, "missing": ["NA", "?", "n/k"]})
    assert sum(part.units for part in built(config)[:3]) == 150 + 10


def test_no_name_is_written_to_the_cache(tmp_path):
    built(hospital(tmp_path))
    files = [file for file in (tmp_path / "data").rglob("*") if file.is_file()]
    assert files
    assert not any(SECRET.encode() in file.read_bytes() for file in files)


# --- other sources ----------------------------------------------------------------------------------------------------


def check_whole(data, whose):
    """No owner is in two sets. ``whose``: of every row of the file."""
    sets = [{whose[row] for row in part.rows} for part in data[:3]]
    assert all(sets)
    assert not sets[0] & sets[1]
    assert not sets[0] & sets[2]
    assert not sets[1] & sets[2]
    assert [part.units for part in data[:3]] == [len(some) for some in sets]


def test_arrays_have_an_array_of_owners_beside_them(tmp_path):
    rng = np.random.default_rng(0)
    whose = rng.integers(0, 20, 200)
    np.savez(tmp_path / "set.npz", x=rng.normal(size=(200, 4)).astype(np.float32), y=rng.integers(0, 2, 200))
    for name, values in (("whose", whose), ("x", np.zeros((200, 4), np.float32)), ("y", whose % 2)):
        np.save(tmp_path / f"{name}.npy", values)
    (tmp_path / "data").mkdir()
    section = {"name": "embeddings", "path": str(tmp_path / "set.npz"), "classes": 2}
    source = find_source("embeddings")
    data = source.build({**section, "owner": str(tmp_path / "whose.npy")}, np.random.default_rng(0))
    check_whole(data, whose)
    labels = {"labels": str(tmp_path / "y.npy"), "owner": str(tmp_path / "data" / ".." / "y.npy")}
    with pytest.raises(ConfigError, match="what is predicted"):
        source.check({**section, "path": str(tmp_path / "x.npy"), **labels}, private=True)
    np.save(tmp_path / "whose.npy", whose[:-1])
    with pytest.raises(ConfigError, match="each row"):
        source.check({**section, "owner": str(tmp_path / "whose.npy")}, private=True)


def test_texts_have_a_column_of_owners(tmp_path):
    whose = [f"{SECRET}{place % 17}" for place in range(150)]
    lines = [json.dumps({"text": f"note {i}", "label": i % 2, "who": who}) for i, who in enumerate(whose)]
    (tmp_path / "notes.jsonl").write_text("\n".join(lines) + "\n")
    section = {"name": "text", "path": str(tmp_path / "notes.jsonl"), "classes": 2, "owner": "who"}
    source = find_source("text")
    source.check(section, private=True)
    check_whole(source.build(section, np.random.default_rng(0)), whose)
    with pytest.raises(ConfigError, match="learned from or predicted"):
        source.check({**section, "owner": "label"}, private=True)


@pytest.mark.parametrize("rule", ["parent", r"^(\w+)/", r"person\d+"])
def test_folders_have_a_rule_for_owners(tmp_path, rule):
    Image = pytest.importorskip("PIL.Image")
    for person in range(20):
        for kind in ("cat", "dog"):
            folder = tmp_path / "pictures" / kind / f"person{person}"
            folder.mkdir(parents=True)
            Image.new("RGB", (8, 8), (person, 0, 0)).save(folder / "a.png")
    section = {"name": "folder", "path": str(tmp_path / "pictures"), "size": 8, "owner": rule}
    data = find_source("folder").build(section, np.random.default_rng(0))
    whose = [file.parent.name for file in data.train.store.files]
    check_whole(data, whose)
    for wrong in ("(", "class/(", "class/"):
        with pytest.raises(ConfigError, match="regular expression"):
            find_source("folder").check({**section, "owner": wrong}, private=True)


@pytest.mark.parametrize("rule", ["class/parent", r"class/^(\w+)/"])
def test_names_may_count_anew_in_each_class(tmp_path, rule):
    """As where every class numbers its objects from 1 on."""
    Image = pytest.importorskip("PIL.Image")
    for number in range(10):
        for kind in ("cat", "dog"):
            folder = tmp_path / "pictures" / kind / f"object{number}"
            folder.mkdir(parents=True)
            for picture in range(3):
                Image.new("RGB", (8, 8), (number, picture, 0)).save(folder / f"{picture}.png")
    section = {"name": "folder", "path": str(tmp_path / "pictures"), "size": 8, "owner": rule}
    data = find_source("folder").build(section, np.random.default_rng(0))
    assert sum(part.units for part in data[:3]) == 20
    check_whole(data, ["/".join(file.parts[-3:-1]) for file in data.train.store.files])
