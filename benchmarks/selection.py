"""A selection by each mechanism against one forward pass and against CORDS' own GLISTER, in one run.

    python benchmarks/selection.py [--records 45000] [--cords] [--processor] [--json FILE]

CORDS' TwoLayerNet on made-up records (512 numbers, 512 hidden units, 10 classes), k a tenth, V a ninth of D. Times
are the best of five and include reading V; the forward pass is without gradients, over D alone. Memory is what a
process of its own needs at its peak beyond what it had before. `--cords` adds CORDS' RGreedy with the last layer's
gradients, which takes half a minute and gigabytes. `--processor`: processor time on one thread instead of wall time,
for a machine that has other work.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from cords_dp.accounting import TRAINING_DATA, VALIDATION_DATA, Ledger
from cords_dp.config import PrivacySettings, SubsetSettings
from cords_dp.data.record_set import RecordSet, array_set, sequential_batches
from cords_dp.planning import build_plan, registered_mechanisms
from cords_dp.processes import keep_freed_memory
from cords_dp.selection import Records, SelectionContext
from cords_dp.selection.releases import Releases

_LOSS = nn.CrossEntropyLoss(reduction="none")
_INPUTS = 512
_KEYS: dict[str, dict[str, Any]] = {
    "align": {},
    "match": {},
    "threshold": {},
    "top_k": {},
    "exponential": {"greedy": "RGreedy", "r": 15, "linear_layer": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=45_000)
    parser.add_argument("--mechanisms", nargs="+", default=list(_KEYS), choices=list(_KEYS))
    parser.add_argument("--cords", action="store_true", help="CORDS' own RGreedy beside them")
    parser.add_argument("--processor", action="store_true", help="processor time on one thread")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    clock = time.process_time if args.processor else time.perf_counter
    if args.processor:
        torch.set_num_threads(1)
    keep_freed_memory()  # as a run does
    setting = Setting(args.records)
    forward = _seconds(setting.forward, clock)
    rows = [
        {
            "what": "forward pass",
            "seconds": forward,
            "ratio": 1.0,
            "extra_megabytes": memory_of("forward", args.records),
        }
    ]
    names = [*args.mechanisms, *(["CORDS' RGreedy"] if args.cords else [])]
    for name in names:
        seconds = _seconds(setting.selection(name), clock, 1 if name.startswith("CORDS") else 5)
        rows.append(
            {
                "what": name,
                "seconds": seconds,
                "ratio": seconds / forward,
                "extra_megabytes": memory_of(name, args.records),
            }
        )
    for row in rows:
        print(f"{row['what']:<16} {row['seconds']:8.3f} s {row['ratio']:7.2f} x {row['extra_megabytes']:8.0f} MB")
    if args.json:
        args.json.write_text(json.dumps({"records": args.records, "rows": rows}, indent=2))


class Setting:
    """D, V, a model, and each way to select."""

    def __init__(self, n: int, inputs: int = _INPUTS):
        from cords_dp.cords import cords_models

        torch.manual_seed(0)
        self.n = n
        self.model = cords_models.TwoLayerNet(inputs, 10, 512)
        self.train, self.validation = _data(n, inputs, 0), _data(n // 9, inputs, 1)

    def forward(self) -> None:
        self.model.eval()
        with torch.no_grad():
            for x, _ in sequential_batches(self.train, 1024):
                self.model(x)

    def selection(self, name: str) -> Callable[[], Any]:
        if name.startswith("CORDS"):
            return self._cords()
        mechanism = {m.name: m for m in registered_mechanisms()}[name](**_KEYS[name])
        plan = build_plan(
            "GLISTERDP",
            PrivacySettings(epsilon=3.0, delta=1e-6, accountant="rdp"),
            SubsetSettings(fraction=0.1, select_every=2),
            mechanism,
            epochs=4,
            batch_size=None,
            n=self.n,
            n_validation=self.n // 9,
            uses_all=False,
        )
        context = SelectionContext(
            plan=plan,
            training=Records(self.train, self.model, _LOSS, "cpu"),
            validation=Records(self.validation, self.model, _LOSS, "cpu"),
            num_classes=10,
            learning_rate=0.1,
            coins=np.random.default_rng(0),
        )
        weights = {key: value.clone() for key, value in self.model.state_dict().items()}
        selector = mechanism.build(context)

        def select() -> None:
            ledger = Ledger(allowance=plan.entries())
            generators = {TRAINING_DATA: np.random.default_rng(0), VALIDATION_DATA: np.random.default_rng(1)}
            selector.select(weights, Releases(plan.releases(), charge=ledger.charge, generators=generators))

        if name == "align":
            select()  # labels alone are counted the first time; what is measured are its looks at predictions
        return select

    def _cords(self) -> Callable[[], Any]:
        import logging

        from cords_dp.cords import GLISTERStrategy

        def loader(data: RecordSet) -> DataLoader:
            pairs = torch.utils.data.TensorDataset(data.store.x, data.store.all_labels)
            return DataLoader(pairs, batch_size=1024, shuffle=False)

        strategy = GLISTERStrategy(
            loader(self.train),
            loader(self.validation),
            self.model,
            _LOSS,
            0.1,
            "cpu",
            10,
            True,
            "Supervised",
            "RGreedy",
            logging.getLogger("quiet"),
            r=15,
        )
        return lambda: strategy.select(self.n // 10, self.model.state_dict())


def _data(n: int, inputs: int, seed: int) -> RecordSet:
    rng = np.random.default_rng(seed)
    return array_set(rng.standard_normal((n, inputs), dtype=np.float32), rng.integers(0, 10, n))


def _seconds(function: Callable[[], Any], clock: Callable[[], float], repeats: int = 5) -> float:
    taken = []
    for _ in range(repeats):
        start = clock()
        function()
        taken.append(clock() - start)
    return min(taken)  # other processes only ever add to it


def memory_of(name: str, records: int, inputs: int = _INPUTS) -> float:
    """Megabytes at the peak beyond what was there before, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(name, records, inputs, sender))
    process.start()
    result = receiver.recv()
    process.join()
    return float(result)


def _measure(name: str, records: int, inputs: int, sender: Any) -> None:
    setting = Setting(records, inputs)
    small = Setting(2048, inputs)  # libraries take memory of their own the first time
    (small.forward if name == "forward" else small.selection(name))()
    function = setting.forward if name == "forward" else setting.selection(name)
    Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak counts from here
    before = _megabytes("VmRSS")
    function()
    sender.send(_megabytes("VmHWM") - before)


def _megabytes(field: str) -> float:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) / 1024


if __name__ == "__main__":
    main()
