"""The RAND experiment: its rows come out of a pickle that is never unpickled; its schema tells nothing of the year."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest

from cords_dp.cli import main
from cords_dp.config import load_config
from cords_dp.data.build import build_dataset
from cords_dp.data.sources.table.schema import load_schema
from cords_dp.errors import DatasetUnavailableError
from cords_dp.studies import randhie
from cords_dp.studies.randhie import FILE, SCHEMA, fetch_randhie
from cords_dp.training.resolve import resolve

OF_THE_YEAR = {  # what the codebook counts or adds up over the year that is predicted
    "mdvis", "notmdvis", "mentvis", "totadm", "inpmis", "outpdol", "drugdol", "suppdol", "mentdol", "inpdol", "meddol",
    "lnmeddol", "binexp",
}  # fmt: skip


def pickled(rows):
    """What the frame looks like in the wheel: two arrays with the places of their columns, and names."""
    names = ["rownames", "zper", "income", "mdvis", "binexp"]
    rng, kept, parts = np.random.default_rng(0), {}, []
    for columns, kind in ((["income", "binexp"], "<f8"), (["rownames", "mdvis", "zper"], "<i8")):
        block = rng.integers(0, 3, (len(columns), rows)).astype(kind)
        kept |= dict(zip(columns, block, strict=True))
        places = np.array([names.index(name) for name in columns], "<i8")
        parts += [bytearray(block.tobytes()), bytearray(places.tobytes())]
    return pickle.dumps([*parts, names, "allows_duplicate_labels"], protocol=5), kept


def test_columns_are_picked_out_of_a_pickle(monkeypatch):
    monkeypatch.setattr(randhie, "ROWS", 7)
    content, kept = pickled(7)
    found = randhie._columns(content)
    assert list(found) == ["rownames", "zper", "income", "mdvis", "binexp"]
    for name, values in kept.items():
        assert np.array_equal(found[name], values)
    lines = list(randhie._lines(found))
    assert list(lines[0]) == ["zper", "income", "mdvis", "binexp", "visit"]
    assert [line[-1] for line in lines[1:]] == ["yes" if v > 0 else "no" for v in kept["mdvis"]]


def test_a_pickle_that_would_run_something_runs_nothing(tmp_path):
    class Payload:
        def __reduce__(self):
            return (tmp_path / "proof").touch, ()

    with pytest.raises(DatasetUnavailableError, match="does not look"):
        randhie._columns(pickle.dumps(Payload()))
    assert not list(tmp_path.iterdir())


def test_the_schema_tells_nothing_of_the_year_that_is_predicted():
    schema = load_schema(str(SCHEMA))
    assert {column.name for column in schema.columns}.isdisjoint(OF_THE_YEAR | {"zper"})
    assert set(schema.ignore) >= OF_THE_YEAR | {"zper"}


@pytest.mark.data
def test_the_real_rows_are_those_that_were_published(tmp_path):
    frame = pd.read_csv(fetch_randhie(tmp_path))
    assert (len(frame), frame["zper"].nunique()) == (20_190, 5_912)
    assert frame["zper"].value_counts().max() <= 5  # records_per_owner of the configs loses nobody's row
    assert frame["mdvis"].mean() == pytest.approx(2.8606, abs=1e-3)  # Deb & Trivedi 2002: 2.86 visits a year
    assert (frame["visit"] == "yes").mean() == pytest.approx(0.688, abs=1e-3)


@pytest.mark.data
def test_the_configs_deal_whole_people(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "fetch", "randhie"]) == 0
    zper = pd.read_csv("data/" + FILE)["zper"].to_numpy()
    config = load_config("glister_dp_randhie", ["privacy.accountant=rdp"])
    data = build_dataset(resolve(config, plan=False).config, np.random.default_rng(0))
    people = [set(zper[part.rows]) for part in data[:3]]
    assert sum(map(len, people)) == len(set.union(*people)) == 5_912
    assert [part.units for part in data[:3]] == [len(some) for some in people]
