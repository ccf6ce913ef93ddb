"""Commands about many runs and their results: sweep, reproduce, compare, gains, report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cords_dp.cli import arguments
from cords_dp.cli.arguments import (
    add_backend,
    add_command,
    add_config,
    add_json,
    add_overrides,
    load,
    out_of,
    positive,
)
from cords_dp.errors import ConfigError

if TYPE_CHECKING:
    from cords_dp.runs.jobs import Job


def add_commands(commands: Any) -> None:
    _add_sweep(commands)
    _add_reproduce(commands)
    _add_compare(commands)
    gaining = add_command(
        commands,
        "gains",
        gains,
        "plot true gains against what the mechanism samples (not private)",
        "gains --config configs/paper/glister_dp_mnist.py",
    )
    add_config(gaining)
    gaining.add_argument("--out", type=Path, default=Path("runs/gains"), help="output folder")
    gaining.add_argument("--epochs", type=positive, default=2, help="epochs to train before scoring (default 2)")
    gaining.add_argument(
        "--not-private", action="store_true", help="records outside the public benchmark sets may be shown"
    )
    reporting = add_command(
        commands, "report", report, "one HTML page about the results in a folder", "report runs/sweep-full_dp_digits"
    )
    reporting.add_argument("folder", type=Path, metavar="DIR", help="output folder of a run, a sweep or a reproduction")
    reporting.add_argument("--out", type=Path, help="the page (default: DIR/report.html)")


def _add_sweep(commands: Any) -> None:
    parser = add_command(
        commands,
        "sweep",
        sweep,
        "train a grid of configs, in parallel; resumes where it stopped",
        "sweep --config configs/full_dp_digits.py --grid privacy.epsilon=1,3,8 --seeds 3",
    )
    add_config(parser)
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="a.b=1,2",
        help="values of one key; may be given many times, every combination is run",
    )
    parser.add_argument("--seeds", type=positive, default=1, help="runs of each combination (default 1)")
    parser.add_argument("--out", type=Path, help="output folder (default: runs/sweep-NAME of the config)")
    add_backend(parser)


def _add_compare(commands: Any) -> None:
    parser = add_command(
        commands,
        "compare",
        compare_command,
        "train a config with and without privacy, with and without selection, and say what that costs",
        "compare configs/glister_dp_digits.py",
    )
    parser.add_argument("config", metavar="CONFIG", help="a CORDS config, .py or .yaml")
    add_overrides(parser)
    parser.add_argument("--seed", type=int, help="fixes data split and initial weights, never noise")
    parser.add_argument("--out", type=Path, help="output folder (default: runs/compare-NAME of the config)")
    add_json(parser)


def _add_reproduce(commands: Any) -> None:
    parser = add_command(
        commands,
        "reproduce",
        reproduce_command,
        "repeat an experiment of the paper, or all of them",
        "reproduce all",
        "reproduce synthetic --preset cpu --seeds 3",
    )
    parser.add_argument(
        "name",
        metavar="NAME",
        help="main, imbalance, paper, ablation, networks, resnet18, synthetic, timing, allocation, gains, robust, cut, "
        "frontier, adult, all",
    )
    parser.add_argument(
        "--preset",
        default="quick",
        metavar="PRESET",
        help="quick (minutes on two cores, the default), cpu (real data, hours) or full (the paper's scale, a GPU)",
    )
    parser.add_argument("--dataset", action="append", default=[], help="only this dataset; may be repeated")
    parser.add_argument("--method", action="append", default=[], help="only this method; may be repeated")
    parser.add_argument("--scenario", action="append", default=[], help="only this scenario; may be repeated")
    parser.add_argument(
        "--share", action="append", type=float, default=[], help="only this share of the records; repeatable"
    )
    parser.add_argument("--epsilon", action="append", type=float, default=[], help="only this budget; repeatable")
    parser.add_argument("--seeds", type=positive, help="runs of each cell (default: the preset's)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="a.b=c", dest="overrides", help="change a value in every config"
    )
    parser.add_argument("--out", type=Path, help="output folder (default: runs/reproduce-PRESET)")
    add_backend(parser)


def gains(args: argparse.Namespace) -> int:
    from cords_dp.studies.gains import gains_experiment

    gains_experiment(load(args), args.out, not_private=args.not_private, epochs=args.epochs)
    print(f"figure: {args.out / 'gains.png'}\nnumbers: {args.out / 'gains.csv'}")
    return 0


def compare_command(args: argparse.Namespace) -> int:
    import json

    from cords_dp.config import apply_override
    from cords_dp.runs.compare import compare
    from cords_dp.training.log import console

    cfg = load(args)
    if args.seed is not None:
        apply_override(cfg, f"train_args.seed={args.seed}")
    with console(args.verbose):
        result = compare(cfg, out_of(args, "compare-"), progress=not (args.quiet or args.json))
    print(json.dumps(result.facts(), indent=2) if args.json else result.text())
    return 0


def sweep(args: argparse.Namespace) -> int:
    from cords_dp.report.tables import mean_table
    from cords_dp.runs.jobs import grid_jobs, parse_axis
    from cords_dp.runs.sweep import run_jobs

    backend = arguments.backend(args)
    jobs = grid_jobs(load(args), args.grid, args.seeds)
    _check_all(jobs)
    out = out_of(args, "sweep-")
    result = run_jobs(jobs, out, backend, title=Path(args.config).stem)
    if len(result.frame):
        print("\n" + mean_table(result.frame, [parse_axis(axis)[0] for axis in args.grid]).to_string(index=False))
    print(f"\n{len(result.frame)} of {len(jobs)} runs finished: {out / 'runs.csv'}")
    return _tell_failures(result.failures, out)


def reproduce_command(args: argparse.Namespace) -> int:
    from cords_dp.report.page import write_page
    from cords_dp.studies.catalogue import EXPERIMENTS, PRESETS, Choice, experiment_jobs
    from cords_dp.studies.reproduce import reproduce

    names = [n for n, e in EXPERIMENTS.items() if e.in_study] if args.name == "all" else [args.name]
    for value, known, option in ((args.name, [*EXPERIMENTS, "all"], "NAME"), (args.preset, PRESETS, "--preset")):
        if value not in known:
            raise ConfigError(f"reproduce {option}", value, f"must be one of {', '.join(known)}")
    choice = Choice(args.dataset, args.method, args.scenario, args.share, args.epsilon, args.seeds, args.overrides)
    for name in names:
        _check_all(experiment_jobs(name, args.preset, choice))
    out, backend = args.out or Path("runs") / f"reproduce-{args.preset}", arguments.backend(args)
    failures: dict[str, str] = {}
    for name in names:
        failures |= reproduce(name, args.preset, out / name, backend, choice)
    print(f"report: {write_page(out)}")
    return _tell_failures(failures, out)


def report(args: argparse.Namespace) -> int:
    from cords_dp.report.page import write_page

    print(f"report: {write_page(args.folder, args.out)}")
    return 0


def _check_all(jobs: Sequence[Job]) -> None:
    """Find every mistake in a config before the first run starts."""
    from cords_dp.training.resolve import resolve

    checked = set()
    for job in jobs:
        if (key := tuple(v for k, v in job.labels.items() if k != "seed")) not in checked:
            checked.add(key)
            resolve(job.config, plan=False)


def _tell_failures(failures: dict[str, str], out: Path) -> int:
    for name, error in failures.items():
        print(f"FAILED {name}: {error.strip().splitlines()[-1]}", file=sys.stderr)
    if failures:
        print(f"{len(failures)} runs failed; the same command tries them again ({out}/**/failed/)", file=sys.stderr)
    return 1 if failures else 0
