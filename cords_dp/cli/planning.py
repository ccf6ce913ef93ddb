"""Commands that train nothing: budget, validate, check, account."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cords_dp.cli.arguments import add_command, add_config, add_json, add_law, add_overrides, load, positive
from cords_dp.errors import ConfigError, ConfigFileError

if TYPE_CHECKING:
    from cords_dp.planning.budget import PlannedRun


def add_commands(commands: Any) -> None:
    _add_budget(commands)
    checking = add_command(
        commands,
        "validate",
        validate,
        "check config, model and budget in seconds, without data, and list all problems",
        "validate configs/glister_dp_mnist.py",
        "validate mine.py --n 48000 --n-validation 6000 --json",
    )
    checking.add_argument("config", metavar="FILE", help="a CORDS config, .py or .yaml")
    add_overrides(checking)
    checking.add_argument("--n", type=positive, help="records in the training set, where the config does not tell")
    checking.add_argument("--n-validation", type=positive, help="records in the validation set (default: n/9)")
    add_json(checking)

    converting = add_command(
        commands,
        "check",
        check,
        "which CORDS configs can be made private by a word, and why not",
        "check path/to/cords/configs/SL",
    )
    converting.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="config files, or folders of them")
    converting.add_argument("--epsilon", type=float, default=3.0, help="the budget to add (default 3)")

    accounting = add_command(
        commands,
        "account",
        account,
        "what all runs on one dataset have spent together (privacy.account)",
        "account patients.json --create --epsilon 10 --delta 1e-6",
        "account patients.json --json",
    )
    accounting.add_argument("file", type=Path, metavar="FILE", help="the account")
    accounting.add_argument("--create", action="store_true", help="begin a new account with the total given")
    accounting.add_argument("--epsilon", type=float, help="total ε of a new account")
    accounting.add_argument("--delta", type=float, help="total δ of a new account, below 1/n")
    add_json(accounting)


def _add_budget(commands: Any) -> None:
    parser = add_command(
        commands,
        "budget",
        budget,
        "show what a privacy budget buys, without training: of a config, or of numbers",
        "budget --config configs/glister_dp_mnist.py",
        "budget --n 50000 --epsilon 3 --epochs 20 --share 0.1 --selections 4",
        "budget --n 50000 --epsilon 3 --json",
        "budget --n 50000 --epsilon 3 --html budget.html --plot budget.png",
    )
    add_config(parser, required=False)
    add_law(parser, default=None)
    numbers = parser.add_argument_group("instead of a config")
    numbers.add_argument("--n", type=positive, help="records in the training set")
    numbers.add_argument("--n-validation", type=positive, help="records in the validation set (default: n/9)")
    numbers.add_argument("--epsilon", type=float, help="privacy budget")
    numbers.add_argument("--delta", type=float, help="default: min(1e-5, 0.1/n)")
    numbers.add_argument("--epochs", type=positive, help="default: what the rule advises")
    numbers.add_argument("--batch", type=positive, help="expected batch size (default: by the plan)")
    numbers.add_argument("--share", type=float, default=0.1, metavar="k", help="gradients an epoch / n (default 0.1)")
    numbers.add_argument("--selections", type=positive, default=4, metavar="L", help="selections in a run (default 4)")
    numbers.add_argument("--mechanism", default="align", help="of selection, or none (default align)")
    numbers.add_argument(
        "--shift", default="unknown", help="do D and V differ: alike, unknown (default) or different; for the advice"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="a picture: ε over epochs, and the prices")
    parser.add_argument("--html", type=Path, metavar="FILE", help="a page with sliders for ε, k and n; takes a minute")
    add_json(parser)


def budget(args: argparse.Namespace) -> int:
    from cords_dp.planning.budget import SHIFTS, advise, budget_of, json_of, text_of

    if (args.config is None) == (args.n is None):
        raise ConfigError("budget", args.config, "give either --config FILE or --n N with --epsilon")
    if args.shift not in SHIFTS:
        raise ConfigError("--shift", args.shift, f"must be one of {', '.join(SHIFTS)}")
    run, sizes = _configured(args) if args.config else _asked(args)
    found = budget_of(run, *sizes)
    if isinstance(found, str):
        print(json.dumps({"private": False, "why": found}) if args.json else found)
        return 0
    subset = found.plan.subset
    share = subset.fraction if found.plan.mechanism else subset.compute_fraction
    advice = advise(share, args.shift)
    written = _written(args, found)
    if args.json:
        print(json.dumps({**json_of(found), "advice": vars(advice)}, indent=2, ensure_ascii=False))
        return 0
    print(f"{text_of(found)}\n\n{advice.text()}")
    if args.trials is not None:
        print("\n" + _tuning_table(args, run, sizes))
    for line in written:
        print(line)
    return 0


def _configured(args: argparse.Namespace) -> tuple[PlannedRun, tuple[int, ...]]:
    from cords_dp.training.resolve import resolve
    from cords_dp.training.run import public_sizes

    config = load(args)
    if args.trials is not None:  # trials are scored on V
        from cords_dp.tuning.search import keeping_validation

        config = keeping_validation(config)
    run = resolve(config, plan=False)
    return run, public_sizes(run)


def _asked(args: argparse.Namespace) -> tuple[PlannedRun, tuple[int, int]]:
    """Turn the numbers of the command line into a run, checked as those of a config are."""
    from cords_dp.planning.budget import advise, question

    if args.epsilon is None:
        raise ConfigError("--epsilon", None, "say how much may be spent, e.g. --epsilon 3")
    if not 0 < args.share <= 1:
        raise ConfigError("--share", args.share, "must lie in (0, 1]")
    if args.trials is not None:
        raise ConfigError("--trials", args.trials, "what tuning costs is shown for a config: give --config")
    asked = question(
        epsilon=args.epsilon,
        delta=args.delta,
        share=args.share,
        mechanism=None if args.mechanism == "none" else args.mechanism,
        selections=args.selections,
        epochs=args.epochs or advise(args.share, args.shift).epochs,
        batch_size=args.batch,
    )
    return asked, (args.n, args.n_validation or max(1, args.n // 9))


def _written(args: argparse.Namespace, found: Any) -> list[str]:
    lines = []
    if args.plot is not None:
        from cords_dp.report.plots import budget_figure

        lines.append(f"picture: {budget_figure(found, args.plot)}")
    if args.html is not None:
        from cords_dp.report.budget_page import write_budget_page

        lines.append(f"page: {write_budget_page(found, args.html)}")
    return lines


def _tuning_table(args: argparse.Namespace, run: Any, sizes: tuple[int, ...]) -> str:
    from cords_dp.tuning.plan import planner, read_law, tuning_plan_of
    from cords_dp.tuning.statement import tuning_table

    return tuning_table(tuning_plan_of(run, sizes, read_law(args.trials, args.law)), planner(run, sizes)(run.privacy))


def validate(args: argparse.Namespace) -> int:
    from cords_dp.runs.validate import find_problems

    sizes = None if args.n is None else (args.n, args.n_validation or max(1, args.n // 9))
    findings = find_problems(load(args), sizes)
    print(json.dumps(findings.to_dict(), indent=2, ensure_ascii=False) if args.json else findings.text())
    return 0 if findings.valid else 1


def check(args: argparse.Namespace) -> int:
    from cords_dp.runs.validate import config_files, conversion_text, convert

    files = config_files(args.paths)
    if not files:
        raise ConfigFileError("no config file there: a config is a .py or .yaml file")
    print(conversion_text(convert(files, epsilon=args.epsilon)))
    return 0


def account(args: argparse.Namespace) -> int:
    from cords_dp.accounting import Account

    if args.create:
        if args.epsilon is None or args.delta is None:
            raise ConfigError("account --create", args.file.name, "needs the total: --epsilon 10 --delta 1e-6")
        account = Account.open(args.file, args.epsilon, args.delta)
    else:
        account = Account.read(args.file)
    print(json.dumps(account.to_dict(), indent=2) if args.json else account.text())
    return 0
