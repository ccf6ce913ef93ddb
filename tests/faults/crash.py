"""Runs, sweeps, tunings, accounts and caches that are killed with SIGKILL again and again, and resumed until they end.

``python tests/faults/crash.py --case match --kills 10 --seed 0`` prints one JSON line per run, and how many kills there
were in all; `crash_works` has what is no run. Each attempt is a forked
child that calls the command line's own entry; this process has imported everything before, so that a hundred attempts
take minutes. A child is killed from here at a random time, or kills itself at the n-th call of a function of the
package (`MOMENTS`), before it, after it or in the middle of its write. The package itself knows nothing of this.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(REPOSITORY), str(Path(__file__).resolve().parent)]  # this tree, whatever is installed

from crash_works import WORKS  # noqa: E402 - a script beside it

CASES = {
    "FullDP": ("full_dp_digits.py", []),
    "RandomDP": ("random_dp_digits.py", ["dss_args.fraction=0.3"]),
    "align": ("glister_dp_digits.py", ["dss_args.fraction=0.3", "dss_args.mechanism=align"]),
    "match": ("glister_dp_digits.py", ["dss_args.fraction=0.3", "dss_args.mechanism=match"]),
    "threshold": ("glister_dp_digits.py", ["dss_args.fraction=0.3", "dss_args.mechanism=threshold"]),
    "top_k": ("glister_dp_digits.py", ["dss_args.fraction=0.3", "dss_args.mechanism=top_k"]),
}
EPOCHS = 8
COMMON = [
    f"train_args.num_epochs={EPOCHS}",
    "train_args.print_every=1",
    "train_args.device=cpu",
    "dss_args.select_every=3",
    "ckpt.is_save=true",
    "ckpt.save_every=1",
    "privacy.epsilon=3.0",
    "privacy.accountant=rdp",
    "privacy.grad_sample_mode=hooks",
    "privacy.ema_decay=0.9",
    "dataloader.batch_size=64",
    "optimizer.lr=0.2",
]
LONGEST_ATTEMPT = 900.0  # of wall time: a busy machine may give a child a tenth of a processor


def arguments(case: str, out: Path, *, resume: bool) -> list[str]:
    name, changes = CASES[case]
    command = ["--config", str(REPOSITORY / "configs" / name), "--out", str(out), "--seed", "0", "--quiet"]
    for change in [*COMMON, *changes]:
        if case != "FullDP" or not change.startswith("dss_args.select_every"):
            command += ["--set", change]
    return [*command, "--resume"] if resume else command


# --- where a child kills itself --------------------------------------------------------------------


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _killing(function: Callable[..., Any], nth: int, *, after: bool) -> Callable[..., Any]:
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and not after:
            _die()
        result = function(*args, **kwargs)
        if calls == nth:
            _die()
        return result

    return wrapped


def _half_written(function: Callable[..., Any], nth: int) -> Callable[..., Any]:
    calls = 0

    def wrapped(descriptor: int, content: bytes, offset: int) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            os.pwrite(descriptor, content[: len(content) // 2], offset)
            _die()
        return function(descriptor, content, offset)

    return wrapped


def _targets() -> dict[str, tuple[Any, str]]:
    import csv as csv_module

    import cords_dp.accounting.journal as journal
    import cords_dp.files as files
    import cords_dp.training.checkpoint as checkpoint
    from cords_dp.accounting import Ledger
    from cords_dp.selection.session import Selections
    from cords_dp.training.metrics import History
    from cords_dp.training.step import PrivateEngine

    return {
        "charge": (Ledger, "charge"),
        "append": (journal, "_write_whole"),
        "replace": (files.os, "replace"),
        "fsync": (files.os, "fsync"),
        "select": (Selections, "select"),
        "step": (PrivateEngine, "step"),
        "checkpoint": (checkpoint, "save_checkpoint"),
        "metrics": (History, "to_csv"),
        "metrics line": (csv_module, "writer"),
    }


MOMENTS = [
    ("charge", "before"), ("charge", "after"), ("append", "middle"), ("replace", "before"), ("replace", "after"),
    ("fsync", "before"), ("fsync", "after"), ("select", "before"), ("select", "after"), ("step", "before"),
    ("step", "after"), ("checkpoint", "before"), ("checkpoint", "after"), ("metrics", "before"), ("metrics", "after"),
    ("metrics line", "after"),
]  # fmt: skip


WRITES = [(what, when) for what, when in MOMENTS if what in ("append", "replace", "fsync")]


def arm(what: str, when: str, nth: int) -> None:
    owner, name = _targets()[what]
    function = getattr(owner, name)
    wrapped = _half_written(function, nth) if when == "middle" else _killing(function, nth, after=when == "after")
    setattr(owner, name, wrapped)


# --- one attempt -----------------------------------------------------------------------------------


def attempt(enter: Callable[[], int], output: Path, *, moment: tuple[str, str, int] | None, delay: float | None) -> int:
    """Exit code of a child that does ``enter``, or -9 where it was killed. Its output is in the file ``output``."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            with open(output, "a") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            if moment is not None:
                arm(*moment)
            code = enter()
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + LONGEST_ATTEMPT
    kill_at = None if delay is None else time.monotonic() + delay
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        now = time.monotonic()
        if now > deadline or (kill_at is not None and now > kill_at):
            os.kill(child, signal.SIGKILL)
            if now > deadline:
                os.waitpid(child, 0)
                raise TimeoutError(f"an attempt hung: {output}")
            kill_at = None
        time.sleep(0.01)


