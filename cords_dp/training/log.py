"""Logs a run: CORDS' log lines, the privacy plan, and nothing about single records.

The rows of metrics.csv also go to W&B, TensorBoard, both or neither.

``train_args.tensorboard``: the rows of metrics.csv as TensorBoard's event files.

Released and where it is charged: nothing new. A row holds what the log shows (metrics of the test set, rounded times,
ε); no histogram of weights or gradients is written, and no batch is traced. Events have the time of day in whole
seconds, as log lines do: left alone, the library notes microseconds, and how long an epoch took follows the size of a
secret pool.

``train_args.wandb``: the rows of metrics.csv, sent to Weights & Biases.

CORDS also lets it watch the model, which would send gradients of private batches without noise, and the share of
records that were drawn. Neither is done here, whatever the strategy.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tqdm import tqdm

from cords_dp.config.settings import PRIVATE, PUBLIC, UNREAD
from cords_dp.errors import ConfigError, how_to_install
from cords_dp.evaluation.released import ReleasedTest
from cords_dp.planning import PrivacyPlan
from cords_dp.progress import quiet, shown_bar
from cords_dp.training.metrics import ALL_LABELS, History, measured_for, scores
from cords_dp.training.run import Run

if TYPE_CHECKING:
    from cords_dp.training.session import Session


def shown_metrics(run: Run, plan: PrivacyPlan | None, logger: logging.Logger) -> list[str]:
    """Return the metrics that may be measured and logged, of those that the config asks for."""
    wanted = run.config["train_args"].get("print_args") or ["tst_loss", "tst_acc", "time"]
    return allowed_metrics(measured_for(wanted, regression=run.regression), plan, logger, test=run.test)


def allowed_metrics(
    wanted: Sequence[str], plan: PrivacyPlan | None, logger: logging.Logger, *, test: str = PUBLIC
) -> list[str]:
    """Return the configured metrics less those of an empty V, or that would show exact values of private records."""
    if test == UNREAD:
        wanted = [name for name in wanted if not name.startswith("tst_")]
    if plan is not None and not plan.shape.n_validation:
        missing = ", ".join(name for name in wanted if name.startswith("val_"))
        wanted = [name for name in wanted if not name.startswith("val_")]
        if missing:
            logger.info("Not measured, there being no validation set (dataset.validation_fraction): %s.", missing)
    if plan is None or plan.privacy.exact_metrics:
        return list(wanted)
    private = ["trn_", "subtrn_"] + (["val_"] if plan.privacy.validation == "private" else [])
    private += ["tst_"] if test != PUBLIC else []
    kept = [name for name in wanted if not name.startswith(tuple(private))]
    if len(kept) < len(wanted):
        dropped = ", ".join(name for name in wanted if name not in kept)
        logger.info("Not logged, being exact metrics of private records: %s.", dropped)
    if test == PRIVATE and plan.sigma_test is not None:
        logger.info("The test set is private (dataset.test): its noisy metrics are released once, when the run ends.")
    return kept


def log_plan(run: Run, plan: PrivacyPlan | None, logger: logging.Logger) -> None:
    if plan is None:
        return
    if run.unused:
        by = f"mechanism {run.mechanism.name!r}" if run.mechanism else run.strategy.name
        logger.info("Keys of the config that %s does not use: %s.", by, ", ".join(run.unused))
    if plan.noiseless:
        logger.warning("NOT PRIVATE: privacy.epsilon = inf (or None), so clipping and noise are off.")
        return
    logger.info(
        "Privacy plan: epsilon %g, delta %g, noise multiplier %.4f, %s, %d selections.",
        plan.privacy.epsilon,
        plan.delta,
        plan.sigma,
        plan.shape.steps_text,
        plan.shape.rounds,
    )


def log_end(session: Session, history: History, shown: Sequence[str]) -> None:
    """Log CORDS' closing lines, what was spent, and what was released of a private test set.

    Selected indices are logged for CORDS' own strategies only, which are not private.
    """
    plan, logger = session.plan, session.logger
    if plan is None and getattr(session.source, "selected_idxs", None):
        logger.info("Selected Indices: ")
        logger.info(session.source.selected_idxs)
    _log_results(session, history, shown)
    if plan is not None and not plan.noiseless:
        cost, allowed = plan.spent(session.ledger), plan.privacy.epsilon
        logger.info("Privacy spent: epsilon %.4f of %g at delta %g", cost.epsilon, allowed, cost.delta)
    if session.tested is not None:
        _log_released(session.tested, history, shown, logger)


def _log_results(session: Session, history: History, shown: Sequence[str]) -> None:
    logger, kind = session.logger, session.run.config["dss_args"]["type"]
    logger.info("%s Selection Run---------------------------------", kind)
    kinds = scores(regression=session.run.regression)
    for prefix in ("val", "tst"):
        names = [f"{prefix}_{one}" for one in ("loss", *kinds)]
        if history.last(names[0]) is not None:
            logger.info(" , ".join(f"{ALL_LABELS[name]}: {history.last(name):.2f}" for name in names))
    logger.info("---------------------------------------------------------------------")
    logger.info(kind)
    logger.info("---------------------------------------------------------------------")
    for column in (*(f"{prefix}_{one}" for prefix in ("val", "tst") for one in kinds), "time"):
        if column in shown and history.column(column):
            name = "Time" if column == "time" else ALL_LABELS[column]
            logger.info("%s: %s", name, " , ".join(str(v) for v in history.column(column)))
    logger.info("Total time taken by %s = %.4f ", kind, session.shown_seconds())


def _log_released(tested: ReleasedTest, history: History, shown: Sequence[str], logger: logging.Logger) -> None:
    """Log what was released of a private test set, and let the last row have it under CORDS' names."""
    found = tested.metrics()
    known = {name: row for name, row in found.items() if isinstance(row, dict) and row["value"] is not None}
    names = {"accuracy": "acc", "rmse": "rmse", "r2": "r2", "log_loss": "loss"}
    if history.rows:
        released = {f"tst_{short}": known[name]["value"] for name, short in names.items() if name in known}
        history.rows[-1].update({name: value for name, value in released.items() if name not in shown})
    words = ", ".join(f"{n} {r['value']:.4f} ({r['low']:.4f} to {r['high']:.4f})" for n, r in known.items())
    logger.info("Released of the private test set, with noise and 95 %% intervals: %s.", words)


