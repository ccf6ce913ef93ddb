"""A released model, ready to predict: ``cords_dp.load_model(RUN)``.

Needs the run's ``model.json`` and ``model.pt`` (weights, or a checkpoint) and nothing else of it: no data, no CORDS
(unless the architecture is CORDS' own), no pickle. Predictions about records are a function of the released model and
of those records.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from tqdm import tqdm

from cords_dp.data.handed_over import as_records
from cords_dp.data.record_set import RecordSet, sequential_batches
from cords_dp.data.sources.arrays import ArraySource
from cords_dp.data.sources.base import Source, find_source
from cords_dp.data.sources.folder import SUFFIXES, FolderSource
from cords_dp.data.sources.texts import encode_texts
from cords_dp.data.store import PixelConstants, normalised
from cords_dp.errors import ConfigError, CordsDPError, DataError, ModelUnavailableError
from cords_dp.files import write_durably
from cords_dp.models.card import FILE, ModelCard
from cords_dp.models.losses import CHECKPOINT_CLASSES
from cords_dp.progress import shown_bar

_WEIGHTS = "model.pt"
_BATCH = 256
_ARRAYS = (".npz", ".npy")
_OF_ANY_KIND = ("folder", "arrays", "embeddings")  # sources of images and numbers, whose files serve each other's


def load_model(run: str | Path, *, weights: str | Path | None = None, features: str | None = None) -> LoadedModel:
    """Load the model that a run has released into the folder ``run``.

    ``weights`` and ``features`` take the place of the config's ``model.weights`` and ``model.features``, where a
    backbone's file lies elsewhere on this machine; another backbone is refused.
    """
    folder = Path(run).expanduser()
    missing = [name for name in (FILE, _WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise ModelUnavailableError(
            f"{folder.name} holds no {missing[0]}: name the output folder of a run, or a script's log folder with "
            f"a checkpoint (ckpt.is_save), or with model.state_dict() saved as {_WEIGHTS}, in it"
        )
    card = ModelCard.from_json((folder / FILE).read_text(errors="replace"))
    moved = {"weights": None if weights is None else str(weights), "features": features}
    section = {**card.model, **{key: value for key, value in moved.items() if value is not None}}
    model = ModelCard(**{**card.__dict__, "model": section}).build()
    problem = f"{_WEIGHTS} is damaged, or no state_dict"
    try:
        state = _released_weights(folder / _WEIGHTS)
        problem = f"{_WEIGHTS} does not hold the weights of the model that {FILE} describes"
        model.load_state_dict(state)
    except Exception as error:  # torch and pickle raise many kinds
        raise ModelUnavailableError(problem) from error
    return LoadedModel(card, model.eval())


def _released_weights(path: Path) -> Mapping[str, Tensor]:
    """Read a plain state_dict, or what a checkpoint has of the released model: the calibrated one, the average of the
    steps, or the last step's. Runs no code."""
    with torch.serialization.safe_globals(CHECKPOINT_CLASSES):
        state = torch.load(path, map_location="cpu", weights_only=True)
    if "state_dict" not in state:
        return state
    found = next((state[name] for name in ("calibrated", "average") if name in state), state)
    return found["state_dict"]


