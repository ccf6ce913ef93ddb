"""``cords-dp audit`` and ``cords-dp verify``."""

from __future__ import annotations

import argparse
import errno
import sys
from pathlib import Path
from typing import Any

from cords_dp.cli.arguments import add_command, add_config, add_json, load, positive


def add_commands(commands: Any) -> None:
    parser = add_command(
        commands,
        "audit",
        audit,
        "try to refute the privacy claims of a config, on the package's own code",
        "audit --config configs/glister_dp_mnist.py --epsilon 1 4",
        "audit --config configs/full_dp_digits.py --json --quiet",
    )
    add_config(parser)
    parser.add_argument("--epsilon", type=float, nargs="+", help="budgets (default: the config's own)")
    parser.add_argument("--out", type=Path, default=Path("runs/audit"), help="output folder")
    add_json(parser)
    parser.add_argument("--canaries", type=positive, default=1000, help="canaries of the one run (default 1000)")
    parser.add_argument("--steps", type=positive, default=60, help="steps with 128 canaries each (default 60)")
    parser.add_argument("--draws", type=positive, default=4000, help="draws of each release (default 4000)")
    parser.add_argument("--trainings", type=positive, default=600, help="short trainings a side (default 600)")

    checking = add_command(
        commands,
        "verify",
        verify,
        "check a run's folder or an account: do files, charges, model and epsilon belong together",
        "verify runs/adult",
        "verify patients.json --json",
    )
    checking.add_argument("path", type=Path, metavar="RUN|ACCOUNT", help="the folder of a run, or an account's file")
    add_json(checking)


def verify(args: argparse.Namespace) -> int:
    from cords_dp.verify import main

    if not args.path.exists():
        raise FileNotFoundError(errno.ENOENT, "there is no such run or account", str(args.path))
    return main([str(args.path), *(["--json"] if args.json else [])])


def audit(args: argparse.Namespace) -> int:
    from cords_dp.auditing.audit import Effort, run_audit
    from cords_dp.report.tables import audit_figure

    def tell(line: str) -> None:
        if not args.quiet:
            print(line, file=sys.stderr)

    effort = Effort(args.canaries, args.steps, args.draws, args.trainings)
    report = run_audit(load(args), args.epsilon or (), effort, tell=tell)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "audit.json").write_text(report.to_json() + "\n")
    picture = audit_figure(report.rows(), args.out / "audit.png")
    print(report.to_json() if args.json else f"{report.text()}\n\npicture: {picture}")
    return 0 if report.passed else 1
