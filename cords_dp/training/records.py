"""The sets as a run reads them: guarded, padded, as features, and in batches for measuring."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from cords_dp.datasets import (
    Splits,
    checked_splits,
    is_text,
    padded_splits,
    public_length,
    sequential_batches,
    with_features,
)
from cords_dp.training.run import Run

_EVALUATION_BATCH = 1024


def readable(data: Splits, run: Run, *, own: bool) -> Splits:
    """A private run's records by themselves, what a user hands over checked."""
    if run.strategy.private:
        data = padded_splits(data, run.config)
    if run.regression and not run.strategy.private:
        return data  # CORDS' own sets and losses
    return checked_splits(data, private=run.strategy.private, regression=run.regression) if own else data


def padding_in_words(run: Run) -> list[str]:
    """What a user of texts should know about `readable`."""
    if not (run.strategy.private and is_text(run.config)):
        return []
    return [f"Every record is cut or filled up to {public_length(run.config)} words (dataset.max_length)."]


def featured(data: Splits, model: nn.Module, run: Run, *, progress: bool) -> Splits:
    """Pass every record through the model's fixed input transform once, where it has one."""
    transform = getattr(model, "input_transform", None)
    if transform is None:
        return data
    kept = run.config["model"].get("feature_cache") is not False
    folder = Path(run.config["dataset"].get("datadir") or "data").expanduser() / "features"
    half = getattr(model, "reads_half", False)

    def features(part: Dataset) -> Dataset:
        cache = folder if kept else None
        return with_features(part, transform, cache, progress=progress, device=run.device, half=half)

    return Splits(features(data.train), features(data.validation), features(data.test), data.num_classes)


def evaluation_batches(dataset: Dataset, run: Run) -> Iterable[tuple[Tensor, Tensor]]:
    collate = run.config["dataloader"].get("collate_fn") or None
    if collate is None or run.strategy.private:  # private records are collated one by one
        return sequential_batches(dataset, _EVALUATION_BATCH)
    return DataLoader(dataset, batch_size=_EVALUATION_BATCH, collate_fn=collate)
