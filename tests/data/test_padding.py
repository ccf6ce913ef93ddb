"""Records of different lengths: one public length, and no record that depends on another."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cords_style import write_vectors
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import TensorDataset

from cords_dp.data.padding import padded, padded_splits
from cords_dp.data.record_set import Splits, records_at
from cords_dp.data.text_sets import glove_file, read_vocabulary, word_numbers
from cords_dp.errors import DataError
from cords_dp.models.private import make_private_ready
from cords_dp.training.gradients.choose import try_modes
from cords_dp.training.step import PrivateEngine

CE = nn.CrossEntropyLoss(reduction="none")


class Rows:
    def __init__(self, rows):
        self.rows = [torch.tensor(row, dtype=torch.long) for row in rows]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], index % 2


def pads_to_longest(records):
    """In CORDS' manner: the shape of a batch tells how long its longest record is."""
    longest = max(len(row) for row, _ in records)
    return torch.stack([torch.cat([row, row.new_zeros(longest - len(row))]) for row, _ in records]), torch.tensor(
        [label for _, label in records]
    )


rows = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=2, max_size=8)


@settings(max_examples=60)
@given(rows=rows, length=st.integers(1, 10), collate=st.sampled_from([None, pads_to_longest]))
def test_a_row_is_a_function_of_its_record(rows, length, collate):
    """Mutant: padding to the longest record of the batch."""
    dataset = padded(Rows(rows), length, collate)
    together, labels = dataset.batch(np.arange(len(rows)))
    assert together.shape == (len(rows), length)
    for i, row in enumerate(rows):
        alone = records_at(dataset, np.array([i]))
        assert torch.equal(alone[0][0], together[i])
        assert int(alone[1][0]) == int(labels[i]) == i % 2
        kept = row[:length]
        assert together[i].tolist() == [0] * (length - len(kept)) + kept


def test_a_collate_function_never_sees_two_records():
    seen = []

    def collate(records):
        seen.append(len(records))
        return pads_to_longest(records)

    padded(Rows([[1, 2], [3], [4, 5, 6]]), 4, collate).batch(np.array([2, 0, 1, 1]))
    assert seen == [1, 1, 1, 1]


def test_an_empty_batch_has_the_right_shape():
    x, y = padded(Rows([[1, 2]]), 5).batch(np.array([], dtype=np.int64))
    assert (x.shape, x.dtype, y.shape) == ((0, 5), torch.int64, (0,))


def test_what_is_wrong_with_a_record_is_not_told():
    def collate(records):
        raise ValueError(f"bad record {records[0][0].tolist()}")

    for dataset in (padded(Rows([[77, 78]]), 5, collate), padded(Rows([[[77], [78]]]), 5)):
        with pytest.raises(DataError) as error:
            dataset.batch(np.array([0]))
        assert "77" not in str(error.value)
        assert error.value.__context__ is None


def test_only_text_and_collated_sets_are_changed():
    x = TensorDataset(torch.zeros(3, 4), torch.zeros(3, dtype=torch.long))
    data = Splits(x, x, x, 2)
    plain = {"dataset": {"name": "mine", "type": "tabular"}, "dataloader": {"batch_size": 2}}
    assert padded_splits(data, plain) is data
    rows = Rows([[1, 2, 3], [4]])
    text = {"dataset": {"name": "mine", "type": "text"}, "dataloader": {}}
    assert padded_splits(Splits(rows, rows, rows, 2), text).train[0][0].shape == (64,)
    short = {**text, "dataset": {**text["dataset"], "max_length": 2}}
    assert padded_splits(Splits(rows, rows, rows, 2), short).train[0][0].tolist() == [1, 2]
    assert padded_splits(Splits(rows, rows, rows, 2), {**text, "dataset": {"name": "imdb"}}).train[0][0].shape == (400,)


# --- words ------------------------------------------------------------------------------------------------------------


def test_words_are_places_in_a_public_vocabulary(tmp_path):
    vocabulary = read_vocabulary(glove_file(write_vectors(tmp_path), 6, "dataset.weight_path"))
    assert vocabulary["the"] == 0
    assert word_numbers("The film WASN'T good, unknown!", vocabulary) == [
        vocabulary[word] for word in ("the", "film", "was", "n't", "good", "!")
    ]
    assert word_numbers("", vocabulary) == []


# --- the model that reads them ---------------------------------------------------------------------------------------


@pytest.fixture
def reader(tmp_path):
    from cords_dp.cords import cords_models

    torch.manual_seed(0)
    model = cords_models.LSTMClassifier(2, 6, write_vectors(tmp_path), num_layers=1, hidden_size=4)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    words = torch.randint(0, 12, (5, 7))
    expected = model(words)
    private, replaced = make_private_ready(model)
    assert torch.allclose(private(words), expected, atol=1e-6)  # the same net
    assert len(replaced) == 2
    assert {name: value.tolist() for name, value in private.state_dict().items()} == {
        name: value.tolist() for name, value in before.items()
    }
    return private


def test_released_weights_fit_cords_own_model(reader, tmp_path):
    import copy

    from cords_dp.cords import cords_models

    words = torch.randint(0, 12, (5, 7))
    public = cords_models.LSTMClassifier(2, 6, write_vectors(tmp_path), num_layers=1, hidden_size=4)
    public.load_state_dict(reader.state_dict())
    assert torch.allclose(public(words), reader(words), atol=1e-6)
    other = copy.deepcopy(reader)
    for p in other.parameters():
        p.data.add_(1.0)
    other.load_state_dict(reader.state_dict())
    assert torch.equal(other(words), reader(words))


def test_per_example_gradients_of_sentences_are_right(reader):
    """The modes are compared with autograd on one example at a time; Opacus' hooks must be among the right ones."""
    words, labels = torch.randint(0, 2, (4, 7)), torch.arange(4) % 2
    right, problems = try_modes(reader, words, labels, CE)
    assert "hooks" in right, problems
    assert "linear" in problems


def test_a_sentence_contributes_no_more_than_the_clip_norm(reader):
    import copy

    words, labels = torch.randint(0, 12, (6, 7)), torch.arange(6) % 2
    moved = []
    for weights in (torch.ones(6), torch.tensor([0.0, 1, 1, 1, 1, 1])):  # the first is null in the neighbour
        model = copy.deepcopy(reader)
        learning = [p for p in model.parameters() if p.requires_grad]
        before = torch.cat([p.detach().reshape(-1).clone() for p in learning])
        engine = PrivateEngine(model, torch.optim.SGD(learning, lr=1.0), CE, sigma=0.0, max_grad_norm=1e-2,
                               batch_size=1, mode="hooks")  # fmt: skip
        engine.step(words, labels, weights)
        moved.append(torch.cat([p.detach().reshape(-1) for p in learning]) - before)
    assert 0 < float((moved[0] - moved[1]).norm()) <= 1e-2 * 1.001


def test_numbers_that_are_no_words_do_not_stop_a_run(reader):
    assert bool(torch.isfinite(reader(torch.tensor([[-5, 10**9, 3]]))).all())
