"""Sweeps, tunings, accounts and caches of features that are killed again and again. `crash.py` runs them.

Each work has ``enter``, what the killed child does from its beginning or again; ``after_kill`` and ``at_end``, which
return what does not hold, in words. Workers are not processes of their own here: a kill takes driver and run at once.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

REPOSITORY = Path(__file__).resolve().parent.parent.parent
_QUICK = ["--set", "train_args.num_epochs=1", "--set", "train_args.device=cpu", "--set", "privacy.accountant=rdp",
          "--set", "privacy.grad_sample_mode=hooks", "--set", "dataloader.batch_size=64", "--quiet"]  # fmt: skip
_FULL = ["--config", str(REPOSITORY / "configs" / "full_dp_digits.py"), *_QUICK, "--set", "privacy.epsilon=3.0"]


class _InProcess:
    """A backend without processes."""

    def run(self, jobs: Any) -> Iterator[Any]:
        from cords_dp.config import to_plain
        from cords_dp.runs.workers import Finished, Started

        for job in jobs:
            yield Started(job)
            yield Finished(job, job.work(to_plain(job.config)))


def _command(*words: str) -> int:
    from cords_dp.cli import arguments, main

    arguments.backend = lambda _: _InProcess()  # type: ignore[assignment]
    return main([*words])


class Sweep:
    """Four runs: a finished one stays as it is, the table has all of them."""

    longest = 6.0

    def __init__(self, folder: Path):
        self.out, self.seen = folder / "sweep", dict[Path, bytes]()

    def enter(self) -> int:
        return _command("sweep", *_FULL, "--grid", "optimizer.lr=0.1,0.2", "--seeds", "2", "--out", str(self.out))

    def after_kill(self) -> list[str]:
        found = {path: path.read_bytes() for path in self.out.glob("runs/*/result.json")}
        problems = [f"{path.parent.name} changed" for path, old in self.seen.items() if found.get(path) != old]
        problems += [f"{path} is not whole" for path, content in found.items() if not _whole(content)]
        self.seen = found
        return problems

    def at_end(self) -> list[str]:
        problems = self.after_kill()
        rows = (self.out / "runs.csv").read_text().splitlines()[1:]
        statements = [json.loads(path.read_text()) for path in self.out.glob("runs/*/privacy.json")]
        if (len(self.seen), len(rows), len(statements)) != (4, 4, 4):
            problems.append(f"{len(self.seen)} results, {len(rows)} rows, {len(statements)} statements of 4 runs")
        return problems + [f"ε = {s['epsilon']}" for s in statements if not 0 < s["epsilon"] <= 3.0]


class Tune:
    """A tuning under an account: its trials are drawn once, it is charged once, and its account knows of it."""

    longest = 8.0

    def __init__(self, folder: Path):
        self.out, self.account, self.trials = folder / "tuned", folder / "account.json", b""

    def enter(self) -> int:
        from cords_dp.accounting import Account

        Account.open(self.account, 60.0, 1e-4)
        search = ["--search", "optimizer.lr=loguniform(0.05, 1)", "--trials", "3"]
        return _command("tune", *_FULL, *search, "--set", f"privacy.account={self.account}", "--out", str(self.out))

    def after_kill(self) -> list[str]:
        drawn = [path.read_bytes() for path in self.out.rglob("trials.json")]
        changed = bool(self.trials and drawn and drawn[0] != self.trials)
        self.trials = drawn[0] if drawn else self.trials
        return ["other trials were drawn"] * changed

    def at_end(self) -> list[str]:
        from cords_dp.accounting import Account, Ledger

        ledger = Ledger.read(self.out / "ledger.jsonl")
        held = Account.read(self.account).holdings().get(ledger.id)
        result = json.loads((self.out / "tuning.json").read_text())
        problems = self.after_kill()
        if held is None or {e.event for e in ledger.entries} - {e.event for e in held.entries}:
            problems.append(f"the account holds {held}, charged were {ledger.entries}")
        if any(entry.event.count != 1 for entry in ledger.entries if entry.event.kind == "repeat_and_select"):
            problems.append(f"charged more than once: {ledger.entries}")
        if not 0 < result["epsilon"] <= 3.0:
            problems.append(f"ε = {result['epsilon']}")
        left = sorted(path.name for path in self.out.iterdir())
        if any(name in ("private", "runs") or name.endswith("tmp") for name in left):
            problems.append(f"left behind: {left}")
        return problems


class AccountOfMany:
    """Reservations and settlements one after the other: whatever returned is in the account, in every attempt."""

    longest, runs = 1.5, 25

    def __init__(self, folder: Path):
        self.path, self.told = folder / "account.json", folder / "told.txt"

    def enter(self) -> int:
        from cords_dp.accounting import Account

        account = Account.open(self.path, 10.0, 1e-5)
        with open(self.told, "a") as told:
            for number in range(self.runs):
                reservation = account.reserve(f"run{number}", _plan(4))
                _tell(told, f"run{number} 4")
                reservation.settle(_plan(3))
                _tell(told, f"run{number} 3")
        return 0

    def after_kill(self) -> list[str]:
        from cords_dp.accounting import Account

        if not self.told.is_file() or not self.path.is_file():
            return []
        account = Account.read(self.path)
        held = {run: sum(e.event.count for e in h.entries) for run, h in account.holdings().items()}
        returned = dict(line.split() for line in self.told.read_text().splitlines() if line.count(" ") == 1)
        problems = [f"{run}: {held.get(run)} held" for run, n in returned.items() if held.get(run, 0) < min(3, int(n))]
        return problems + ["more than the total is held"] * (account.share() > 1)

    def at_end(self) -> list[str]:
        from cords_dp.accounting import Account

        held = Account.read(self.path).holdings()
        short = {run for run, holding in held.items() if sum(e.event.count for e in holding.entries) != 3}
        return self.after_kill() + [f"{len(held)} runs, not three steps: {short}"] * bool(
            short or len(held) != self.runs
        )


def _plan(steps: int) -> list[Any]:
    from cords_dp.accounting import TRAINING_DATA, Entry, PoissonGaussian

    return [Entry(TRAINING_DATA, "training", PoissonGaussian(8.0, 0.1, steps))]


def _tell(file: Any, line: str) -> None:
    file.write(line + "\n")
    file.flush()
    os.fsync(file.fileno())


class AccountOfARun:
    """A training run under an account, resumed: the account holds at least what the run's ledger charged."""

    longest = 5.0

    def __init__(self, folder: Path):
        self.out, self.account = folder / "run", folder / "account.json"

    def enter(self) -> int:
        from cords_dp.accounting import Account
        from cords_dp.cli import run_main

        Account.open(self.account, 60.0, 1e-4)
        more = [f"privacy.account={self.account}", "ckpt.is_save=true", "ckpt.save_every=1", "train_args.num_epochs=4"]
        changes = [word for change in more for word in ("--set", change)]
        resume = ["--resume"] * bool([*self.out.rglob("ledger.jsonl")])
        return run_main([*_FULL, *changes, "--out", str(self.out), *resume])

    def after_kill(self) -> list[str]:
        from cords_dp.accounting import Account, Ledger

        problems, journals = [], [*self.out.rglob("ledger.jsonl")]
        if self.account.is_file() and journals:
            ledger, held = Ledger.read(journals[0]), Account.read(self.account).holdings()
            entries = held[ledger.id].entries if ledger.id in held else ()
            kept = {entry.event.with_count(1): entry.event.count for entry in entries}
            charged = [entry.event for entry in ledger.entries]
            problems += [f"{e} is not held" for e in charged if kept.get(e.with_count(1), 0) < e.count]
        return problems

    def at_end(self) -> list[str]:
        from cords_dp import verify

        result = verify.verify(self.out)
        return self.after_kill() + [result["verdict"]] * (not result["verified"])


