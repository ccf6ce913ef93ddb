"""The command line: ``python run_experiment.py`` and ``python -m cords_dp COMMAND``."""

from __future__ import annotations

import argparse
import errno
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dotmap import DotMap

from cords_dp.errors import ConfigError, ConfigFileError, CordsDPError

if TYPE_CHECKING:
    from cords_dp.experiments.jobs import Job
    from cords_dp.experiments.sweep import Backend


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
    _add_law_arguments(budget, default=None)
    budget.set_defaults(handler=_budget)

    tune = commands.add_parser("tune", help="try random settings privately and keep the best model, within one budget")
    _add_config_arguments(tune)
    tune.add_argument(
        "--search",
        action="append",
        default=[],
        metavar="KEY=LAW",
        help="a key to tune, e.g. 'optimizer.lr=loguniform(0.01, 1)'; also uniform, randint, choice; repeatable",
    )
    _add_law_arguments(tune, default=10)
    tune.add_argument("--out", type=Path, help="output folder (default: runs/tune-NAME of the config)")
    tune.add_argument("--quiet", action="store_true", help="no display")
    _add_backend_arguments(tune)
    tune.set_defaults(handler=_tune)

    check = commands.add_parser("check", help="which CORDS configs can be made private by a word, and why not")
    check.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="config files, or folders of them")
    check.add_argument("--epsilon", type=float, default=3.0, help="the budget to add (default 3)")
    check.set_defaults(handler=_check)

    _add_data_commands(commands.add_parser("data", help="tables: write and check a public schema; fetch an example"))

    gains = commands.add_parser("gains", help="plot true gains against what the mechanism samples (not private)")
    _add_config_arguments(gains)
    gains.add_argument("--out", type=Path, default=Path("runs/gains"), help="output folder")
    gains.add_argument("--epochs", type=_positive, default=2, help="epochs to train before scoring (default 2)")
    gains.add_argument(
        "--not-private", action="store_true", help="records outside the public benchmark sets may be shown"
    )
    gains.set_defaults(handler=_gains)

    sweep = commands.add_parser("sweep", help="train a grid of configs, in parallel; resumes where it stopped")
    _add_config_arguments(sweep)
    sweep.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="a.b=1,2",
        help="values of one key; may be given many times, every combination is run",
    )
    sweep.add_argument("--seeds", type=_positive, default=1, help="runs of each combination (default 1)")
    sweep.add_argument("--out", type=Path, help="output folder (default: runs/sweep-NAME of the config)")
    _add_backend_arguments(sweep)
    sweep.set_defaults(handler=_sweep)

    reproduce = commands.add_parser("reproduce", help="repeat an experiment of the paper, or all of them")
    reproduce.add_argument(
        "name", metavar="NAME", help="main, imbalance, synthetic, timing, allocation, gains, robust, cut, adult, all"
    )
    reproduce.add_argument(
        "--preset",
        default="quick",
        metavar="PRESET",
        help="quick (minutes on two cores, the default), cpu (real data, hours) or full (the paper's scale, a GPU)",
    )
    reproduce.add_argument("--dataset", action="append", default=[], help="only this dataset; may be repeated")
    reproduce.add_argument("--method", action="append", default=[], help="only this method; may be repeated")
    reproduce.add_argument("--scenario", action="append", default=[], help="only this scenario; may be repeated")
    reproduce.add_argument(
        "--share", action="append", type=float, default=[], help="only this share of the records; repeatable"
    )
    reproduce.add_argument("--epsilon", action="append", type=float, default=[], help="only this budget; repeatable")
    reproduce.add_argument("--seeds", type=_positive, help="runs of each cell (default: the preset's)")
    reproduce.add_argument(
        "--set", action="append", default=[], metavar="a.b=c", dest="overrides", help="change a value in every config"
    )
    reproduce.add_argument("--out", type=Path, help="output folder (default: runs/reproduce-PRESET)")
    _add_backend_arguments(reproduce)
    reproduce.set_defaults(handler=_reproduce)

    predict = commands.add_parser("predict", help="predict the records of a file by the model of a run")
    predict.add_argument("run", type=Path, metavar="RUN", help="output folder of a run")
    predict.add_argument("--input", type=Path, required=True, metavar="FILE", help="a file that the run's source reads")
    predict.add_argument("--out", type=Path, default=Path("predictions.csv"), help="default: predictions.csv")
    predict.add_argument("--weights", type=Path, metavar="FILE", help="where a backbone's weights lie on this machine")
    predict.add_argument("--features", metavar="NAME", help="model.features, where its folder lies elsewhere")
    predict.add_argument("--quiet", action="store_true", help="no progress bar")
    predict.set_defaults(handler=_predict)

    report = commands.add_parser("report", help="one HTML page about the results in a folder")
    report.add_argument("folder", type=Path, metavar="DIR", help="output folder of a run, a sweep or a reproduction")
    report.add_argument("--out", type=Path, help="the page (default: DIR/report.html)")
    report.set_defaults(handler=_report)

    account = commands.add_parser("account", help="what all runs on one dataset have spent together (privacy.account)")
    account.add_argument("file", type=Path, metavar="FILE", help="the account")
    account.add_argument("--create", action="store_true", help="begin a new account with the total given")
    account.add_argument("--epsilon", type=float, help="total ε of a new account")
    account.add_argument("--delta", type=float, help="total δ of a new account, below 1/n")
    account.add_argument("--json", action="store_true", help="as JSON")
    account.set_defaults(handler=_account)

    demo = commands.add_parser("demo", help="the private strategies on embedded data, in two minutes")
    demo.add_argument("--out", type=Path, default=Path("runs/demo"), help="output folder")
    demo.add_argument("--epsilon", type=float, default=3.0, help="privacy budget (default 3)")
    demo.set_defaults(handler=_demo)

    audit = commands.add_parser("audit", help="try to refute the privacy claims of a config, on the package's own code")
    _add_config_arguments(audit)
    audit.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 2.0], help="budgets (default 1 2)")
    audit.add_argument("--out", type=Path, default=Path("runs/audit"), help="output folder")
    audit.add_argument("--json", action="store_true", help="print JSON instead of a table")
    audit.add_argument("--canaries", type=_positive, default=1000, help="canaries of the one run (default 1000)")
    audit.add_argument("--steps", type=_positive, default=60, help="steps with 128 canaries each (default 60)")
    audit.add_argument("--draws", type=_positive, default=4000, help="draws of each release (default 4000)")
    audit.add_argument("--trainings", type=_positive, default=600, help="short trainings a side (default 600)")
    audit.set_defaults(handler=_audit)

    args = parser.parse_args(argv)
    return _guarded(args.handler, args)


