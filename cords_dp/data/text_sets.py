"""CORDS' text sets: sentences as the places of their words in GloVe's vocabulary, which is public.

A sentence becomes numbers by itself: words that the vocabulary lacks are left out, as in CORDS, and no word is counted
over the records. CORDS' wheel and its checkout do not know the same sets, so all of them are read here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset

from cords_dp.data.record_set import Splits
from cords_dp.errors import ConfigError, DatasetUnavailableError

Labelled = list[tuple[str, int]]  # (sentence, label)
_WORDS = re.compile(r"[a-z0-9]+(?=n't\b)|n't\b|'[a-z]+|[a-z0-9]+|[(),!?]")
_TREC_CLASSES = ("DESC", "ENTY", "HUM", "ABBR", "LOC", "NUM")
_HELD_OUT = 0.1


class TextDataset(Dataset):
    """Sentences of different lengths, each a row of word numbers."""

    def __init__(self, records: Labelled, vocabulary: Mapping[str, int]):
        self.sentences = [torch.tensor(word_numbers(text, vocabulary), dtype=torch.long) for text, _ in records]
        self.targets = torch.tensor([label for _, label in records], dtype=torch.long)

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.sentences[index], self.targets[index]


def word_numbers(text: str, vocabulary: Mapping[str, int]) -> list[int]:
    """Number the lower-case words and marks, with ``n't`` and ``'s`` as words of their own, as GloVe has them."""
    return [vocabulary[word] for word in _WORDS.findall(text.lower()) if word in vocabulary]


def glove_file(folder: Any, dimension: Any, key: str) -> Path:
    """Find the file of GloVe's vectors; ``key`` is the config's key for its folder."""
    if folder is None or dimension is None:
        raise ConfigError(key, folder, "say where GloVe's vectors are (weight_path) and how long (wordvec_dim)")
    path = Path(folder).expanduser() / f"glove.6B.{dimension}d.txt"
    if not path.is_file():
        raise ConfigError(key, str(folder), f"has no {path.name}; unpack glove.6B.zip of GloVe's publishers there")
    return path


def read_vocabulary(path: Path) -> dict[str, int]:
    with open(path, encoding="utf-8", newline="\n") as lines:
        words = (line.split(" ", 1)[0] for line in lines if line.strip())
        return {word: number for number, word in enumerate(words)}


def build_text(section: Mapping[str, Any], rng: np.random.Generator) -> Splits:
    """Train, validation and test sentences of a CORDS text set."""
    known = TEXT_SETS[section["name"]]
    vectors = glove_file(section.get("weight_path"), section.get("wordvec_dim"), "dataset.weight_path")
    vocabulary = read_vocabulary(vectors)
    records = known.read(Path(section.get("datadir") or ".").expanduser(), known.classes)
    parts: dict[str, Dataset] = {
        name: TextDataset(part, vocabulary) for name, part in records.items() if name != known.held_out
    }
    if known.held_out is not None:
        order = rng.permutation(len(records["train"]))  # without looking at the records
        share = section.get("validation_fraction") if known.held_out == "validation" else None
        cut = int((_HELD_OUT if share is None else share) * len(order))
        parts[known.held_out] = Subset(parts["train"], order[:cut].tolist())
        parts["train"] = Subset(parts["train"], order[cut:].tolist())
    return Splits(parts["train"], parts["validation"], parts["test"], known.classes)


# --- where the sentences come from --------------------------------------------------------------------------------

Parts = dict[str, Labelled]  # "train", "validation" and "test"
Reader = Callable[[Path, int], Parts]


class TextSet(NamedTuple):
    """How a set is read, its classes, and how many words of a sentence are kept where the config does not say.

    held_out: the part that is missing or has no labels; it is split off from the training set.
    """

    read: Reader
    classes: int
    max_length: int
    held_out: str | None = None


def _lines(path: Path, encoding: str = "utf-8") -> list[str]:
    if not path.is_file():
        raise DatasetUnavailableError(f"the data directory (dataset.datadir) has no {path.name}, which this set needs")
    return path.read_text(encoding=encoding).splitlines()


def _treebank(folder: Path, classes: int) -> Parts:
    """Read Stanford's sentiment treebank with CORDS' lists of phrases; a sentiment in [0, 1] becomes a class."""
    sentiment = dict(line.split("|") for line in _lines(folder / "sentiment_labels.txt")[1:])
    phrases = {number: phrase for phrase, number in (s.rsplit("|", 1) for s in _lines(folder / "dictionary.txt"))}

    def part(name: str) -> Labelled:
        wanted = [line.strip() for line in _lines(folder / f"phrase_ids.{name}.txt")]
        return [(phrases[i], int(float(sentiment[i]) * (classes - 0.001))) for i in wanted if i in phrases]

    return {"train": part("train"), "validation": part("dev"), "test": part("test")}


def _trec(folder: Path, _: int) -> Parts:
    def part(name: str) -> Labelled:
        pairs = (line.split(":", 1) for line in _lines(folder / f"{name}.txt", "latin1") if ":" in line)
        return [(text.split(" ", 1)[-1], _TREC_CLASSES.index(label.strip())) for label, text in pairs]

    return {"train": part("train"), "validation": part("valid"), "test": part("test")}


def _hub(*address: str, text: str = "text", label: str = "label") -> Reader:
    """Read a set of Hugging Face's hub."""

    def read(_: Path, __: int) -> Parts:
        return {name: _pairs(part, text, label) for name, part in _load_from_hub(address).items()}

    return read


def _pairs(rows: Iterable[Mapping[str, Any]], text: str, label: str) -> Labelled:
    return [(row[text], int(row[label])) for row in rows]


def _load_from_hub(address: tuple[str, ...]) -> Mapping[str, Any]:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise DatasetUnavailableError(f"{address[0]} comes from Hugging Face's hub: pip install datasets") from error
    try:
        return load_dataset(*address)
    except Exception as error:  # the hub does not answer; it raises many kinds
        raise DatasetUnavailableError(f"{address[0]} cannot be had from the hub ({type(error).__name__})") from error


TEXT_SETS: dict[str, TextSet] = {
    "sst2": TextSet(_treebank, 2, 64),
    "sst2_facloc": TextSet(_treebank, 2, 64),
    "sst5": TextSet(_treebank, 5, 64),
    "trec6": TextSet(_trec, 6, 40),
    "hf_trec6": TextSet(_hub("trec", label="coarse_label"), 6, 40, held_out="validation"),
    "glue_sst2": TextSet(_hub("glue", "sst2", text="sentence"), 2, 64, held_out="test"),
    "imdb": TextSet(_hub("imdb"), 2, 400, held_out="validation"),
    "rotten_tomatoes": TextSet(_hub("rotten_tomatoes"), 2, 64),
    "tweet_eval": TextSet(_hub("tweet_eval", "emoji"), 20, 64),
}