# --- what must hold --------------------------------------------------------------------------------


def committed_epoch(out: Path) -> int:
    """The epoch of the checkpoint that a kill left behind, read without the package's own code."""
    import torch
    from torch import nn

    found = [path for path in out.rglob("model.pt") if path.parent != out]
    if not found:
        return 0
    with torch.serialization.safe_globals([nn.CrossEntropyLoss, set]):
        return int(torch.load(found[0], weights_only=True)["epoch"])


def csv_epochs(out: Path) -> list[int]:
    path = out / "metrics.csv"
    if not path.is_file():
        return []
    with open(path, newline="") as file:
        return [int(row["epoch"]) for row in csv.DictReader(file)]


def journal_events(out: Path) -> dict[str, list[dict[str, Any]]]:
    """The events charged to D and to V, by a parser of our own."""
    (path,) = out.rglob("ledger.jsonl")
    events: dict[str, list[dict[str, Any]]] = {"D": [], "V": []}
    for line in path.read_text().splitlines():
        record = json.loads(line)["record"]
        if "charge" in record:
            events[record["charge"]["dataset"]].append(record["charge"]["event"])
    return events


def spent(events: list[dict[str, Any]], delta: float) -> float:
    """ε of Gaussian events by dp-accounting's PLD, without the package's own code.

    An event of several branches (a record is treated in one way or in another) counts as its first branch each time, or
    as its second: the larger ε is a lower bound of what such a run spends.
    """
    branches = max((len(event.get("branches", ())) for event in events), default=0)
    return max(_spent_in(events, delta, branch) for branch in range(max(branches, 1)))


def _spent_in(events: list[dict[str, Any]], delta: float, branch: int) -> float:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant(value_discretization_interval=1e-3)
    for event in events:
        parts = event["branches"][min(branch, len(event["branches"]) - 1)] if "branches" in event else [event]
        for part in parts:
            single: Any = dp_accounting.GaussianDpEvent(part["sigma"])
            if part.get("rate", 1.0) < 1:
                single = dp_accounting.PoissonSampledDpEvent(part["rate"], single)
            accountant.compose(
                single, int(part.get("count", 1)) * (event.get("count", 1) if "branches" in event else 1)
            )
    return accountant.get_epsilon(delta) if events else 0.0


def leftovers(out: Path) -> list[str]:
    names = [path.name for path in out.rglob("*")]
    return [name for name in names if name.endswith(".tmp")]


