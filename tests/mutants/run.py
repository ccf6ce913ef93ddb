"""`make mutants`: put privacy bugs into a copy of the package, one at a time, and see which test notices.

    python tests/mutants/run.py [--list] [--only NAME ...] [--jobs N] [--timeout SECONDS]

The work tree is never touched. Package and tests are copied to a temporary folder; each bug of `table.MUTANTS` is
written into the copy, its tests run there until the first fails, and the copy is mended. Before that the same tests
run without any bug, since a test that fails anyway kills nothing.

Exit status 1 if a bug survives, if its text is not in the package exactly once, or if its tests break, hang or do not
exist: only an assertion or error *inside* a test counts as a kill.

The libraries are imported once; each bug gets a forked process that imports the package anew.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path.insert(0, str(HERE))

from table import MUTANTS, Mutant  # noqa: E402 - a script beside its table

COPIED = ("cords_dp", "tests", "configs", "pyproject.toml", "run_experiment.py")
KILLED, SURVIVED = "killed", "survived"


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: how, by which test (or why not), in how many seconds."""

    state: str
    words: str
    seconds: float


# --- patches ---------------------------------------------------------------------------------------------------------


def why_not(root: Path, mutant: Mutant) -> str | None:
    """Why the mutant does not fit this package; None if it does."""
    for old, _ in mutant.patches:
        found = sum(text.count(old) for text in sources(root).values())
        if found != 1:
            return f"{old.strip().splitlines()[0]!r} is found {found} times in the package, not once"
    for path, text in changed(root, mutant).items():
        try:
            compile(text, path.name, "exec")
        except SyntaxError as error:
            return f"the patched {path.name} is no Python: {error}"
    return None


def sources(root: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in sorted((root / "cords_dp").rglob("*.py"))}


def changed(root: Path, mutant: Mutant) -> dict[Path, str]:
    """The files that the mutant's patches change, as they are then."""
    before = sources(root)
    after = dict(before)
    for old, new in mutant.patches:
        after = {path: text.replace(old, new) for path, text in after.items()}
    return {path: text for path, text in after.items() if text != before[path]}


@contextlib.contextmanager
def patched(root: Path, mutant: Mutant) -> Iterator[None]:
    texts = changed(root, mutant)
    originals = {path: path.read_text() for path in texts}
    for path, text in texts.items():
        path.write_text(text)
    try:
        yield
    finally:
        for path, text in originals.items():
            path.write_text(text)


# --- tests in a process of their own ---------------------------------------------------------------------------------


class _Verdict:
    """A pytest plugin: the first test that failed, and what went wrong outside of tests."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.broken: list[str] = []
        self.passed = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed:
            self.passed += 1
        if report.failed:
            (self.failed if report.when == "call" else self.broken).append(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.broken.append(report.nodeid or "collection")


def _run_tests(root: Path, tests: Sequence[str], options: Sequence[str], log: Path) -> None:
    """In the forked process: run pytest on the copy and write the verdict beside the log."""
    import pytest

    os.setsid()  # so that processes of its tests end with it
    os.chdir(root)
    sys.path[:] = [str(root), str(root / "tests"), *sys.path[1:]]
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    verdict = _Verdict()
    status = pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *options, *tests], plugins=[verdict])
    found = {"status": int(status), "failed": verdict.failed, "broken": verdict.broken, "passed": verdict.passed}
    log.with_suffix(".json").write_text(json.dumps(found))
    os._exit(0)


def _warm_up() -> None:
    """Import what is slow to import, once; the package itself is forgotten again, each process has its own."""
    sys.dont_write_bytecode = True  # a patch may keep a file's size and second
    os.environ.update(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", MPLBACKEND="Agg")
    sys.path.insert(0, str(REPOSITORY))
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch

    torch.set_num_threads(1)
    import cords_dp.runs.run  # noqa: F401

    for name in [n for n in sys.modules if n.split(".")[0] == "cords_dp"]:
        del sys.modules[name]
    sys.path.remove(str(REPOSITORY))


def _verdict(log: Path) -> dict[str, Any] | None:
    path = log.with_suffix(".json")
    return json.loads(path.read_text()) if path.is_file() else None


# --- one after the other, or some at once ----------------------------------------------------------------------------


def copy_to(folder: Path) -> Path:
    for name in COPIED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        else:
            shutil.copy(source, folder / name)
    return folder


def baseline(root: Path, mutants: Sequence[Mutant], timeout: float) -> str | None:
    """The named tests without any bug: None if all pass, else what does not."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    log = root / "baseline.log"
    process = _start(root, tests, [], log)
    process.join(timeout)
    if process.is_alive():
        _end(process)
        return f"the tests do not end within {timeout:g} seconds"
    found = _verdict(log)
    if found is None or found["status"] or not found["passed"]:
        return f"tests fail without any bug in the package: {found}\n{_tail(log)}"
    return None


