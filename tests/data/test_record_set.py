"""Record sets: one contract for every store; and parts: every record in one of them, nothing of the others read."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
import pytest
import torch
from builders import guarded
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset

from cords_dp.config import frozen_copy
from cords_dp.data.build import data_binding
from cords_dp.data.feature_cache import FeatureStore, with_features
from cords_dp.data.handed_over import DatasetStore, as_records, checked_splits
from cords_dp.data.padding import PaddedStore
from cords_dp.data.readable import ReadableStore
from cords_dp.data.record_set import ClassTarget, RecordSet, Share, Splits, array_set, cut_splits
from cords_dp.data.sources.arrays import ArrayFile, ArraySource
from cords_dp.data.sources.table import TableSource
from cords_dp.data.sources.table.encoding import Encoding
from cords_dp.data.sources.table.schema import read_schema
from cords_dp.data.sources.table.store import TableStore
from cords_dp.data.sources.texts import ByteStore
from cords_dp.data.store import ArrayStore, RangeOfStore, Store
from cords_dp.errors import ConfigError, DataError, MechanismError
from cords_dp.selection import Pool

SCHEMA = {
    "target": {"name": "y", "classes": ["no", "yes"]},
    "columns": {"a": {"range": [0, 100]}, "b": {"categories": ["u", "v", "w"]}},
}


def parts_of(dataset, size, weights=()):
    return [as_records(dataset).cut(Share(rank, size, weights)) for rank in range(size)]


@given(
    total=st.integers(0, 10_000),
    weights=st.lists(st.floats(0, 100, allow_subnormal=False), min_size=1, max_size=9).filter(lambda w: sum(w) > 1e-6),
)
def test_ranges_follow_each_other_from_the_first_row_to_the_last(total, weights):
    bounds = [Share(rank, len(weights), tuple(weights)).bounds(total) for rank in range(len(weights))]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == total
    assert all(one[1] == other[0] and one[0] <= one[1] for one, other in itertools.pairwise(bounds))
    for weight, (start, stop) in zip(weights, bounds, strict=True):
        assert abs(stop - start - total * weight / sum(weights)) <= 1 + 1e-9 * total


@pytest.mark.parametrize("weights", [(1.0,), (1.0, -1.0), (0.0, 0.0)])
def test_shares_that_say_nothing_are_refused(weights):
    with pytest.raises(ConfigError, match=r"train_args\.shares"):
        Share(0, 2, weights)


class Noting(Dataset):
    """Records of a user's own that note which of them were read."""

    def __init__(self, n):
        self.n, self.read = n, []

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.read.append(index)
        return torch.tensor([float(index)]), index % 2


def shuffled(n=50, picked=40):
    order = np.random.default_rng(0).permutation(n)[:picked]
    return array_set(np.arange(n, dtype=np.float32)[:, None], np.arange(n) % 2, rows=order)


@pytest.mark.parametrize("weights", [(), (3.0, 0.0, 1.0)])
@pytest.mark.parametrize("make", [shuffled, lambda: guarded(shuffled(), 2), lambda: Noting(40)])
def test_every_record_lies_in_one_part(make, weights):
    whole = make()
    everything = {float(whole[i][0]) for i in range(len(whole))}
    seen = []
    for part in parts_of(whole, 3, weights):
        x, y = part.batch(np.arange(len(part)))
        assert len(x) == len(y) == len(part) == len(part.places)
        assert part.total == 40
        for value, place in zip(x[:, 0].tolist(), part.places, strict=True):
            assert value == float(whole[int(place)][0])
        seen += x[:, 0].tolist()
        empty = part.no_records()
        assert empty[0].shape == (0, 1)
    assert len(seen) == 40
    assert set(seen) == everything