def progress_bar(session: Session, epochs_done: int, *, shown: bool) -> tqdm:
    """Return a bar of a run's steps, of which an earlier attempt took those of ``epochs_done``."""
    return shown_bar(
        total=session.steps_in(session.run.epochs) or None,
        initial=session.steps_in(epochs_done),
        unit="step",
        desc=session.run.strategy.name,
        mininterval=0.5,
        # where the pool is secret, the time of a step follows its size
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps" if session.secret_pool else None,
        shown=shown,
        leave=False,
    )


_console: ContextVar[bool] = ContextVar("console", default=True)


@contextlib.contextmanager
def console(shown: bool) -> Iterator[None]:
    """Set whether log lines also go to the screen; otherwise only warnings do, on stderr. Files hold every line."""
    token = _console.set(shown)
    try:
        yield
    finally:
        _console.reset(token)


@contextlib.contextmanager
def said(logger: logging.Logger, *, shown: bool) -> Iterator[None]:
    """Let a logger that is there already, and those that are made meanwhile, show warnings alone unless ``shown``.

    Libraries warn of nothing meanwhile that a user cannot change.
    """
    with quiet_libraries():
        if shown:
            yield
            return
        for handler in logger.handlers:
            _warnings_alone(handler)
        with console(False), quiet():
            yield


def _warnings_alone(handler: logging.Handler) -> None:
    if isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler):
        handler.setLevel(logging.WARNING)
        handler.setStream(sys.stderr)  # stdout belongs to the result


def _on_screen(handler: logging.Handler) -> logging.Handler:
    if isinstance(handler, logging.FileHandler) or not isinstance(handler, logging.StreamHandler):
        return handler
    if not _console.get():
        _warnings_alone(handler)
    handler.emit = partial(_emit_above_bars, handler, handler.emit)  # type: ignore[method-assign]
    return handler


def _emit_above_bars(
    handler: logging.StreamHandler, emit: Callable[[logging.LogRecord], None], record: logging.LogRecord
) -> None:
    """Print a log line above the progress bars, which are drawn again below it."""
    with tqdm.external_write_mode(file=handler.stream):
        emit(record)


def console_logger() -> logging.Logger:
    """Return the logger that a trainer uses before its log file is open."""
    logger = logging.Logger("cords_dp", level=logging.INFO)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("[%(asctime)s] %(name)s %(levelname)s: %(message)s", "%m/%d %H:%M:%S"))
    logger.addHandler(_on_screen(handler))
    return logger


