"""Arguments that several commands share, and what they become."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dotmap import DotMap

    from cords_dp.runs.sweep import Backend

Handler = Callable[[argparse.Namespace], int]


def add_command(commands: Any, name: str, handler: Handler | None, summary: str, *examples: str) -> Any:
    """Add a subcommand with its help, its examples and how much it says."""
    shown = "examples:\n" + "\n".join(f"  cords-dp {example}" for example in examples) if examples else None
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=shown,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if handler is not None:
        parser.set_defaults(handler=handler)
    return parser


def add_loudness(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-q", "--quiet", action="store_true", help="the result alone: no log lines, no progress bars")
    parser.add_argument("-v", "--verbose", action="store_true", help="more: every log line, and where an error arose")


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")


def add_delimiter(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--delimiter",
        type=lambda text: text.replace("\\t", "\t"),
        metavar="CHARACTER",
        help=rf"between the fields of a CSV file, \t for a tab (default: {default})",
    )


def add_config(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    parser.add_argument("--config", required=required, metavar="FILE", help="a CORDS config, .py or .yaml")
    add_overrides(parser)


def add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="a.b=c",
        dest="overrides",
        help="change one value of the config; may be given many times",
    )


def add_backend(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=positive, help="worker processes (default: one for each core)")
    parser.add_argument(
        "--ray", nargs="?", const="local", metavar="ADDRESS", help="run on Ray: a new local cluster, or the one given"
    )
    parser.add_argument("--cpus-per-run", type=float, default=1, help="cores that Ray gives a run (default 1)")
    parser.add_argument("--gpus-per-run", type=float, default=0, help="GPUs that Ray gives a run (default 0)")


def add_law(parser: argparse.ArgumentParser, *, default: float | None) -> None:
    own = f" (default {default:g})" if default else "; shows what tuning costs beside a single run"
    parser.add_argument("--trials", type=float, default=default, metavar="MEAN", help=f"mean number of trials{own}")
    parser.add_argument(
        "--law", default="geometric", help="of the number of trials: geometric (default), logarithmic or a shape"
    )


@contextlib.contextmanager
def loading(shown: bool) -> Iterator[None]:
    """Show a word on a terminal while PyTorch is imported, which takes seconds; it is gone afterwards."""
    shown = shown and sys.stderr.isatty()
    if shown:
        print("loading PyTorch …", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def load(args: argparse.Namespace) -> DotMap:
    from cords_dp.config import load_config

    return load_config(args.config, args.overrides)


def backend(args: argparse.Namespace) -> Backend:
    from cords_dp.runs.workers import LocalWorkers, RayTasks

    if args.ray is None:
        workers = LocalWorkers(args.workers)
        workers.prepare()
        return workers
    return RayTasks(None if args.ray == "local" else args.ray, cpus=args.cpus_per_run, gpus=args.gpus_per_run)


def out_of(args: argparse.Namespace, prefix: str = "") -> Path:
    return args.out or Path("runs") / f"{prefix}{Path(args.config).stem}"