def test_a_part_of_arrays_holds_no_row_of_another():
    for part in parts_of(shuffled(), 2):
        store = part.store
        start, stop = Share(int(store.x.min()) // 25, 2).bounds(50)
        assert store.x[:, 0].tolist() == list(range(start, stop))
        assert store.x.untyped_storage().nbytes() == 25 * 4  # a copy: a view would hold all of it


def test_of_a_set_that_was_handed_over_each_rank_reads_its_own_records():
    data = Noting(40)
    part = parts_of(guarded(data, 2), 4)[1]
    part.batch(np.arange(len(part)))
    assert set(data.read) == set(range(10, 20))


@given(st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_parts_of_a_pool_are_the_pool(size, random):
    whole = shuffled()
    indices = np.array(random.sample(range(40), random.randint(0, 40)), dtype=np.int64)
    values = np.random.default_rng(1).random(len(indices))
    pool = Pool(indices, weights=values, chances=values / 2, branch=1, levels=indices % 2)
    found = {}
    for part in parts_of(whole, size) if size > 1 else []:
        own = pool.among(part.places)
        assert own.own
        assert own.branch == 1
        for index, w, c, level in zip(own.indices, own.weights, own.chances, own.levels, strict=True):
            found[int(part.places[index])] = (w, c, level)
    if size > 1:
        wanted = zip(pool.indices, pool.weights, pool.chances, pool.levels, strict=True)
        assert found == {int(i): (w, c, level) for i, w, c, level in wanted}


# --- the contract of a store ----------------------------------------------------------------------------------------


class Minimal(Store):
    """A store that implements reading only."""

    def __len__(self):
        return 50

    def read(self, rows):
        return torch.from_numpy(rows).float()[:, None], torch.from_numpy(rows) % 3


NUMBERS, THREE = np.arange(50, dtype=np.float32)[:, None], torch.arange(50) % 3
ORDER = np.random.default_rng(0).permutation(50)[:40]


def a_table():
    encoding = Encoding(read_schema(SCHEMA))
    stored = np.zeros(50, dtype=encoding.row_type)
    stored["numbers"], stored["label"] = NUMBERS / 50, THREE
    return TableStore(stored, encoding)


STORES = {
    "reads only": Minimal,
    "memory": lambda: ArrayStore(NUMBERS, THREE.numpy()),
    "array file": lambda: ArrayFile(NUMBERS, THREE, None),
    "texts": lambda: ByteStore(NUMBERS.astype(np.uint8), THREE),
    "table": a_table,
    "features": lambda: FeatureStore(NUMBERS.astype(np.float16), THREE),
    "features as stored": lambda: FeatureStore(NUMBERS.astype(np.float16), THREE, half=True),
    "handed over": lambda: DatasetStore(TensorDataset(torch.from_numpy(NUMBERS), THREE)),
    "readable": lambda: ReadableStore(DatasetStore(TensorDataset(torch.from_numpy(NUMBERS), THREE))),
    "padded": lambda: PaddedStore(DatasetStore(TensorDataset(torch.from_numpy(NUMBERS).long(), THREE)), 2),
    "a range": lambda: RangeOfStore(DatasetStore(Noting(60)), 7, 57),
}


@pytest.mark.parametrize("kind", STORES)
def test_a_row_of_a_batch_is_its_record_whoever_is_beside_it(kind):
    records = RecordSet(STORES[kind](), ORDER)
    x, y = records.batch(np.arange(40))
    for i in (0, 7, 39):
        assert torch.equal(records[i][0], x[i])
        assert torch.equal(records[i][1], y[i])
    some = records.at(np.array([9, 3]))
    assert torch.equal(some.batch([0, 1])[0], x[[9, 3]])
    assert torch.equal(records.batch(torch.tensor([9, 3, 9]))[0], x[[9, 3, 9]])
    empty = records.no_records()
    assert (empty[0].shape, empty[0].dtype) == ((0, *x.shape[1:]), x.dtype)
    assert (empty[1].shape, empty[1].dtype) == ((0, *y.shape[1:]), y.dtype)


@pytest.mark.parametrize("kind", STORES)
def test_labels_are_those_of_the_records_and_impossible_ones_do_no_harm(kind):
    records = RecordSet(STORES[kind](), ORDER)
    x, y = records.batch(np.arange(40))
    labels, known = records.labels()
    assert torch.equal(labels, y)
    assert bool(known.all())
    two = records.with_target(ClassTarget(2))
    (guarded_x, guarded_y), (labels, known) = two.batch(np.arange(40)), two.labels()
    assert torch.equal(known, y < 2)
    assert torch.equal(guarded_x[known], x[known])
    assert torch.equal(guarded_y[known], y[known])
    if x.is_floating_point():
        assert bool(torch.isnan(guarded_x[~known]).all())
        assert torch.equal(guarded_y, labels)
    else:
        assert set(guarded_y[~known].tolist()) <= {-100}  # torch's cross-entropy leaves it out
    assert ((labels >= 0) & (labels < 2)).all()


@pytest.mark.parametrize("kind", STORES)
def test_every_store_can_be_cut(kind):
    whole = RecordSet(STORES[kind](), ORDER, ClassTarget(3))
    x, y = whole.batch(np.arange(40))
    found = []
    for part in parts_of(whole, 3, (2.0, 0.0, 1.0)):
        got = part.batch(np.arange(len(part)))
        assert torch.equal(got[0], x[part.places])
        assert torch.equal(got[1], y[part.places])
        assert torch.equal(part.labels()[0], whole.labels()[0][part.places])
        assert part.total == 40
        assert part.target == whole.target
        found += part.places.tolist()
    assert sorted(found) == list(range(40))


class Failing(Minimal):
    """A store of somebody else's that says what it cannot read."""

    def read(self, rows):
        if ORDER[3] in rows:
            raise ValueError("john_doe_1961")
        return super().read(rows)


def test_a_store_that_does_not_say_that_it_reads_everything_is_guarded():
    """A record that cannot be read would end the run, with its reader's words."""
    sets = Splits(RecordSet(Failing(), ORDER[:20]), RecordSet(Minimal(), ORDER[20:]), RecordSet(Minimal()), 3)
    train = checked_splits(sets, private=True).train
    x, _ = train.batch(np.arange(20))
    assert torch.isnan(x[:, 0]).tolist() == [i == 3 for i in range(20)]
    assert train.binding(built=True) == sets.train.binding(built=True)


def test_sets_of_one_store_share_its_range():
    store = ArrayStore(NUMBERS, THREE.numpy())
    sets = Splits(RecordSet(store, ORDER[:20]), RecordSet(store, ORDER[20:]), RecordSet(Minimal()), 3)
    data = cut_splits(sets, Share(1, 2))
    assert data.train.store is data.validation.store is not data.test.store
    assert len(data.train.store) == 25


# --- features -------------------------------------------------------------------------------------------------------


class Doubling:
    name, settings, feature_shape = "doubling", ("doubling",), (1,)

    def __init__(self):
        self.seen = []

    def __call__(self, x):
        self.seen += x[:, 0].tolist()
        return 2 * x


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("make", [lambda: guarded(shuffled(), 2), lambda: Noting(40)])
def test_each_rank_computes_the_features_of_its_own_range(make, kept, tmp_path):
    whole, computed = make(), []
    for rank, part in enumerate(parts_of(whole, 3, (1.0, 0.0, 1.0))):
        transform = Doubling()
        ready = with_features(part, transform, tmp_path if kept else None, progress=False)
        assert len(ready) == len(part)
        assert (rank == 1) == (not transform.seen)
        x, y = ready.batch(np.arange(len(ready)))
        raw, labels = part.batch(np.arange(len(part)))
        assert torch.equal(x, 2 * raw)
        assert torch.equal(y, labels)
        assert np.array_equal(ready.places, part.places)
        computed += transform.seen
    assert len(computed) == len(set(computed))
    assert len(list(tmp_path.glob("*.npy"))) == (2 if kept else 0)


# --- tables and arrays in files -------------------------------------------------------------------------------------


def table_rows(n=97):
    rng = np.random.default_rng(3)
    a, b, y = rng.uniform(-10, 110, n).round(2), rng.choice(["u", "v", "w", "?"], n), rng.choice(["no", "yes", "-"], n)
    return {"a": a, "b": b, "y": y}


def written(kind, folder):
    columns, path = table_rows(), folder / f"table.{kind}"
    if kind == "parquet":
        pa_parquet.write_table(pa.table({k: v.tolist() for k, v in columns.items()}), path, row_group_size=10)
    elif kind == "npz":
        np.savez(path, **columns)
    else:
        lines = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
        lines[5], lines[60] = '1,"u', ""  # a record that cannot be read, and one that is blank
        path.write_text("a,b,y\n" + "\n".join(lines) + "\n\n \n")
    return {"name": "table", "path": str(path), "schema": SCHEMA, "datadir": str(folder / "data")}


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("kind", ["csv", "parquet", "npz"])
def test_ranks_read_their_ranges_of_a_table_and_together_all_of_it(kind, cache, tmp_path):
    section, source = {**written(kind, tmp_path), "cache": cache}, TableSource()
    whole = source.build(section, np.random.default_rng(0))
    shares = [Share(rank, 4, (2.0, 1.0, 0.0, 3.0)) for rank in range(4)]
    parts = [source.build_part(section, np.random.default_rng(0), share) for share in shares]
    for number in range(3):
        x, y = whole[number].batch(np.arange(len(whole[number])))
        got = [(part[number].batch(np.arange(len(part[number]))), part[number].places) for part in parts]
        rows = sorted(((*r.tolist(), float(t)) for (px, py), _ in got for r, t in zip(px, py, strict=True)))
        assert rows == sorted((*r.tolist(), float(t)) for r, t in zip(x, y, strict=True))
        if number < 2:  # of the test set, records without a label are left out
            assert sorted(np.concatenate([where for _, where in got]).tolist()) == list(range(len(x)))
            for (px, py), where in got:
                assert torch.equal(px, x[where])
                assert torch.equal(py, y[where])
    for part, share in zip(parts, shares, strict=True):
        start, stop = share.bounds(97)
        assert all(len(part[number].store) == stop - start for number in range(3))
    config = {"dataset": frozen_copy(section)}
    assert data_binding(config, 0, parts[1], built=True) == data_binding(config, 0, whole, built=True)


def test_row_groups_of_other_ranks_are_not_read(tmp_path, monkeypatch):
    section, read, real = written("parquet", tmp_path), [], pa_parquet.ParquetFile.iter_batches

    def noting(self, *args, row_groups, **rest):
        read.append(row_groups)
        return real(self, *args, row_groups=row_groups, **rest)

    monkeypatch.setattr(pa_parquet.ParquetFile, "iter_batches", noting)
    TableSource().build_part(section, np.random.default_rng(0), Share(1, 4))
    assert read == [[2, 3, 4]]  # rows 24 to 48, in groups of ten


def test_a_rank_maps_its_range_of_an_array_file(tmp_path):
    x, y = (
        np.arange(200, dtype=np.float32).reshape(100, 2),
        np.arange(100) % 3,
    )  # of two classes: a third of the labels is none
    np.savez(tmp_path / "data.npz", x=x, y=y)
    section = {"name": "arrays", "path": str(tmp_path / "data.npz"), "classes": 2}
    whole, tested = ArraySource().build(section, np.random.default_rng(0)), []
    for rank in range(2):
        read = ArraySource().build_part(section, np.random.default_rng(0), Share(rank, 2))
        assert data_binding({"dataset": frozen_copy(section)}, 0, read, built=True) == data_binding(
            {"dataset": frozen_copy(section)}, 0, whole, built=True
        )
        for part in (read, cut_splits(whole, Share(rank, 2))):
            for number in range(3):
                store, where = part[number].store, part[number].places
                assert isinstance(store.x, np.memmap)
                assert np.array_equal(store.x, x[50 * rank : 50 * rank + 50])
                assert len(store.all_labels) == 50
                got = part[number].batch(np.arange(len(part[number])))
                if number < 2:
                    assert all(torch.equal(a, b) for a, b in zip(got, whole[number].batch(where), strict=True))
        tested += read.test.batch(np.arange(len(read.test)))[0][:, 0].tolist()  # those with a label
    assert sorted(tested) == sorted(whole.test.batch(np.arange(len(whole.test)))[0][:, 0].tolist())


# --- what must not go wrong -----------------------------------------------------------------------------------------


def test_a_set_is_bound_before_it_is_cut():
    whole = Splits(shuffled(), shuffled(), shuffled(), 2)
    with pytest.raises(DataError, match="before it is cut"):
        data_binding({"dataset": {}}, 0, cut_splits(whole, Share(0, 2)))


def test_a_sum_over_records_that_other_ranks_hold_too_is_refused():
    """A source's own sets cannot be cut: its sums before training would count every record once a process."""
    part = as_records(Noting(40)).cut(Share(0, 2))
    with pytest.raises(MechanismError, match="cannot be cut"):
        part.handed_out()
    own = guarded(shuffled(), 2).cut(Share(0, 2))
    assert own.handed_out().store is own.store
    assert own.handed_out().target is None


def test_parts_of_one_process_are_the_set_itself():
    whole = shuffled()
    assert whole.cut(Share()) is whole
    assert whole.places is None
    assert whole.total == len(whole)
