"""The command line: ``python run_experiment.py`` and ``python -m cords_dp COMMAND``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dotmap import DotMap

from cords_dp.errors import CordsDPError


def run_main(argv: Sequence[str] | None = None) -> int:
    """Entry of run_experiment.py."""
    parser = argparse.ArgumentParser(
        prog="run_experiment.py", description="Train one CORDS config, privately if its strategy is."
    )
    _add_run_arguments(parser)
    return _guarded(_run, parser.parse_args(argv))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of ``python -m cords_dp``."""
    parser = argparse.ArgumentParser(
        prog="python -m cords_dp", description="Differentially private training on data subsets, with CORDS."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="train one config (the same as run_experiment.py)")
    _add_run_arguments(run)
    run.set_defaults(handler=_run)

    budget = commands.add_parser("budget", help="show what a config's privacy budget buys, without training")
    _add_config_arguments(budget)
    budget.set_defaults(handler=_budget)

    gains = commands.add_parser("gains", help="plot true gains against what the mechanism samples (not private)")
    _add_config_arguments(gains)
    gains.add_argument("--out", type=Path, default=Path("runs/gains"), help="output folder")
    gains.add_argument("--epochs", type=int, default=2, help="epochs to train before scoring (default 2)")
    gains.add_argument(
        "--not-private", action="store_true", help="records outside the public benchmark sets may be shown"
    )
    gains.set_defaults(handler=_gains)

    study = commands.add_parser("study", help="selection against RandomDP and FullDP, mean ± std over seeds")
    study.add_argument("name", help="mnist-cut, mnist, cifar10-cut, cifar10, synthetic or digits")
    study.add_argument("--seeds", type=int, default=3, help="runs of each cell (default 3)")
    study.add_argument("--epsilon", type=float, default=3.0, help="privacy budget (default 3)")
    study.add_argument("--out", type=Path, help="output folder (default: runs/study-NAME)")
    study.add_argument(
        "--set", action="append", default=[], metavar="a.b=c", dest="overrides", help="change a value for all methods"
    )
    study.set_defaults(handler=_study)

    demo = commands.add_parser("demo", help="the private strategies on embedded data, in two minutes")
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), help="output folder")
    demo.add_argument("--epsilon", type=float, default=3.0, help="privacy budget (default 3)")
    demo.set_defaults(handler=_demo)

    args = parser.parse_args(argv)
    return _guarded(args.handler, args)


def _add_config_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, metavar="FILE", help="a CORDS config, .py or .yaml")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="a.b=c",
        dest="overrides",
        help="change one value of the config; may be given many times",
    )


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    _add_config_arguments(parser)
    parser.add_argument("--seed", type=int, help="make the run repeatable (whoever knows the seed can undo the noise)")
    parser.add_argument("--device", help="cpu, cuda or cuda:N; overrides the config")
    parser.add_argument("--out", type=Path, help="output folder (default: runs/NAME of the config)")
    parser.add_argument("--resume", action="store_true", help="continue from the output folder's checkpoint")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def _load(args: argparse.Namespace) -> DotMap:
    from cords_dp.config import load_config

    return load_config(args.config, args.overrides)


def _run(args: argparse.Namespace) -> int:
    from cords_dp.experiments.run import run_experiment

    cfg = _load(args)
    if args.seed is not None:
        cfg.train_args.seed = args.seed
    if args.device is not None:
        cfg.train_args.device = args.device
    if args.resume:
        cfg.ckpt.is_load = True
    suffix = "" if args.seed is None else f"-seed{args.seed}"
    out = args.out or Path("runs") / (Path(args.config).stem + suffix)
    result = run_experiment(cfg, out, progress=not args.quiet)
    print("\n" + result.text())
    return 0


def _budget(args: argparse.Namespace) -> int:
    from cords_dp.datasets import build_dataset, known_sizes
    from cords_dp.report.budget import budget_text
    from cords_dp.seeding import Streams
    from cords_dp.training import check_config

    cfg = _load(args)
    setup = check_config(cfg)
    sizes = known_sizes(cfg)
    if sizes is None:  # an imbalanced variant: its size is public but has to be counted
        data = build_dataset(cfg, Streams(setup.seed).numpy("data"))
        sizes = len(data.train), len(data.validation)  # type: ignore[arg-type]
    print(budget_text(setup, *sizes))
    return 0


def _gains(args: argparse.Namespace) -> int:
    from cords_dp.experiments.gains import gains_experiment

    gains_experiment(_load(args), args.out, not_private=args.not_private, epochs=args.epochs)
    print(f"figure: {args.out / 'gains.png'}\nnumbers: {args.out / 'gains.csv'}")
    return 0


def _study(args: argparse.Namespace) -> int:
    from cords_dp.config import apply_override
    from cords_dp.errors import ConfigError
    from cords_dp.experiments.study import STUDIES, run_study, study_table

    if args.name not in STUDIES:
        raise ConfigError("study", args.name, f"unknown; known are {', '.join(STUDIES)}")
    changes = DotMap()
    for override in args.overrides:
        apply_override(changes, override)
    out = args.out or Path("runs") / f"study-{args.name}"
    frame = run_study(args.name, out, seeds=args.seeds, epsilon=args.epsilon, overrides=changes.toDict())
    print(
        f"\n{args.name}, epsilon = {args.epsilon:g}, {args.seeds} seeds\n\n{study_table(frame)}\n\n{out / 'runs.csv'}"
    )
    return 0


def _demo(args: argparse.Namespace) -> int:
    from cords_dp.experiments.demo import run_demo

    run_demo(args.out, epsilon=args.epsilon)
    return 0


def _guarded(handler: object, args: argparse.Namespace) -> int:
    try:
        return handler(args)  # type: ignore[operator]
    except CordsDPError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; run the same command with --resume to continue", file=sys.stderr)
        return 130
