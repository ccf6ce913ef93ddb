"""Bad records: a typed error by what is public of a set, or no contribution; never a word about single records."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from builders import Net, data_of, guarded
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from cords_dp.data.handed_over import (
    DatasetStore,
    checked_splits,
    refuse_repeated_records,
    refuse_shared_records,
    unreadable_records,
)
from cords_dp.data.owners import Owners
from cords_dp.data.readable import known_words, limit_words
from cords_dp.data.record_set import ClassTarget, RecordSet, Splits, array_set, records_at
from cords_dp.data.sources.base import find_source
from cords_dp.errors import AccountingError, ConfigError, CordsDPError, DataError
from cords_dp.models.build import check_input, register_model
from cords_dp.runs.run import run_experiment
from cords_dp.studies.match import uniform_gradients
from cords_dp.training.trainer import TrainClassifier

MARK = 12345.678
register_model("RoughNet", lambda num_classes, input_shape, **_: Net(classes=num_classes), force=True)


class Listed(Dataset):
    """A dataset that hands out single records, as users write them."""

    def __init__(self, records):
        self.records = list(records)

    def __len__(self):
        return len(self.records)

    def __getitem__(self, index):
        return self.records[index]


def listed(n=400, seed=0, classes=3):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    return Listed((torch.from_numpy(x[i]), int(y)) for i, y in enumerate(rng.integers(0, classes, n)))


def splits(train=None, validation=None, test=None, classes=3):
    sets = (train, validation, test)
    defaults = (listed(), listed(100, 1), listed(50, 2))
    return Splits(
        *(default if given is None else given for given, default in zip(sets, defaults, strict=True)), classes
    )


def test_good_sets_pass_and_keep_their_records():
    data = checked_splits(splits(), private=True)
    assert data.train.target == data.validation.target == ClassTarget(3)
    assert data.test.target is None
    x, y = records_at(data.train, np.arange(5))
    expected = [listed()[i] for i in range(5)]
    assert torch.equal(x, torch.stack([record[0] for record in expected]))
    assert y.tolist() == [record[1] for record in expected]
    assert checked_splits(data, private=True).train is data.train


@pytest.mark.parametrize("label", [3, 99, -1, -100, 2**40])
def test_a_label_that_is_no_class_makes_its_record_void(label):
    """-100 is the label that torch's cross-entropy ignores; nothing depends on that."""
    train = listed()
    train.records[7] = (torch.full((6,), MARK), label)
    x, y = records_at(checked_splits(splits(train), private=True).train, np.array([6, 7, 8]))
    assert torch.isfinite(x).all(dim=1).tolist() == [True, False, True]
    assert torch.isnan(x[1]).all()
    assert 0 <= int(y[1]) < 3
    assert y.dtype == torch.int64


BAD_SETS = {
    "empty": lambda: Listed([]),
    "float labels": lambda: Listed([(torch.full((6,), MARK), 1.0)] * 50),
    "vector labels": lambda: Listed([(torch.full((6,), MARK), torch.ones(3))] * 50),
    "no pairs": lambda: Listed([torch.full((6,), MARK)] * 50),
    "float64": lambda: Listed([(torch.full((6,), MARK).double(), 1)] * 50),
    "text": lambda: Listed([("twelve", 1)] * 50),
    "no dataset": lambda: object(),
}


@pytest.mark.parametrize("where", ["train", "validation", "test"])
@pytest.mark.parametrize("kind", BAD_SETS)
def test_a_set_that_cannot_be_used_is_refused(kind, where):
    with pytest.raises(DataError) as caught:
        checked_splits(splits(**{where: BAD_SETS[kind]()}), private=True)
    assert "12345" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("classes", [0, 1, -3, 2.5, "3", None, True])
def test_a_wrong_number_of_classes(classes):
    with pytest.raises(ConfigError, match="num_cls"):
        checked_splits(splits(classes=classes), private=True)


def test_records_of_different_shapes_tell_neither_shape_nor_place():
    train = listed()
    train.records[123] = (torch.full((777,), MARK), 1)
    with pytest.raises(DataError) as caught:
        records_at(train, np.arange(120, 130))
    assert not any(text in str(caught.value) for text in ("777", "123", "12345", "entry 3"))
    assert caught.value.__context__ is None  # a traceback would show torch's message


def test_labels_of_a_public_set_are_told():
    test = array_set(np.zeros((5, 6), dtype=np.float32), np.array([0, 1, 2, 3, 9]))
    with pytest.raises(DataError, match="testset has labels outside"):
        checked_splits(splits(test=test), private=True)


