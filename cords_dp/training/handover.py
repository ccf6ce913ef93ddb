"""Writes the files beside a trained model: the privacy statement, and what a prediction has to know.

Released are public facts of config, plan and source, and what the ledger says was charged; no record is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from cords_dp.config import to_plain
from cords_dp.data.published import public_facts
from cords_dp.data.sources.base import Facts
from cords_dp.errors import AccountingError, StorageError
from cords_dp.files import out_of_space, write_durably
from cords_dp.models.card import FILE as MODEL_CARD
from cords_dp.models.card import ModelCard, features_of
from cords_dp.planning.statement import STATEMENT, privacy_report, write_statement
from cords_dp.training.checkpoint import log_folder
from cords_dp.training.opening import spent_before
from cords_dp.training.provenance import about_run
from cords_dp.training.run import Run

if TYPE_CHECKING:
    from cords_dp.training.trainer import TrainClassifier

_WRITTEN = (*STATEMENT, MODEL_CARD)
# What else `runs.run` releases into a run's own folder. Beside a script's log, model.pt is a checkpoint.
_OF_A_RUN = ("model.pt", "subset.json", "about.json", "result.json", "files.json")


def hand_over(trainer: TrainClassifier, folders: Sequence[Path]) -> None:
    """Write model.json and, of a private run, privacy.json, privacy.md and privacy.html into each folder.

    What an earlier run left there goes first: a statement belongs to one model.
    """
    withdraw(folders, (*_WRITTEN, *_OF_A_RUN) if trainer.output_dir is not None else _WRITTEN)
    for folder in folders:
        if trainer.plan is not None:
            about = about_run(trainer, folder)
            run = trainer.run
            report = privacy_report(
                trainer.plan, trainer.ledger, unused_keys=run.unused, about=about, tested=run.shows_test
            )
            write_statement(folder, report)
        if trainer.builds_configured_model:  # else nothing here could build it again
            write_durably(folder / MODEL_CARD, model_card(trainer).to_json())


def folders_of(trainer: TrainClassifier) -> list[Path]:
    """Return where model and statement lie: a folder of the run's own, or beside log and checkpoint."""
    if trainer.output_dir is not None:
        return [trainer.output_dir]
    assert trainer.checkpoint is not None
    saving = [trainer.checkpoint.parent] if trainer.run.config["ckpt"].get("is_save") else []
    return list(dict.fromkeys([log_folder(trainer.logger), *saving]))


def look_back(trainer: TrainClassifier) -> None:
    """Tell what a run that was interrupted here has spent; withdraw what an earlier one said of its model."""
    assert trainer.checkpoint is not None
    folders = folders_of(trainer)
    if not trainer.run.resumes and (warning := spent_before(trainer.checkpoint, trainer.plan, folders)):
        trainer.logger.warning(warning)
    if trainer.output_dir is None:  # the first checkpoint replaces the model that it speaks of
        withdraw(folders)


def withdraw(folders: Sequence[Path], names: Sequence[str] = _WRITTEN) -> None:
    """Remove what an earlier run said about its model."""
    for folder in folders:
        for name in names:
            (folder / name).unlink(missing_ok=True)


@contextmanager
def explaining_full_disks(trainer: TrainClassifier) -> Iterator[None]:
    """Let a full disk end a run with a message: what it has cost so far, and how to resume it."""
    try:
        yield
    except (OSError, AccountingError) as error:
        full = out_of_space(error)
        if full is None or isinstance(error, StorageError):
            raise
        raise StorageError(_after_a_full_disk(trainer, full)) from error


def _after_a_full_disk(trainer: TrainClassifier, error: OSError) -> str:
    run, plan, words = trainer.run, trainer.plan, [f"{error.strerror}: {error.filename or 'a file of the run'}."]
    if plan is not None and not plan.noiseless:
        spent = plan.spent(trainer.ledger, quick=True)
        words.append(f"ε = {spent.epsilon:.4f} of {plan.privacy.epsilon:g} is charged and stays charged.")
    if run.subset.secret_subset:
        words.append("A run on a secret subset cannot be resumed.")
    else:
        since = "from the last checkpoint" if run.config["ckpt"].get("is_save") else "with what is left of the budget"
        words.append(f"Make room; then --resume (in a script: ckpt.is_load=True) continues {since}.")
    return " ".join(words)


def model_card(trainer: TrainClassifier) -> ModelCard:
    """Collect public facts about a trainer's model, of the config and of its source."""
    assert trainer.model is not None
    assert trainer.data is not None
    return described_model(
        trainer.run,
        trainer.model,
        trainer.record,
        trainer.data.num_classes,
        # data that was handed over is nobody's but the user's
        facts=public_facts(trainer.run.config) if trainer.session.built else None,
        source=trainer.session.source_card(),
    )


def described_model(
    run: Run, model: nn.Module, record: Tensor, outputs: int, *, facts: Facts | None, source: Mapping[str, Any] | None
) -> ModelCard:
    """Collect public facts about a model, none of which is taken from records. ``record``: zeros in its shape."""
    return ModelCard(
        model={key: value for key, value in to_plain(run.config["model"]).items() if key != "feature_cache"},
        private=run.strategy.private,
        regression=run.regression,
        shape=tuple(record.shape),
        dtype=str(record.dtype).removeprefix("torch."),
        outputs=outputs,
        classes=() if run.regression else facts.classes if facts else tuple(map(str, range(outputs))),
        pixels=facts.constants if facts else None,
        input_norm=facts.norm if facts else None,
        features=features_of(model),
        source=source,
    )
