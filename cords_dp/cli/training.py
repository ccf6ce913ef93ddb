"""Commands that train or use what was trained: run, predict, threshold, tune, demo."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from cords_dp.cli import arguments
from cords_dp.cli.arguments import (
    add_backend,
    add_command,
    add_config,
    add_delimiter,
    add_json,
    add_law,
    load,
    loading,
    out_of,
)


def add_commands(commands: Any) -> None:
    own = add_command(
        commands,
        "run",
        run,
        "train one config (the same as run_experiment.py)",
        "run --config configs/glister_dp_mnist.py --seed 1",
        "run --config configs/full_dp_digits.py --set privacy.epsilon=8 --quiet --json",
        "run --config configs/glister_dp_mnist.py --seed 1 --resume",
    )
    add_run_arguments(own, loudness=False)

    tuning = add_command(
        commands,
        "tune",
        tune_command,
        "try random settings privately and keep the best model, within one budget",
        "tune --config configs/full_dp_mnist.py --search 'optimizer.lr=loguniform(0.01, 1)' --trials 10",
    )
    add_config(tuning)
    tuning.add_argument(
        "--search",
        action="append",
        default=[],
        metavar="KEY=LAW",
        help="a key to tune, e.g. 'optimizer.lr=loguniform(0.01, 1)'; also uniform, randint, choice; repeatable",
    )
    add_law(tuning, default=10)
    tuning.add_argument(
        "--metric", help="by which trials are compared on V: accuracy (default), auc, log_loss, rmse (regressions), …"
    )
    tuning.add_argument("--out", type=Path, help="output folder (default: runs/tune-NAME of the config)")
    add_backend(tuning)

    predicting = add_command(
        commands,
        "predict",
        predict,
        "predict the records of a file by the model of a run",
        "predict runs/my-table --input new.csv --out predictions.csv",
        "predict runs/my-table --input new.csv --id patient_id",
    )
    predicting.add_argument("run", type=Path, metavar="RUN", help="output folder of a run")
    predicting.add_argument(
        "--input", type=Path, required=True, metavar="FILE", help="a file that the run's source reads"
    )
    predicting.add_argument("--out", type=Path, default=Path("predictions.csv"), help="default: predictions.csv")
    predicting.add_argument("--id", metavar="COLUMN", help="copy this column of a table beside the predictions")
    add_delimiter(predicting, "the run's own")
    predicting.add_argument(
        "--threshold",
        type=float,
        metavar="P",
        help="of two classes: predict the second from this probability on (see the command threshold)",
    )
    predicting.add_argument(
        "--weights", type=Path, metavar="FILE", help="where a backbone's weights lie on this machine"
    )
    predicting.add_argument("--features", metavar="NAME", help="model.features, where its folder lies elsewhere")

    choosing = add_command(
        commands,
        "threshold",
        threshold,
        "choose the probability from which the second of two classes is predicted",
        "threshold runs/my-table --recall 0.8",
        "threshold runs/my-table --cost 10:1",
    )
    choosing.add_argument("run", type=Path, metavar="RUN", help="output folder of a run")
    wanted = choosing.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--recall", type=float, metavar="SHARE", help="which share of the second class is to be found")
    wanted.add_argument("--cost", metavar="FN:FP", help="what a missed record costs, and what a false alarm does")
    add_json(choosing)

    showing = add_command(
        commands,
        "demo",
        demo,
        "why selecting records privately matters: embedded data, under a minute",
        "demo",
        "demo --epsilon 8 --out runs/demo8 --verbose",
    )
    showing.add_argument("--out", type=Path, default=Path("runs/demo"), help="output folder")
    showing.add_argument("--epsilon", type=float, default=3.0, help="privacy budget (default 3)")
    showing.add_argument("--seed", type=int, default=0, help="of data and initial weights, never of noise (default 0)")


def add_run_arguments(parser: argparse.ArgumentParser, *, loudness: bool = True) -> None:
    add_config(parser)
    parser.add_argument("--seed", type=int, help="fixes data split and initial weights, never noise")
    parser.add_argument("--device", help="cpu, cuda or cuda:N; overrides the config")
    parser.add_argument("--out", type=Path, help="output folder (default: runs/NAME of the config)")
    parser.add_argument("--resume", action="store_true", help="continue from the output folder's checkpoint")
    parser.add_argument(
        "--no-feature-cache", action="store_true", help="keep no features of the records on disk after the run"
    )
    add_json(parser)
    if loudness:
        arguments.add_loudness(parser)


def run(args: argparse.Namespace) -> int:
    silent = args.quiet or args.json  # what a program reads is JSON from the first character on
    with loading(not silent):
        from cords_dp.config import apply_override
        from cords_dp.processes import joined_world
        from cords_dp.runs.run import run_experiment
        from cords_dp.training.log import console

    cfg = load(args)
    given = {
        "train_args.seed": args.seed,
        "train_args.device": args.device,
        "ckpt.is_load": args.resume or None,
        "model.feature_cache": False if args.no_feature_cache else None,
    }
    for key, value in given.items():
        if value is not None:
            apply_override(cfg, f"{key}={value}")
    suffix = "" if args.seed is None else f"-seed{args.seed}"
    out = args.out or Path("runs") / (Path(args.config).stem + suffix)
    replaces = (out / "privacy.json").is_file() and not args.resume
    with joined_world() as world, console(not silent):
        result = run_experiment(cfg, out, progress=not silent)
    if world.main:
        print((out / "result.json").read_text() if args.json else "\n" + result.text())
        if replaces:
            print(
                f"note: {out} held an earlier private run, whose files were replaced. Runs on the same records add up; "
                "`cords-dp account` keeps the total",
                file=sys.stderr,
            )
    return 0


def tune_command(args: argparse.Namespace) -> int:
    from cords_dp.tuning.tune import tune

    result = tune(
        load(args),
        args.search,
        trials=args.trials,
        law=args.law,
        out=out_of(args, "tune-"),
        backend=arguments.backend(args),
        progress=not args.quiet,
        metric=args.metric,
    )
    print(result.text())
    return 0


def predict(args: argparse.Namespace) -> int:
    with loading(not args.quiet):
        from cords_dp.models.predict import load_model

    model = load_model(args.run, weights=args.weights, features=args.features)
    frame = model.predict_file(
        args.input,
        out=args.out,
        progress=not args.quiet,
        id_column=args.id,
        delimiter=args.delimiter,
        threshold=args.threshold,
    )
    print(f"{len(frame)} predictions: {args.out}")
    if unread := int(frame.iloc[:, -1].isna().sum()):
        print(f"{unread} of the records could not be read; their rows are empty")
    return 0


def threshold(args: argparse.Namespace) -> int:
    from cords_dp.errors import ConfigError
    from cords_dp.evaluation.threshold import choose_threshold, released_scores

    cost = None
    if args.cost is not None:
        try:
            missed, alarm = map(float, args.cost.split(":"))
        except ValueError:
            raise ConfigError("--cost", args.cost, "must be two costs, of a miss and of a false alarm: 5:1") from None
        cost = missed, alarm
    chosen = choose_threshold(released_scores(args.run), recall=args.recall, cost=cost)
    print(json.dumps(chosen.__dict__, indent=2) if args.json else chosen.text())
    return 0


def demo(args: argparse.Namespace) -> int:
    with loading(not args.quiet):
        from cords_dp.studies.demo import run_demo

    run_demo(args.out, epsilon=args.epsilon, seed=args.seed, verbose=args.verbose, quiet=args.quiet)
    return 0