@pytest.fixture
def trainer(make_config):
    def make(strategy="RandomDP", classes=3, architecture="RoughNet", **changes):
        changes.setdefault("train_args", {}).update(num_epochs=1, print_every=1)
        cfg = make_config(strategy, model={"architecture": architecture, "numclasses": classes}, **changes)
        cfg.dataset.name = "own"
        cfg.dataloader.batch_size = 32
        built = TrainClassifier(cfg)
        built.show_progress = False
        return built

    return make


def train_on(trainer, data):
    return trainer.train(trainset=data.train, validset=data.validation, testset=data.test, num_cls=data.num_classes)


def test_num_cls_and_the_model_must_agree(trainer, tmp_path):
    with pytest.raises(ConfigError, match=r"model\.numclasses"):
        train_on(trainer(classes=5), splits())
    assert not list(tmp_path.rglob("*.log"))


@pytest.mark.parametrize("strategy", ["FullDP", "RandomDP", "GLISTERDP"])
@pytest.mark.parametrize("label", [3, -1, -100])
def test_training_goes_on_with_a_label_that_is_no_class(trainer, strategy, label):
    train, validation = listed(), listed(100, 1)
    for dataset in (train, validation):
        for i in range(len(dataset)):
            dataset.records[i] = (torch.full((6,), MARK), label)
    run = trainer(strategy)
    before = {k: v.clone() for k, v in run.create_model(3).state_dict().items()}
    train_on(run, splits(train, validation))
    assert all(torch.isfinite(value).all() for value in run.model.state_dict().values())
    assert before.keys() == run.model.state_dict().keys()