class Features:
    """A cache that grows from its first row on: what has a name is right, and what is noted is on the device."""

    longest = 1.2
    shape = (400, 6)

    def __init__(self, folder: Path):
        self.cache = folder / "features"

    def enter(self) -> int:
        from torch.utils.data import TensorDataset

        import cords_dp.data.feature_cache as feature_cache

        feature_cache._SECONDS = 0.0  # note every batch
        x = torch.arange(self.shape[0] * self.shape[1]).reshape(self.shape).float()
        records = TensorDataset(x, torch.zeros(len(x), dtype=torch.long))
        feature_cache.with_features(records, _Doubled(), self.cache, progress=False)
        return 0

    def _wanted(self) -> np.ndarray:
        return (2 * np.arange(self.shape[0] * self.shape[1]).reshape(self.shape)).astype(np.float16)

    def after_kill(self) -> list[str]:
        problems = []
        for path in self.cache.glob("*.npy"):
            if not np.array_equal(np.load(path), self._wanted()):
                problems.append(f"{path.name} has wrong features")
        for count in self.cache.glob("*.rows"):
            rows, part = int(count.read_text()), count.with_suffix(".part")
            if part.is_file() and not np.array_equal(np.load(part)[:rows], self._wanted()[:rows]):
                problems.append(f"{rows} rows are noted and not all there")
        return problems

    def at_end(self) -> list[str]:
        names = sorted(path.suffix for path in self.cache.iterdir() if path.suffix != ".lock")
        return self.after_kill() + [f"left behind: {names}"] * (names != [".npy", ".txt"])


class _Doubled:
    """A slow transform."""

    name, settings, feature_shape, batch = "doubled", ("doubled",), (6,), 20

    def __call__(self, records: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return 2 * records


def _whole(content: bytes) -> bool:
    try:
        return isinstance(json.loads(content), dict)
    except ValueError:
        return False


WORKS: dict[str, Any] = {
    "sweep": Sweep,
    "tune": Tune,
    "account": AccountOfMany,
    "account of a run": AccountOfARun,
    "features": Features,
}