class LoadedModel:
    """Predicts. ``classes``: their names in the order of the probabilities; empty for a regression."""

    def __init__(self, card: ModelCard, model: nn.Module):
        self.card, self.model, self.classes = card, model, card.classes

    def predict(self, x: Any, threshold: float | None = None) -> np.ndarray:
        """Return the name of the likeliest class of each record, or "" for one that is not finite; a regression's
        numbers, in the target's unit: one for each record, or a row where several are predicted. x: as for
        `predict_proba`. threshold: of two classes, the probability from which a record counts as the second one,
        instead of a half."""
        self.check_threshold(threshold)
        outputs = self._outputs(self._batches(x))
        if not self.card.regression:
            return self._names(outputs, threshold)
        return outputs[:, 0] if self.card.outputs == 1 else outputs

    def predict_proba(self, x: Any) -> np.ndarray:
        """Return probabilities, one row for each record. x: records as they were trained on; pixels as bytes; texts;
        or, of a table, a pandas DataFrame with the schema's columns, in any order and among others."""
        if self.card.regression:
            raise DataError("a regression has no probabilities; use predict")
        return self._outputs(self._batches(x))

    def predict_file(
        self,
        path: str | Path,
        *,
        out: str | Path | None = None,
        progress: bool = False,
        id_column: str | None = None,
        delimiter: str | None = None,
        threshold: float | None = None,
    ) -> pd.DataFrame:
        """Return one row for each record of a file that the source reads; written as CSV to ``out``, if that is given.

        A record that cannot be read has an empty row. ``id_column``: a column of the file that is copied beside the
        predictions. ``delimiter``: of a CSV file, if it is not the one that was trained with. ``threshold``: as for
        `predict`.
        """
        self.check_threshold(threshold)
        records = as_records(self._read(Path(path).expanduser(), delimiter))
        identifiers = {} if id_column is None else {id_column: self._identifiers(records, id_column)}
        total = len(records)
        with shown_bar(total=total, unit="record", desc="predict", shown=progress, leave=False) as bar:
            outputs = self._outputs(self._shown(records, bar))
        names = records.store.names or list(range(total))
        if self.card.regression:
            columns = {f"prediction_{i}" if outputs.shape[1] > 1 else "prediction": outputs[:, i] for i in
                       range(outputs.shape[1])}  # fmt: skip
        else:
            columns = {"prediction": self._names(outputs, threshold)}
            columns |= {f"p_{name}": outputs[:, place] for place, name in enumerate(self.classes)}
        frame = pd.DataFrame({"record": names, **identifiers, **columns})
        if out is not None:
            text = io.StringIO(newline="")
            frame.to_csv(text, index=False, float_format="%.6g", lineterminator="\n")
            write_durably(Path(out), text.getvalue())
        return frame

    # -- inside -------------------------------------------------------------------------------------

    def _identifiers(self, records: RecordSet, column: str) -> pd.Series:
        if column in {"record", "prediction", *(f"p_{name}" for name in self.classes)}:
            raise ConfigError("--id", column, "the predictions have a column of this name; rename it")
        return pd.Series(records.store.identifiers(column), dtype=object)

    def check_threshold(self, threshold: float | None) -> None:
        """Refuse a threshold that is no probability, or for another number of classes than two."""
        if threshold is not None and len(self.classes) != 2:
            raise ConfigError("threshold", threshold, "needs a model of two classes; this one has others")
        if threshold is not None and not 0 <= threshold <= 1:
            raise ConfigError("threshold", threshold, "must be a probability, from 0 to 1")

    def _names(self, probabilities: np.ndarray, threshold: float | None = None) -> np.ndarray:
        finite, known = np.isfinite(probabilities).all(axis=1), np.nan_to_num(probabilities)
        likeliest = known.argmax(axis=1) if threshold is None else (known[:, 1] >= threshold).astype(int)
        best = np.where(finite, likeliest, 0)
        return np.where(finite, np.array(self.classes, dtype=object)[best], "")

    @torch.no_grad()
    def _outputs(self, batches: Iterable[Tensor]) -> np.ndarray:
        """Return probabilities, or a regression's predictions in the target's unit."""
        rows = [torch.zeros(0, self.card.outputs)]
        for x in batches:
            for piece in x.split(_BATCH):
                logits = self.model(piece).reshape(len(piece), self.card.outputs)
                rows.append(logits if self.card.regression else torch.softmax(logits.double(), dim=1).float())
        outputs = torch.cat(rows).numpy()
        if not self.card.regression:
            return outputs
        reader, source = self._source()
        with _undamaged_card():
            return outputs if reader is None else reader.in_target_unit(source, outputs.astype(np.float64))

    def _shown(self, records: RecordSet, bar: tqdm) -> Iterable[Tensor]:
        for x, _ in sequential_batches(records, _BATCH):
            yield x
            bar.update(len(x))

    def _batches(self, x: Any) -> Iterable[Tensor]:
        """Yield what a user hands over, as batches of records."""
        source = dict(self.card.source or {})
        if isinstance(x, pd.DataFrame) and (reader := find_source(source.get("source"))) is not None:
            with _undamaged_card():
                records = reader.read_frame(source, x)
            if records is not None:
                return (batch for batch, _ in sequential_batches(records, _BATCH))
        return [self._records(x)]

    def _records(self, x: Any) -> Tensor:
        """Return texts, pixels or arrays as one batch."""
        card = self.card
        if isinstance(x, str) or (isinstance(x, Sequence) and len(x) and isinstance(x[0], str)):
            if card.dtype != "uint8":
                raise DataError(f"this model reads records of shape {card.shape}, no texts")
            return encode_texts([x] if isinstance(x, str) else list(x), card.shape[0])
        try:
            given = torch.as_tensor(np.asarray(x))
        except Exception:
            given = torch.zeros(0)
        if card.pixels is not None and given.dtype == torch.uint8:
            given = _pixels(given, card.shape, card.pixels)
        if tuple(given.shape) == card.shape:
            given = given[None]
        if tuple(given.shape[1:]) != card.shape:
            raise DataError(f"the model reads records of shape {card.shape}; hand over an array of such rows")
        return given.to(card.record_type)

    def _read(self, path: Path, delimiter: str | None = None) -> Dataset:
        """Read the records of a file, by the run's source; images and arrays serve any model of images or numbers."""
        if not path.exists():
            raise DataError(f"there is no file or folder {path.name}")
        reader, source = self._source()
        if delimiter is not None:
            if "delimiter" not in source:
                raise ConfigError("--delimiter", delimiter, "only tables have one")
            source["delimiter"] = delimiter
        with _undamaged_card():
            if reader is not None and reader.name not in _OF_ANY_KIND:
                return reader.read(source, str(path))
            return self._read_any(path)

    def _source(self) -> tuple[Source | None, dict[str, Any]]:
        """Return the source that has read the records of the run, and its card."""
        source = dict(self.card.source or {})
        reader = find_source(source.get("source"))
        if source and reader is None:
            raise ModelUnavailableError(f"the source {source.get('source')!r} is not registered here")
        return reader, source

    def _read_any(self, path: Path) -> Dataset:
        card = self.card
        pixels: Mapping[str, Any] | None = None if card.pixels is None else card.pixels._asdict()
        if path.suffix in _ARRAYS or (path.is_dir() and next(path.glob("*.npy"), None)):
            return ArraySource().read({"shape": card.shape, "pixels": pixels}, os.fspath(path))
        square = len(card.shape) == 3 and card.shape[1] == card.shape[2]
        if pixels is not None and square and (path.is_dir() or path.suffix.lower() in SUFFIXES):
            return FolderSource().read({"shape": card.shape, **pixels}, os.fspath(path))
        kinds = ", ".join([*_ARRAYS, *(["an image or a folder of images"] if pixels and square else [])])
        raise DataError(f"{path.name} cannot be read for this model, which takes {kinds}")


@contextlib.contextmanager
def _undamaged_card() -> Iterator[None]:
    """Tell a card that was edited by name."""
    try:
        yield
    except CordsDPError:
        raise
    except Exception as error:
        raise ModelUnavailableError(f"{FILE} is damaged: its source cannot be used") from error


def _pixels(given: Tensor, shape: tuple[int, ...], constants: PixelConstants) -> Tensor:
    """Read bytes as images N×C×H×W, channels first or last, or without for grey ones, by public constants."""
    channels, height, width = shape
    if tuple(given.shape[-3:]) == (height, width, channels):
        given = given.movedim(-1, -3)
    elif channels == 1 and tuple(given.shape[-2:]) == (height, width) and tuple(given.shape[-3:]) != shape:
        given = given.unsqueeze(-3)
    if tuple(given.shape[-3:]) != shape:
        return given.float()
    return normalised(given.reshape(-1, *shape), constants)