def _add_data_commands(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    fetch = actions.add_parser("fetch", help="UCI's Adult as CSV files with a schema, as an example of a table")
    fetch.add_argument("name", choices=("adult",), metavar="NAME", help="adult")
    fetch.add_argument("--out", type=Path, default=Path("data"), help="folder (default: data)")
    fetch.set_defaults(handler=_data_fetch)
    describe = actions.add_parser("describe", help="write a schema to be filled in, from the header alone")
    describe.add_argument("file", type=Path, metavar="FILE", help="a .csv, .parquet or .npz file")
    describe.add_argument("--target", required=True, metavar="COLUMN", help="the column to predict")
    describe.add_argument("--public-schema", type=Path, metavar="OUT", help="the schema (default: printed)")
    describe.add_argument(
        "--range", action="append", default=[], metavar="age=0:100", help="a public range; repeatable"
    )
    describe.add_argument(
        "--categories", action="append", default=[], metavar="sex=Male,Female", help="public categories; repeatable"
    )
    describe.add_argument("--ignore", action="append", default=[], metavar="COLUMN", help="not used; repeatable")
    describe.add_argument("--header", metavar="a,b,c", help="the names of the columns of a file that has no header")
    describe.set_defaults(handler=_data_describe)
    check = actions.add_parser("check", help="has a file the columns of a schema? No record is read")
    check.add_argument("file", type=Path, metavar="FILE", help="a .csv, .parquet or .npz file")
    check.add_argument("--schema", type=Path, required=True, metavar="FILE", help="the schema, YAML")
    check.set_defaults(handler=_data_check)
    for action in (describe, check):
        action.add_argument("--delimiter", metavar="CHARACTER", help="of a CSV file (default: a comma)")


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


def _add_backend_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=_positive, help="worker processes (default: one for each core)")
    parser.add_argument(
        "--ray", nargs="?", const="local", metavar="ADDRESS", help="run on Ray: a new local cluster, or the one given"
    )
    parser.add_argument("--cpus-per-run", type=float, default=1, help="cores that Ray gives a run (default 1)")
    parser.add_argument("--gpus-per-run", type=float, default=0, help="GPUs that Ray gives a run (default 0)")