def crash_run(case: str, rng: random.Random, folder: Path, *, kills: int, fixed: str | None = None) -> dict[str, Any]:
    """One run with up to ``kills`` kills. Returns what happened; ``problems`` is empty where everything held."""
    from cords_dp.cli import run_main

    out = folder / "run"
    problems: list[str] = []
    history: list[str] = []
    best, resume, killed, code = 0, False, 0, -9
    rows: set[int] = set()
    for number in range(kills + 2):
        moment = delay = None
        if number < kills:
            if fixed is not None:
                what, when, nth = fixed.rsplit(" ", 2)
                moment = (what, when, int(nth))
                history.append(fixed)
            elif rng.random() < 0.6:
                moment = (*rng.choice(MOMENTS), rng.choice([1, 1, 2, 3, 5, 8, 13]))
                history.append("{} {} {}".format(*moment))
            else:
                delay = rng.uniform(0.05, 6.0)
                history.append(f"{delay:.2f} s")
        entry = partial(run_main, arguments(case, out, resume=resume))
        code = attempt(entry, folder / "output.txt", moment=moment, delay=delay)
        resume = True
        if code != -9:
            history.append(f"exit {code}")
            break
        killed += 1
        try:
            epoch = committed_epoch(out)
        except Exception as error:
            problems.append(f"a checkpoint cannot be read: {error}")
            break
        if epoch < best:
            problems.append(f"the checkpoint went back from epoch {best} to {epoch}")
        best = max(best, epoch)
        seen = csv_epochs(out)
        if not {row for row in rows if row <= best} <= {*seen} and seen:
            history.append("metrics.csv was short for a while")
        rows |= {*seen}
    if code != 0:
        output = (folder / "output.txt").read_text().strip().splitlines()
        problems.append(f"exit {code}: {output[-1] if output else ''}")
        return {"case": case, "kills": killed, "history": history, "problems": problems}
    report = json.loads((out / "result.json").read_text())
    final, reached = csv_epochs(out), committed_epoch(out)
    if reached < best:
        problems.append(f"the last checkpoint is of epoch {reached}, one of epoch {best} was committed")
    if final != sorted(set(final)) or not rows <= {*final}:
        problems.append(f"metrics.csv has {final}, seen before were {sorted(rows)}")
    # an epoch that was paid for when the process died cannot be repeated, so it has no row; a kill loses one at most
    if len(set(range(1, reached + 1)) - set(final)) > killed:
        problems.append(f"metrics.csv has {final} of {reached} epochs after {killed} kills")
    events = journal_events(out)
    epsilons = {side: spent(charged, report["delta"]) for side, charged in events.items()}
    for side, epsilon in epsilons.items():
        if epsilon > 3.0:
            problems.append(f"{side} spent {epsilon:.4f} of 3")
    if max(epsilons.values()) > report["epsilon"] * 1.001:
        problems.append(f"the report says {report['epsilon']:.4f}, the journal {epsilons}")
    if left := leftovers(out):
        problems.append(f"left behind: {left}")
    return {
        "case": case, "kills": killed, "history": history, "problems": problems, "epochs": reached,
        "epsilons": epsilons,
    }  # fmt: skip


def crash_work(case: str, rng: random.Random, folder: Path, *, kills: int) -> dict[str, Any]:
    """One of `crash_works` with up to ``kills`` kills, as `crash_run`."""
    work, problems, history = WORKS[case](folder), list[str](), list[str]()
    killed, code = 0, -9
    for number in range(kills + 1):
        moment = delay = None
        if number < kills and rng.random() < 0.5:
            moment = (*rng.choice(WRITES), rng.choice([1, 1, 2, 3, 5, 8, 13, 21]))
            history.append("{} {} {}".format(*moment))
        elif number < kills:
            delay = rng.uniform(0.02, work.longest)
            history.append(f"{delay:.2f} s")
        code = attempt(work.enter, folder / "output.txt", moment=moment, delay=delay)
        if code != -9:
            history.append(f"exit {code}")
            break
        killed += 1
        problems += work.after_kill()
    output = (folder / "output.txt").read_text().strip().splitlines()
    problems += work.at_end() if code == 0 else [f"exit {code}: {output[-1] if output else ''}"]
    problems += [f"left behind: {left}"] if (left := leftovers(folder)) else []
    return {"case": case, "kills": killed, "history": history, "problems": problems}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", action="append", choices=[*CASES, *WORKS])
    parser.add_argument("--kills", type=int, default=10, help="stop after so many kills in all")
    parser.add_argument("--per-run", type=int, default=2, help="at most so many kills of one run")
    parser.add_argument("--moment", action="append", help="kill one run at each of these instead: 'charge after 2'")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    import torch

    torch.set_num_threads(1)
    # everything that a run imports, once
    import sklearn.datasets  # noqa: F401
    from dp_accounting.pld import PLDAccountant  # noqa: F401

    import cords_dp.runs.run

    assert Path(cords_dp.__file__).is_relative_to(REPOSITORY)

    rng, killed, runs, broken = random.Random(args.seed), 0, 0, 0
    cases = args.case or [*CASES, *WORKS]
    for case, moment in ((case, moment) for case in cases for moment in args.moment or ()):
        with tempfile.TemporaryDirectory(prefix="crash-") as folder:
            print(json.dumps(crash_run(case, rng, Path(folder), kills=1, fixed=moment)), flush=True)
    if args.moment:
        return 0
    while killed < args.kills:
        case = cases[runs % len(cases)]
        with tempfile.TemporaryDirectory(prefix="crash-") as folder:
            crash = crash_work if case in WORKS else crash_run
            result = crash(case, rng, Path(folder), kills=rng.randint(1, args.per_run))
        killed, runs, broken = killed + result["kills"], runs + 1, broken + bool(result["problems"])
        print(json.dumps(result), flush=True)
        if runs > 3 * args.kills + 10:
            break
    print(f"{killed} kills of {runs} works (seed {args.seed}): {broken} with a problem", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