def _start(root: Path, tests: Sequence[str], options: Sequence[str], log: Path) -> Any:
    process = multiprocessing.get_context("fork").Process(target=_run_tests, args=(root, tests, options, log))
    process.start()
    return process


def _end(process: Any) -> None:
    """Kill a test process that hangs, and what it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, 9)
    process.kill()
    process.join()


def _tail(log: Path, lines: int = 30) -> str:
    return "\n".join(log.read_text().splitlines()[-lines:]) if log.is_file() else ""


def outcome_of(log: Path, seconds: float, timeout: float, hung: bool) -> Outcome:
    if hung:
        return Outcome("hung", f"its tests did not end within {timeout:g} seconds", seconds)
    found = _verdict(log)
    if found is None:
        return Outcome("broken", f"pytest ended without a verdict\n{_tail(log)}", seconds)
    if found["broken"]:
        return Outcome("broken", f"{found['broken'][0]} could not even begin\n{_tail(log)}", seconds)
    if found["failed"]:
        return Outcome(KILLED, found["failed"][0], seconds)
    if not found["passed"]:
        return Outcome("broken", f"none of its tests ran\n{_tail(log)}", seconds)
    return Outcome(SURVIVED, f"{found['passed']} tests passed", seconds)


def run_all(roots: Sequence[Path], mutants: Sequence[Mutant], timeout: float, tell: Any) -> dict[str, Outcome]:
    """Every mutant, as many at once as there are copies."""
    waiting, free = list(mutants), list(roots)
    running: dict[str, tuple[Any, contextlib.ExitStack, Path, float]] = {}
    outcomes: dict[str, Outcome] = {}
    while waiting or running:
        while waiting and free:
            mutant, root = waiting.pop(0), free.pop()
            stack = contextlib.ExitStack()
            stack.enter_context(patched(root, mutant))
            log = root / f"{mutant.name}.log"
            running[mutant.name] = (_start(root, mutant.tests, ["-x"], log), stack, root, time.monotonic())
        wait([process.sentinel for process, *_ in running.values()], timeout=1.0)
        for name, (process, stack, root, start) in list(running.items()):
            seconds = time.monotonic() - start
            hung = process.is_alive() and seconds > timeout
            if process.is_alive() and not hung:
                continue
            _end(process)
            stack.close()
            outcomes[name] = outcome_of(root / f"{name}.log", seconds, timeout, hung)
            tell(name, outcomes[name])
            free.append(root)
            del running[name]
    return outcomes


# --- what is printed -------------------------------------------------------------------------------------------------


def _line(name: str, outcome: Outcome, width: int) -> str:
    state = "" if outcome.state == KILLED else f"{outcome.state.upper()}: "
    return f"{name:<{width}}  {outcome.seconds:5.1f} s\n    {state}{outcome.words.removeprefix('tests/')}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Privacy bugs and the tests that notice them.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants alone")
    parser.add_argument("--list", action="store_true", help="say what each mutant is, and run nothing")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many at once, each on its own copy")
    parser.add_argument("--timeout", type=float, default=180.0, metavar="SECONDS", help="for the tests of one mutant")
    options = parser.parse_args()
    unknown = set(options.only or ()) - {mutant.name for mutant in MUTANTS}
    if unknown:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    mutants = [mutant for mutant in MUTANTS if not options.only or mutant.name in options.only]
    width = max(len(mutant.name) for mutant in mutants)
    misfits = {mutant.name: reason for mutant in mutants if (reason := why_not(REPOSITORY, mutant))}
    for name, reason in misfits.items():
        print(f"{name:<{width}}  DOES NOT APPLY: {reason}")
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name:<{width}}  {mutant.bug}")
        return 1 if misfits else 0
    mutants = [mutant for mutant in mutants if mutant.name not in misfits]
    began = time.monotonic()
    _warm_up()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        roots = [copy_to(Path(folder) / str(number)) for number in range(max(1, options.jobs))]
        problem = baseline(roots[0], mutants, timeout=1800)
        if problem:
            print(problem)
            return 1
        print(f"Without a bug all named tests pass ({time.monotonic() - began:.0f} s).\n", flush=True)
        outcomes = run_all(roots, mutants, options.timeout, lambda *row: print(_line(*row, width), flush=True))
    alive = [name for name, outcome in outcomes.items() if outcome.state != KILLED]
    print(f"\n{len(outcomes) - len(alive)} of {len(outcomes) + len(misfits)} mutants killed in "
          f"{time.monotonic() - began:.0f} s.")  # fmt: skip
    for name in [*misfits, *alive]:
        print(f"not killed: {name}")
    return 1 if alive or misfits else 0


if __name__ == "__main__":
    sys.exit(main())