def separate_logger(shared: logging.Logger) -> logging.Logger:
    """Give this trainer the newest two handlers of CORDS' global logger, to which CORDS adds more each time."""
    own = logging.Logger("cords_dp", level=shared.level)
    for handler in shared.handlers[-2:]:
        shared.removeHandler(handler)
        if isinstance(handler, logging.FileHandler):
            handler.handleError = partial(_raise_again, handler.baseFilename)  # type: ignore[method-assign]
        own.addHandler(_on_screen(handler))
    return own


def _raise_again(path: str, _record: logging.LogRecord) -> None:
    """Let a log that cannot be written end the run as any other file would, instead of a traceback for each line."""
    error = sys.exc_info()[1]
    if isinstance(error, OSError) and error.filename is None:
        error.filename = path
    if error is not None:
        raise error


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hide warnings that a user can do nothing about."""
    with warnings.catch_warnings():
        for message in (
            "Full backward hook is firing",
            "Using a non-full backward hook",
            "dropout2d: Received a 2-D input",
            "'pin_memory' argument is set",
            "Secure RNG turned off",
        ):
            warnings.filterwarnings("ignore", message=message)
        yield


class _All:
    def __init__(self, loggers: Sequence[RowLogger]):
        self._loggers = loggers

    def log(self, row: Mapping[str, Any]) -> None:
        for logger in self._loggers:
            logger.log(row)


def row_logger(train_args: Mapping[str, Any], *, main: bool = True) -> RowLogger:
    """Return the logger of rows that the config asks for. Of several processes only the main one logs."""
    loggers: list[RowLogger] = [wandb_logger(train_args, main=main)]
    if train_args.get("tensorboard") and main:
        loggers.append(TensorBoardRows(Path(train_args.get("results_dir") or "results") / "tensorboard"))
    return _All(loggers)


_TENSORBOARD_KEY = "train_args.tensorboard"
_GROUPS = {"epsilon": "privacy", "tst": "test", "val": "validation", "trn": "training", "subtrn": "subset"}


class TensorBoardRows:
    """One scalar for each number of a row, at its epoch."""

    def __init__(self, folder: Path):
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            fix = f"TensorBoard is not installed: {how_to_install('tensorboard')}; or set the key to False"
            raise ConfigError(_TENSORBOARD_KEY, True, fix) from error
        self._writer = SummaryWriter(str(folder))

    def log(self, row: Mapping[str, Any]) -> None:
        now = float(int(time.time()))
        for key, value in row.items():
            if key != "epoch" and isinstance(value, (int, float)) and math.isfinite(value):
                self._writer.add_scalar(scalar_name(key), value, row["epoch"], walltime=now)
        self._writer.flush()  # a run that is killed has shown what it measured


def scalar_name(key: str) -> str:
    """Name a scalar for TensorBoard, which groups names by what stands before the slash."""
    head, _, rest = key.partition("_")
    return f"{_GROUPS[head]}/{key if head == 'epsilon' else rest}" if head in _GROUPS else key


_WANDB_KEY = "train_args.wandb"


class RowLogger(Protocol):
    """Takes a row of the metrics, which holds nothing that the log does not show."""

    def log(self, row: Mapping[str, Any]) -> None: ...


class _Nowhere:
    def log(self, row: Mapping[str, Any]) -> None:
        return None


class _CordsNames:
    """Rows under the names that CORDS gives them."""

    def __init__(self, wandb: Any):
        self._wandb, self._best = wandb, 0.0

    def log(self, row: Mapping[str, Any]) -> None:
        renamed = {{"epoch": "Epoch", "time": "Time"}.get(key, key): value for key, value in row.items()}
        if "tst_acc" in row:
            self._best = renamed["best_acc"] = max(self._best, row["tst_acc"])
        self._wandb.log(renamed)


def wandb_logger(train_args: Mapping[str, Any], *, main: bool = True) -> RowLogger:
    """Return the logger that sends rows to W&B. Of several processes only the main one logs."""
    if not train_args.get("wandb") or not main:
        return _Nowhere()
    try:
        import wandb
    except ImportError as error:
        raise ConfigError(
            _WANDB_KEY, True, "wandb is not installed: pip install wandb, or set the key to False"
        ) from error
    if wandb.run is None:
        raise ConfigError(
            _WANDB_KEY, True, "no run is open: call wandb.init(project=...) before train(), as with CORDS"
        )
    return _CordsNames(wandb)
