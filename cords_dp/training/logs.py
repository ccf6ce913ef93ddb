"""What a run says: CORDS' log lines, the privacy plan, and nothing about single records."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial

from tqdm import tqdm

from cords_dp.planning import PrivacyPlan
from cords_dp.training.evaluation import History
from cords_dp.training.run import Run


def allowed_metrics(wanted: Sequence[str], plan: PrivacyPlan | None, logger: logging.Logger) -> list[str]:
    """The configured metrics less those that would show exact values of private records."""
    if plan is None or plan.privacy.exact_metrics:
        return list(wanted)
    private = ["trn_", "subtrn_"] + (["val_"] if plan.privacy.validation == "private" else [])
    kept = [name for name in wanted if not name.startswith(tuple(private))]
    if len(kept) < len(wanted):
        dropped = ", ".join(name for name in wanted if name not in kept)
        logger.info("Not logged, being exact metrics of private records: %s.", dropped)
    return kept


def log_plan(run: Run, plan: PrivacyPlan | None, logger: logging.Logger) -> None:
    if plan is None:
        return
    if run.unused:
        by = f"mechanism {run.mechanism.name!r}" if run.mechanism else run.strategy.name
        logger.info("Keys of the config that %s does not use: %s.", by, ", ".join(run.unused))
    if plan.noiseless:
        logger.warning("privacy.epsilon = inf: clipping and noise are off, this run is not private.")
        return
    logger.info(
        "Privacy plan: epsilon %g, delta %g, noise multiplier %.4f, %s, %d selections.",
        plan.privacy.epsilon,
        plan.delta,
        plan.sigma,
        plan.shape.steps_in_words,
        plan.shape.rounds,
    )


def log_results(logger: logging.Logger, kind: str, history: History, shown: Sequence[str], seconds: float) -> None:
    """CORDS' closing lines."""
    logger.info("%s Selection Run---------------------------------", kind)
    for prefix, name in (("val", "Validation"), ("tst", "Test")):
        loss, accuracy = history.last(f"{prefix}_loss"), history.last(f"{prefix}_acc")
        if loss is not None:
            logger.info("%s Loss: %.2f , %s Accuracy: %.2f", name, loss, name, accuracy)
    logger.info("---------------------------------------------------------------------")
    logger.info(kind)
    logger.info("---------------------------------------------------------------------")
    for column, name in (("val_acc", "Validation Accuracy"), ("tst_acc", "Test Accuracy"), ("time", "Time")):
        if column in shown and history.column(column):
            logger.info("%s: %s", name, " , ".join(str(v) for v in history.column(column)))
    logger.info("Total time taken by %s = %.4f ", kind, seconds)


def progress_bar(name: str, steps: int, *, secret_pool: bool, shown: bool) -> tqdm:
    return tqdm(
        total=steps or None,
        unit="step",
        desc=name,
        mininterval=0.5,
        # where the pool is secret, the time of a step follows its size
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps" if secret_pool else None,
        disable=not shown,
        leave=False,
    )


_console: ContextVar[bool] = ContextVar("console", default=True)


@contextlib.contextmanager
def console(shown: bool) -> Iterator[None]:
    """Do log lines also go to the screen? Otherwise only warnings do, on stderr. Files hold every line."""
    token = _console.set(shown)
    try:
        yield
    finally:
        _console.reset(token)


def _on_screen(handler: logging.Handler) -> logging.Handler:
    if isinstance(handler, logging.FileHandler) or not isinstance(handler, logging.StreamHandler):
        return handler
    if not _console.get():
        handler.setLevel(logging.WARNING)
        handler.setStream(sys.stderr)  # stdout belongs to the result
    handler.emit = partial(_emit_above_bars, handler, handler.emit)  # type: ignore[method-assign]
    return handler


def _emit_above_bars(
    handler: logging.StreamHandler, emit: Callable[[logging.LogRecord], None], record: logging.LogRecord
) -> None:
    """A line of its own: a progress bar steps aside and comes back below it."""
    with tqdm.external_write_mode(file=handler.stream):
        emit(record)


def console_logger() -> logging.Logger:
    """What a trainer says before its log file is open."""
    logger = logging.Logger("cords_dp", level=logging.INFO)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("[%(asctime)s] %(name)s %(levelname)s: %(message)s", "%m/%d %H:%M:%S"))
    logger.addHandler(_on_screen(handler))
    return logger


def own_logger(shared: logging.Logger) -> logging.Logger:
    """CORDS hangs new handlers on one global logger each time; give this trainer the newest two alone."""
    own = logging.Logger("cords_dp", level=shared.level)
    for handler in shared.handlers[-2:]:
        shared.removeHandler(handler)
        own.addHandler(_on_screen(handler))
    return own


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