@pytest.mark.parametrize("strategy", ["FullDP", "RandomDP", "GLISTERDP"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_training_goes_on_with_pixels_that_are_not_finite(trainer, strategy, value):
    train, validation = data_of(400, 0), data_of(100, 1)
    train.store.x[::7] = value
    validation.store.x[::7] = value
    run = trainer(strategy)
    train_on(run, splits(train, validation))
    assert all(torch.isfinite(part).all() for part in run.model.state_dict().values())


@pytest.mark.parametrize(
    "train",
    [Listed([]), Listed([(torch.zeros(6), 1)]), Listed([(torch.zeros(6), 1.0)] * 400),
     Listed([(torch.zeros(6).double(), 1)] * 400)],
    ids=["empty", "one record", "float labels", "float64"],
)  # fmt: skip
def test_a_set_that_cannot_be_trained_on_ends_in_an_error_of_ours(trainer, train, tmp_path):
    with pytest.raises(CordsDPError):
        train_on(trainer("FullDP"), splits(train))
    assert not list(tmp_path.rglob("ledger*"))


def test_a_model_is_tried_on_zeros_in_the_shape_of_a_record():
    check_input(Net(), torch.zeros(6))
    with pytest.raises(ConfigError, match=r"model\.architecture"):
        check_input(Net(), torch.zeros(9))
    with pytest.raises(ConfigError, match=r"model\.architecture"):
        check_input(Net(), torch.zeros(6, dtype=torch.uint8))


def test_records_that_the_model_cannot_read_end_in_an_error_of_ours(trainer, tmp_path):
    with pytest.raises(CordsDPError):
        train_on(trainer("FullDP"), splits(Listed([(torch.zeros(9), 1)] * 400)))
    assert not list(tmp_path.rglob("ledger*"))


def test_a_text_with_an_impossible_label_contributes_nothing():
    """Words have no NaN. Before, such a record counted as one of class 0."""
    words, labels = torch.randint(0, 9, (3, 4), generator=torch.Generator().manual_seed(0)), torch.tensor([1, 7, -3])
    x, y = guarded(TensorDataset(words, labels), classes=3).batch(np.arange(3))
    assert x.equal(words)
    logits = torch.randn(3, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
    losses = torch.nn.CrossEntropyLoss(reduction="none")(logits, y)
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert gradient[0].abs().sum() > 0
    assert gradient[1:].abs().sum() == losses[1:].abs().sum() == 0
    assert torch.isfinite(uniform_gradients(torch.ones(3, 2), y, 3).r).all()


# --- records that end a reading -------------------------------------------------------------------------------------


class Scans(Dataset):
    """One record cannot be read, and its reader says whose it is; another has its own shape, a third its own type."""

    def __init__(self, n=400, bad=(7, 8, 9), seed=0):
        self.inner, self.bad = listed(n, seed), bad

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        x, y = self.inner[index]
        if index not in self.bad:
            return x, y
        if index in (0, 7):
            raise ValueError("cannot identify image file 'john_doe_1961.png'")
        return (torch.zeros(5), y) if index == 8 else (x.double(), y)


@pytest.mark.parametrize("strategy", ["FullDP", "GLISTERDP"])
def test_a_record_that_cannot_be_read_does_not_end_a_run(trainer, strategy, capfd):
    """An output with probability 0 without that record, and the file's name on the screen."""
    run = trainer(strategy)
    train_on(run, splits(Scans(), Scans(100, seed=1)))
    assert run.spent().epsilon <= 3.0
    assert "john_doe" not in "".join(capfd.readouterr())


def test_a_record_that_cannot_be_read_is_null():
    data = checked_splits(splits(Scans(bad=(0, 7, 8, 9))), private=True).train  # the first one too
    x, _ = records_at(data, np.arange(12))
    assert torch.isnan(x).all(dim=1).tolist() == [i in (0, 7, 8, 9) for i in range(12)]
    good = torch.stack([listed()[i][0] for i in (1, 2, 3)])
    assert torch.equal(x[1:4], good)
    assert len(records_at(data, np.arange(0))[1]) == 0
    assert unreadable_records(Scans(bad=(0, 7, 8, 9))) == [0, 7, 8, 9]


class Strange(Scans):
    """Records of other kinds: one ends the process, one can be differentiated, one lies on another device."""

    def __getitem__(self, index):
        x, y = self.inner[index]
        if index == 7:
            sys.exit("john_doe_1961.png")
        return x.clone().requires_grad_() if index == 8 else x.to("meta") if index == 9 else x, y


@pytest.mark.parametrize("strategy", ["FullDP", "GLISTERDP"])
def test_a_record_of_another_kind_does_not_end_a_run(trainer, strategy, capfd):
    run = trainer(strategy)
    train_on(run, splits(Strange(), Strange(100, seed=1)))
    assert run.spent().epsilon <= 3.0
    assert "john_doe" not in "".join(capfd.readouterr())
    assert unreadable_records(Strange()) == [7, 9]


def test_without_a_test_set_the_guarded_v_stands_in_its_place():
    """A loop's V was read unguarded: an unreadable first record ended the run, with its reader's words."""
    data = checked_splits(Splits(listed(), Scans(100, bad=(0, 7), seed=1), None, 3), private=True)
    assert data.test is data.validation
    assert torch.isnan(data.test[0][0]).all()


def test_a_set_without_a_readable_record_is_refused():
    with pytest.raises(DataError, match="no record"):
        checked_splits(splits(Listed([None] * 20)), private=True)


# --- words that a model does not know -------------------------------------------------------------------------------


class Bag(torch.nn.Module):
    """Two places of a record have a table of their own."""

    def __init__(self, num_classes=3, input_shape=None, words=40, kinds=(40, 9)):
        super().__init__()
        self.words, self.kinds = torch.nn.Embedding(kinds[0], 5), torch.nn.Embedding(kinds[1], 5)
        self.linear = torch.nn.Linear(5, num_classes)

    def get_embedding_dim(self):
        return 5

    def forward(self, x, last=False, freeze=False):
        h = self.words(x[:, 2:]).mean(dim=1) + self.kinds(x[:, :2]).mean(dim=1)
        out = self.linear(h)
        return (out, h) if last else out


class PlainTable(Bag):
    """Looks words up by a function: no layer tells the size of its table."""

    def __init__(self, num_classes=3, input_shape=None):
        super().__init__(num_classes)
        del self.words, self.kinds
        self.table = torch.nn.Parameter(torch.randn(40, 5))

    def looked_up(self, x):
        return torch.nn.functional.embedding(x, self.table)

    def forward(self, x, last=False, freeze=False):
        h = self.looked_up(x).mean(dim=1)
        out = self.linear(h)
        return (out, h) if last else out


class IndexedTable(PlainTable):
    def looked_up(self, x):
        return self.table[x]


register_model("RoughBag", Bag, force=True)
register_model("RoughTable", PlainTable, force=True)


def words_of(n, seed, bad=()):
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randint(0, 9, (n, 6), generator=generator), torch.randint(0, 3, (n,), generator=generator)
    for index, place, word in bad:
        x[index, place] = word
    return TensorDataset(x, y)


def test_the_vocabulary_of_each_place_is_found():
    assert known_words(Bag(), torch.zeros(6, dtype=torch.int64)).tolist() == [9, 9, 40, 40, 40, 40]
    assert known_words(Bag(kinds=(40, 40)), torch.zeros(6, dtype=torch.int64)).tolist() == [40] * 6
    for model in (PlainTable(), IndexedTable()):
        assert known_words(model, torch.zeros(6, dtype=torch.int64)).tolist() == [40] * 6
    assert known_words(Net(), torch.zeros(6)) is None


BAD_WORDS = [(3, 0, 9), (4, 5, 40), (5, 2, -1)]


@pytest.mark.parametrize("architecture", ["RoughBag", "RoughTable"])
@pytest.mark.parametrize("strategy", ["FullDP", "GLISTERDP"])
def test_a_word_outside_of_the_vocabulary_does_not_end_a_run(trainer, strategy, architecture):
    run = trainer(strategy, architecture=architecture)
    train_on(run, splits(words_of(400, 0, BAD_WORDS), words_of(100, 1, BAD_WORDS), words_of(50, 2)))
    assert run.spent().epsilon <= 3.0


def test_a_record_with_a_strange_word_contributes_nothing():
    data = checked_splits(splits(words_of(20, 0, BAD_WORDS), words_of(9, 1), words_of(9, 2)), private=True)
    limit_words(data, Bag())
    x, y = records_at(data.train, np.arange(8))
    assert y.tolist()[3:6] == [-100] * 3
    assert (y[[0, 1, 2, 6, 7]] >= 0).all()
    assert int(x.max()) < 9


# --- sets that share records, or are exchanged ----------------------------------------------------------------------


def shared_sets():
    whole, other = listed(), listed(50, 2)
    tensors = words_of(300, 0).tensors
    return {
        "D is V": (whole, whole, other),
        "D is the test set": (whole, listed(100, 1), whole),
        "subsets overlap": (Subset(whole, range(200)), Subset(whole, range(199, 300)), other),
        "subsets of a subset overlap": (Subset(Subset(whole, range(100, 300)), range(50)), Subset(whole, [140]), other),
        "a part of D is V": (ConcatDataset([listed(20, 3), Subset(whole, range(50))]), Subset(whole, [9]), other),
        "a subset of joined sets": (Subset(ConcatDataset([listed(20, 3), whole]), [29]), Subset(whole, [9]), other),
        "tensors overlap": (
            TensorDataset(tensors[0][:200], tensors[1][:200]), TensorDataset(tensors[0][150:], tensors[1][150:]), other,
        ),
        "every other row, and the last ones": (
            TensorDataset(tensors[0][::2], tensors[1][::2]), TensorDataset(tensors[0][250:], tensors[1][250:]), other,
        ),
        "rows of tensors that overlap": (
            Subset(TensorDataset(tensors[0][:200]), [160]), Subset(TensorDataset(tensors[0][150:]), [10]), other,
        ),
        "other columns of the same rows": (TensorDataset(tensors[0][:, :3]), TensorDataset(tensors[0][:, 3:]), other),
        "columns of one tensor": (TensorDataset(tensors[0][:, :3]), Subset(TensorDataset(tensors[0]), [7]), other),
    }  # fmt: skip


@pytest.mark.parametrize("kind", shared_sets())
def test_sets_that_share_records_are_refused(kind):
    """The statement said max(ε_D, ε_V) for a record that was in both."""
    data = Splits(*shared_sets()[kind], 3)
    with pytest.raises(DataError, match="share records"):
        refuse_shared_records(data, validation_is_read=True)


def test_sets_apart_are_accepted():
    whole, tensors = listed(), words_of(300, 0).tensors
    apart = Splits(Subset(whole, range(200)), Subset(whole, range(200, 300)), Subset(whole, range(300, 400)), 3)
    refuse_shared_records(checked_splits(apart, private=True), validation_is_read=True)
    cut = Splits(*(TensorDataset(tensors[0][a:b], tensors[1][a:b]) for a, b in ((0, 100), (100, 200), (200, 300))), 3)
    refuse_shared_records(cut, validation_is_read=True)
    joined = ConcatDataset([Subset(whole, range(50)), Subset(whole, range(50, 100))])
    joined_apart = Splits(Subset(joined, range(40, 90)), Subset(whole, [*range(40), *range(90, 200)]), listed(50, 2), 3)
    refuse_shared_records(joined_apart, validation_is_read=True)
    rows = Subset(TensorDataset(tensors[0][:200]), [160]), Subset(TensorDataset(tensors[0][150:]), [11, 60])
    refuse_shared_records(Splits(*rows, listed(50, 2), 3), validation_is_read=True)
    same = Splits(whole, whole, listed(50, 2), 3)
    refuse_shared_records(same, validation_is_read=False)  # FullDP reads no V


def repeated_sets():
    whole = listed()
    return {
        "oversampled": ConcatDataset([whole, Subset(whole, range(20))]),
        "joined twice": ConcatDataset([whole, whole]),
        "one record": Subset(whole, [7] * 100),
        "from the end": Subset(whole, [-1, *range(50, len(whole))]),
        "rows of a store": RecordSet(DatasetStore(whole), np.array([*range(200), 3])),
    }


@pytest.mark.parametrize("kind", repeated_sets())
def test_a_trainer_refuses_a_record_that_is_there_twice(trainer, kind):
    """Oversampling a rare class lets each of its records be drawn, and clipped, several times for one price."""
    with pytest.raises(DataError, match="more than once"):
        train_on(trainer("FullDP"), splits(repeated_sets()[kind]))
    refuse_repeated_records({"trainset": listed()}, by_owner=False)


def test_owners_have_to_be_those_that_the_plan_counts():
    whole = listed()
    owned = RecordSet(DatasetStore(whole), np.zeros(9, dtype=np.int64), owners=Owners(np.arange(9) // 3, 3))
    refuse_repeated_records({"trainset": owned}, by_owner=True)  # of an owner all places pay together
    for part, by_owner in ((owned, False), (whole, True)):
        with pytest.raises(DataError, match="conversely"):
            refuse_repeated_records({"trainset": part}, by_owner=by_owner)
    strange = RecordSet(DatasetStore(whole), np.arange(9), owners=Owners(np.arange(9) - 1, 3))
    with pytest.raises(DataError, match="numbers from 0"):
        refuse_repeated_records({"trainset": strange}, by_owner=True)


def test_a_source_is_believed_as_little_as_a_program(tmp_path, make_config, monkeypatch):
    """A plugin's D and V shared rows, and its D held one record 300 times: the statement said ε of one record."""
    source = find_source("arrays")
    build = type(source).build

    def run_with(rows_of):
        def lying(self, section, rng):
            made = build(self, section, rng)
            parts = (RecordSet(made.train.store, rows) for rows in rows_of(made.train.rows))
            return Splits(*parts, made.test, made.num_classes)

        monkeypatch.setattr(type(source), "build", lying)
        section = {"path": str(tmp_path / "some.npz"), "classes": 2}
        run_experiment(make_config("GLISTERDP", "arrays", dataset=section), tmp_path / "run", progress=False)

    rng = np.random.default_rng(0)
    np.savez(tmp_path / "some.npz", x=rng.normal(size=(400, 3)).astype(np.float32), y=rng.integers(0, 2, 400))
    with pytest.raises(DataError, match="share records"):
        run_with(lambda rows: (rows[:200], rows[150:]))
    with pytest.raises(DataError, match="more than once"):
        run_with(lambda rows: (np.repeat(rows[:1], 200), rows[200:]))


def test_a_trainer_refuses_sets_that_share_records_before_anything_is_spent(trainer, tmp_path):
    whole = listed()
    with pytest.raises(DataError, match="share records"):
        train_on(trainer("GLISTERDP"), splits(whole, whole))
    assert not list(tmp_path.rglob("ledger*"))


class Flipping(Listed):
    """A random transform: no two readings of a record are alike."""

    def __getitem__(self, index):
        x, y = self.records[index]
        return x + torch.rand(6), y


@pytest.mark.parametrize("kind", [Listed, Flipping])
def test_a_run_is_resumed_on_the_records_that_it_began_with(trainer, tmp_path, kind):
    """D and V of the same size were exchanged, and nothing objected."""
    one, other = (kind(listed(200, seed).records) for seed in (0, 1))
    keys = {"ckpt": {"is_save": True, "save_every": 1}}
    train_on(trainer("GLISTERDP", **keys), splits(one, other))
    (private,) = {path.parent for path in tmp_path.rglob("records-*")}
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in private.iterdir()} == {
        "records-D": "0o600", "records-V": "0o600",
    }  # fmt: skip
    keys["ckpt"]["is_load"] = True
    with pytest.raises(AccountingError, match="other records"):
        train_on(trainer("GLISTERDP", **keys), splits(other, one))
    train_on(trainer("GLISTERDP", **keys), splits(one, other))
    (private / "records-V").unlink()
    with pytest.raises(AccountingError, match="missing"):
        train_on(trainer("GLISTERDP", **keys), splits(one, other))
