"""Bad records: a typed error by what is public of a set, or no contribution; never a word about single records."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import Net, data_of
from torch.utils.data import Dataset, TensorDataset

from cords_dp.datasets import ArrayDataset, GuardedDataset, Splits, checked_splits, records_at
from cords_dp.errors import ConfigError, CordsDPError, DataError
from cords_dp.models import check_input, register_model
from cords_dp.selection.match import uniform_gradients
from cords_dp.training import TrainClassifier

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
    assert isinstance(data.train, GuardedDataset)
    assert not isinstance(data.test, GuardedDataset)
    x, y = records_at(data.train, np.arange(5))
    expected = [data.train.source[i] for i in range(5)]
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
    test = ArrayDataset(np.zeros((5, 6), dtype=np.float32), np.array([0, 1, 2, 3, 9]))
    with pytest.raises(DataError, match="testset has labels outside"):
        checked_splits(splits(test=test), private=True)


@pytest.fixture
def trainer(make_config):
    def make(strategy="RandomDP", classes=3, **changes):
        changes.setdefault("train_args", {}).update(num_epochs=1, print_every=1)
        cfg = make_config(strategy, model={"architecture": "RoughNet", "numclasses": classes}, **changes)
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
    train.x[::7] = value
    validation.x[::7] = value
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
    x, y = GuardedDataset(TensorDataset(words, labels), num_classes=3).batch(np.arange(3))
    assert x.equal(words)
    logits = torch.randn(3, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
    losses = torch.nn.CrossEntropyLoss(reduction="none")(logits, y)
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    assert gradient[0].abs().sum() > 0
    assert gradient[1:].abs().sum() == losses[1:].abs().sum() == 0
    assert torch.isfinite(uniform_gradients(torch.ones(3, 2), y, 3).r).all()
