"""The command line: ``cords-dp COMMAND``, also ``python -m cords_dp`` and, for runs, ``python run_experiment.py``.

One file per group of commands. A file adds its commands to the parser and imports what they need when they run, so
that help and completion answer at once.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import cords_dp
from cords_dp import __version__
from cords_dp.cli import auditing, completion, data, experiments, planning, training
from cords_dp.cli.arguments import Handler, add_loudness
from cords_dp.errors import CordsDPError
from cords_dp.files import out_of_space
from cords_dp.progress import quiet

EXIT_CODES = """exit codes:
  0    done
  1    done, and the answer is no: validate found problems, verify or audit refuted a claim, runs of a sweep failed
  2    not done: a wrong argument, config or file; the message says what to change
  130  interrupted; the same command (run: with --resume) continues
  A bug ends with a traceback and code 1."""

_GROUPS = (training, planning, data, experiments, auditing, completion)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``cords-dp``."""
    _let_every_terminal_show_text()
    parser = build_parser()
    if "_ARGCOMPLETE" in os.environ:
        completion.complete(parser)
    args = parser.parse_args(argv)
    return guarded(args.handler, args)


def run_main(argv: Sequence[str] | None = None) -> int:
    """Run run_experiment.py."""
    _let_every_terminal_show_text()
    parser = argparse.ArgumentParser(
        prog="run_experiment.py", description="Train one CORDS config, privately if its strategy is."
    )
    training.add_run_arguments(parser)
    return guarded(training.run, parser.parse_args(argv))


def _let_every_terminal_show_text() -> None:
    """Let a terminal or a pipe that knows ASCII only show ε as an escape, instead of ending the command."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cords-dp",
        description="Differentially private training on data subsets, with CORDS.",
        epilog=f"cords-dp COMMAND --help shows examples.\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"cords-dp {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for group in _GROUPS:
        group.add_commands(commands)
    for name, command in commands.choices.items():
        if name not in ("completion", "data"):
            add_loudness(command)
    return parser


def guarded(handler: Handler, args: argparse.Namespace) -> int:
    """Run a command; an error that the package raises on purpose is one line and an exit code."""
    try:
        with quiet(getattr(args, "quiet", False)):
            return handler(args)
    except CordsDPError as error:
        return _refused(str(error), args)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in REQUIRED:
            raise
        return _refused(missing_package(package), args)
    except BrokenPipeError:  # the reader of the output, e.g. head, has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - Python flushes it once more when it exits
        return 0
    except OSError as error:  # a full disk, a folder without permission; an error inside of a library has no file name
        if error.filename is None and out_of_space(error) is None:
            raise
        return _refused(f"{error.strerror}: {error.filename or 'the device'}", args)
    except KeyboardInterrupt:
        again = "with --resume " if args.__dict__.get("resume") is not None else ""
        print(f"\ninterrupted; run the same command {again}to continue", file=sys.stderr)
        return 130


def _refused(message: str, args: argparse.Namespace) -> int:
    if getattr(args, "verbose", False):
        traceback.print_exc()
    print(f"error: {message}", file=sys.stderr)
    return 2


# --- where Python lacks our packages ---------------------------------------------------------------------------------

# What pyproject.toml requires, by the names that are imported. Anything else that is missing is a bug.
REQUIRED = frozenset(
    {
        "absl", "dotmap", "dp_accounting", "filelock", "kymatio", "matplotlib", "numba", "numpy", "opacus", "pandas",
        "PIL", "prv_accountant", "randomgen", "scipy", "sklearn", "torch", "torchvision", "tqdm", "yaml",
    }
)  # fmt: skip


def missing_package(package: str) -> str:
    """Return one line about a package that this Python does not have."""
    clone = Path(cords_dp.__file__).parents[1]
    if (clone / ".venv").is_dir() and not Path(sys.prefix).samefile(clone / ".venv"):
        fix = "this clone has its own in .venv: run `source .venv/bin/activate` first, or use .venv/bin/python"
    elif (clone / "Makefile").is_file():
        fix = "run `make install`, then `source .venv/bin/activate`"
    else:
        fix = "run `pip install` with it on the wheel that cords_dp came in, which adds what it needs"
    return f"{sys.executable} has no {package}; {fix}"