def _add_law_arguments(parser: argparse.ArgumentParser, *, default: float | None) -> None:
    own = f" (default {default:g})" if default else "; shows what tuning costs beside a single run"
    parser.add_argument("--trials", type=float, default=default, metavar="MEAN", help=f"mean number of trials{own}")
    parser.add_argument(
        "--law", default="geometric", help="of the number of trials: geometric (default), logarithmic or a shape"
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    _add_config_arguments(parser)
    parser.add_argument("--seed", type=int, help="fixes data split and initial weights, never noise")
    parser.add_argument("--device", help="cpu, cuda or cuda:N; overrides the config")
    parser.add_argument("--out", type=Path, help="output folder (default: runs/NAME of the config)")
    parser.add_argument("--resume", action="store_true", help="continue from the output folder's checkpoint")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.add_argument(
        "--no-feature-cache", action="store_true", help="keep no features of the records on disk after the run"
    )


def _load(args: argparse.Namespace) -> DotMap:
    from cords_dp.config import load_config

    return load_config(args.config, args.overrides)


def _run(args: argparse.Namespace) -> int:
    from cords_dp.config import apply_override
    from cords_dp.distributed import joined_world
    from cords_dp.experiments.run import run_experiment

    cfg = _load(args)
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
    with joined_world() as world:
        result = run_experiment(cfg, out, progress=not args.quiet)
    if world.main:
        print("\n" + result.text())
    return 0


def _predict(args: argparse.Namespace) -> int:
    from cords_dp.prediction import load_model

    model = load_model(args.run, weights=args.weights, features=args.features)
    frame = model.predict_file(args.input, out=args.out, progress=not args.quiet)
    print(f"{len(frame)} predictions: {args.out}")
    return 0


def _check(args: argparse.Namespace) -> int:
    from cords_dp.experiments.conversion import config_files, conversion_text, convert

    files = config_files(args.paths)
    if not files:
        raise ConfigFileError("no config file there: a config is a .py or .yaml file")
    print(conversion_text(convert(files, epsilon=args.epsilon)))
    return 0


def _budget(args: argparse.Namespace) -> int:
    from cords_dp.experiments.tune import planner, public_sizes, read_law, tuning_plan_of
    from cords_dp.planning.budget import budget_text
    from cords_dp.planning.tuning_statement import tuning_table
    from cords_dp.training import resolve

    run = resolve(_load(args), plan=False)
    sizes = public_sizes(run)
    print(budget_text(run, *sizes))
    if args.trials is not None and run.privacy is not None:
        plan = tuning_plan_of(run, sizes, read_law(args.trials, args.law))
        print("\n" + tuning_table(plan, planner(run, sizes)(run.privacy)))
    return 0


def _tune(args: argparse.Namespace) -> int:
    from cords_dp.experiments.tune import tune

    out = args.out or Path("runs") / f"tune-{Path(args.config).stem}"
    result = tune(
        _load(args),
        args.search,
        trials=args.trials,
        law=args.law,
        out=out,
        backend=_backend(args),
        progress=not args.quiet,
    )
    print(result.text())
    return 0


def _data_fetch(args: argparse.Namespace) -> int:
    from cords_dp.datasets.adult import SCHEMA, fetch_adult

    for path in (*fetch_adult(args.out), args.out / SCHEMA.name):
        print(path)
    return 0


def _data_describe(args: argparse.Namespace) -> int:
    from cords_dp.datasets.table.source import table_file
    from cords_dp.datasets.table.template import parse_categories, parse_range, schema_template
    from cords_dp.files import write_durably

    header = [name.strip() for name in args.header.split(",")] if args.header else None
    text = schema_template(
        table_file(args.file, header=header, target=args.target, delimiter=args.delimiter, key="FILE"),
        target=args.target,
        ranges=dict(map(parse_range, args.range)),
        categories=dict(map(parse_categories, args.categories)),
        ignore=args.ignore,
    )
    text += "" if header is None else f"header: {json.dumps(header, ensure_ascii=False)}\n"
    if args.public_schema is None:
        print(text, end="")
        return 0
    if args.public_schema.exists():
        raise ConfigError("--public-schema", args.public_schema.name, "is there already; it will not be overwritten")
    write_durably(args.public_schema, text)
    print(f"schema: {args.public_schema} ({text.count('TODO') - 1} values to be filled in)")
    return 0


def _data_check(args: argparse.Namespace) -> int:
    from cords_dp.datasets.table.schema import load_schema
    from cords_dp.datasets.table.source import check_header, table_file

    schema = load_schema(args.schema)
    name = schema.target.name
    check_header(table_file(args.file, header=schema.header, target=name, delimiter=args.delimiter, key="FILE"), schema)
    kind = f"{len(schema.classes)} classes" if schema.classes else "a number"
    print(f"{args.file.name} has the {len(schema.columns)} columns of the schema: {schema.width} cells, target {kind}")
    return 0


def _gains(args: argparse.Namespace) -> int:
    from cords_dp.experiments.gains import gains_experiment

    gains_experiment(_load(args), args.out, not_private=args.not_private, epochs=args.epochs)
    print(f"figure: {args.out / 'gains.png'}\nnumbers: {args.out / 'gains.csv'}")
    return 0


def _sweep(args: argparse.Namespace) -> int:
    from cords_dp.experiments.jobs import grid_jobs, parse_axis
    from cords_dp.experiments.sweep import run_jobs
    from cords_dp.report.tables import mean_table

    jobs = grid_jobs(_load(args), args.grid, args.seeds)
    _check_all(jobs)
    out = args.out or Path("runs") / f"sweep-{Path(args.config).stem}"
    result = run_jobs(jobs, out, _backend(args), title=Path(args.config).stem)
    if len(result.frame):
        print("\n" + mean_table(result.frame, [parse_axis(axis)[0] for axis in args.grid]).to_string(index=False))
    print(f"\n{len(result.frame)} of {len(jobs)} runs finished: {out / 'runs.csv'}")
    return _tell_failures(result.failures, out)


def _reproduce(args: argparse.Namespace) -> int:
    from cords_dp.experiments.catalogue import EXPERIMENTS, PRESETS, Choice, experiment_jobs
    from cords_dp.experiments.reproduce import reproduce
    from cords_dp.report.page import write_page

    names = [n for n, e in EXPERIMENTS.items() if e.in_study] if args.name == "all" else [args.name]
    for value, known, option in ((args.name, [*EXPERIMENTS, "all"], "NAME"), (args.preset, PRESETS, "--preset")):
        if value not in known:
            raise ConfigError(f"reproduce {option}", value, f"must be one of {', '.join(known)}")
    choice = Choice(args.dataset, args.method, args.scenario, args.share, args.epsilon, args.seeds, args.overrides)
    for name in names:
        _check_all(experiment_jobs(name, args.preset, choice))
    out, backend = args.out or Path("runs") / f"reproduce-{args.preset}", _backend(args)
    failures: dict[str, str] = {}
    for name in names:
        failures |= reproduce(name, args.preset, out / name, backend, choice)
    print(f"report: {write_page(out)}")
    return _tell_failures(failures, out)


def _report(args: argparse.Namespace) -> int:
    from cords_dp.report.page import write_page

    print(f"report: {write_page(args.folder, args.out)}")
    return 0


def _account(args: argparse.Namespace) -> int:
    from cords_dp.accounting import Account

    if args.create:
        if args.epsilon is None or args.delta is None:
            raise ConfigError("account --create", args.file.name, "needs the total: --epsilon 10 --delta 1e-6")
        account = Account.open(args.file, args.epsilon, args.delta)
    else:
        account = Account.read(args.file)
    print(json.dumps(account.to_dict(), indent=2) if args.json else account.text())
    return 0


def _check_all(jobs: Sequence[Job]) -> None:
    """Find every mistake in a config before the first run starts."""
    from cords_dp.training import resolve

    checked = set()
    for job in jobs:
        if (key := tuple(v for k, v in job.labels.items() if k != "seed")) not in checked:
            checked.add(key)
            resolve(job.config, plan=False)


def _backend(args: argparse.Namespace) -> Backend:
    from cords_dp.experiments.workers import LocalWorkers, RayTasks

    if args.ray is None:
        return LocalWorkers(args.workers)
    return RayTasks(None if args.ray == "local" else args.ray, cpus=args.cpus_per_run, gpus=args.gpus_per_run)


def _tell_failures(failures: dict[str, str], out: Path) -> int:
    for name, error in failures.items():
        print(f"FAILED {name}: {error.strip().splitlines()[-1]}", file=sys.stderr)
    if failures:
        print(f"{len(failures)} runs failed; the same command tries them again ({out}/**/failed/)", file=sys.stderr)
    return 1 if failures else 0


def _demo(args: argparse.Namespace) -> int:
    from cords_dp.experiments.demo import run_demo

    run_demo(args.out, epsilon=args.epsilon)
    return 0


def _audit(args: argparse.Namespace) -> int:
    from cords_dp.auditing.audit import Effort, run_audit
    from cords_dp.report.audits import audit_figure

    effort = Effort(args.canaries, args.steps, args.draws, args.trainings)
    report = run_audit(_load(args), args.epsilon, effort, tell=lambda line: print(line, file=sys.stderr))
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "audit.json").write_text(report.to_json() + "\n")
    picture = audit_figure(report.rows(), args.out / "audit.png")
    print(report.to_json() if args.json else f"{report.text()}\n\npicture: {picture}")
    return 0 if report.passed else 1


def _guarded(handler: object, args: argparse.Namespace) -> int:
    try:
        return handler(args)  # type: ignore[operator]
    except CordsDPError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # a full disk, a folder without permission; an error inside of a library has no file name
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        print(f"error: {error.strerror}: {error.filename or 'the device'}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        again = "with --resume " if args.__dict__.get("resume") is not None else ""
        print(f"\ninterrupted; run the same command {again}to continue", file=sys.stderr)
        return 130
