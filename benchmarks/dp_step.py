"""What a private step costs: samples/s of plain SGD and of DP-SGD in every gradient mode, side by side.

    python benchmarks/dp_step.py [--cases MnistNet,…] [--modes bookkeeping,…] [--repeats 9] [--threads 1] [--json FILE]

Every step runs forward and backward, clips, draws and adds its noise and moves the weights; plain SGD is the same model
(BatchNorm replaced too, but with torch's own LSTM) without all that. The modes take turns within one run, so that a
busy machine slows all alike; figures are medians of processor time at one thread, of wall-clock time at several.
``ratio`` is samples/s over those of plain SGD, ``memory`` the largest extra memory during a step over that of plain
SGD, the median of three processes. A mode that is wrong for a model (`choose.try_modes`) is left out with its reason.
Where ``fastDP`` can be imported, it takes part.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import multiprocessing
import platform
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cords_dp.config.settings import GRADIENT_MODES
from cords_dp.cords import cords_models
from cords_dp.models.convolutional import TanhCNN
from cords_dp.models.private import FrozenVectors, make_private_ready
from cords_dp.noise.generators import noise_source, secure_generator
from cords_dp.training.gradients.choose import choose_mode, try_modes
from cords_dp.training.step import PlainEngine, PrivateEngine

PLAIN = "plain SGD"
FASTDP = "fastDP"
CRITERION = nn.CrossEntropyLoss(reduction="none")


@dataclass(frozen=True)
class Case:
    """A model as CORDS has it, what to do to it for plain SGD, and the shape of a batch."""

    build: Callable[[], nn.Module]
    batch: int
    shape: tuple[int, ...]
    words: int = 0  # records are sequences of so many different words

    def model(self, mode: str) -> nn.Module:
        torch.manual_seed(0)
        model = self.build()
        private, _ = make_private_ready(copy.deepcopy(model))
        if mode == PLAIN and self.words:  # torch's own LSTM, on vectors that are as frozen as ours
            model.embedding = FrozenVectors(model.embedding.weight)  # type: ignore[union-attr, arg-type]
            return model.train()
        return private.train()

    def inputs(self, size: int | None = None) -> tuple[Tensor, Tensor]:
        generator, count = torch.Generator().manual_seed(1), size or self.batch
        y = torch.randint(0, 10 if not self.words else 2, (count,), generator=generator)
        if self.words:
            return torch.randint(0, self.words, (count, *self.shape), generator=generator), y
        return torch.randn(count, *self.shape, generator=generator), y


def _cords(name: str, *args: Any) -> nn.Module:
    return getattr(cords_models, name)(*args)


def _lstm() -> nn.Module:
    """CORDS' classifier, on made-up word vectors: it reads them from a file."""
    with tempfile.TemporaryDirectory() as folder:
        lines = (f"w{i} " + " ".join(f"{v:.3f}" for v in row) for i, row in enumerate(torch.randn(2000, 300).tolist()))
        Path(folder, "glove.6B.300d.txt").write_text("\n".join(lines) + "\n")
        return cords_models.LSTMClassifier(2, 300, folder + "/", 1, 150)


CASES = {
    "MnistNet": Case(lambda: _cords("MnistNet"), 64, (1, 28, 28)),
    "TanhCNN": Case(lambda: TanhCNN(10, (3, 32, 32), width=42, groups=7), 64, (3, 32, 32)),
    "CifarNet": Case(lambda: _cords("CifarNet"), 64, (3, 32, 32)),
    "ResNet18": Case(lambda: _cords("ResNet18", 10), 64, (3, 32, 32)),
    "LSTM": Case(_lstm, 64, (40,), words=2000),
}


def step_of(case: Case, mode: str) -> tuple[Callable[[], None], nn.Module]:
    """A function that takes one step, and its model."""
    model, (x, y) = case.model(mode), case.inputs()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer, weights = torch.optim.SGD(parameters, lr=1e-3), torch.ones(len(y))
    if mode == PLAIN:
        plain = PlainEngine(model, optimizer, CRITERION, batch_size=len(y))
        return lambda: plain.step(x, y, weights), model
    if mode == FASTDP:
        return _fastdp_step(model, optimizer, x, y), model
    engine = PrivateEngine(
        model, optimizer, CRITERION, sigma=1.0, max_grad_norm=1.0, batch_size=len(y), mode=mode,
        noise=noise_source(secure_generator()),
    )  # fmt: skip
    return lambda: engine.step(x, y, weights), model


def _fastdp_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Callable[[], None]:
    from fastDP import PrivacyEngine  # type: ignore[import-not-found]

    engine = PrivacyEngine(
        model, batch_size=len(y), sample_size=50_000, noise_multiplier=1.0, epochs=1, max_grad_norm=1.0,
        clipping_mode="MixOpt", clipping_style="all-layer", clipping_fn="Abadi", loss_reduction="sum",
    )  # fmt: skip
    engine.attach(optimizer)
    if not all(p.requires_grad for group in optimizer.param_groups for p in group["params"]):
        raise ValueError("freezes weights of layers that it does not know")

    def step() -> None:
        CRITERION(model(x), y).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def measure(name: str, modes: list[str], repeats: int, threads: int) -> dict[str, Any]:
    case = CASES[name]
    probed, problems = try_modes(case.model("private"), *case.inputs(4), CRITERION, modes)
    modes = [mode for mode in modes if mode in probed]
    steps = {PLAIN: step_of(case, PLAIN)[0], **{mode: step_of(case, mode)[0] for mode in modes}}
    try:
        fast, _ = step_of(case, FASTDP)
        fast()
        steps[FASTDP] = fast
    except Exception as error:
        problems[FASTDP] = (str(error).splitlines() or [type(error).__name__])[0]
    milliseconds = medians(steps, repeats, time.process_time if threads == 1 else time.perf_counter)
    memory = {mode: statistics.median(peak_megabytes(name, mode, threads) for _ in range(3)) for mode in steps}
    weights = sum(p.numel() for p in case.model("private").parameters() if p.requires_grad)
    rows = {
        mode: {
            "samples_per_second": 1e3 * case.batch / taken,
            "ratio": milliseconds[PLAIN] / taken,
            "extra_mb": memory[mode],
            "memory_ratio": memory[mode] / memory[PLAIN],
        }
        for mode, taken in milliseconds.items()
    }
    fastest = choose_mode(case.model("private"), *case.inputs(4), CRITERION, modes).name if modes else None
    return {
        "case": name,
        "weights": weights,
        "batch": case.batch,
        "probe": fastest,
        "modes": rows,
        "left_out": problems,
    }


def medians(tasks: dict[str, Callable[[], None]], repeats: int, clock: Callable[[], float]) -> dict[str, float]:
    """Median milliseconds, the tasks taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for round_number in range(repeats + 1):
        for name, task in tasks.items():
            gc.collect()
            start = clock()
            task()
            if round_number:  # the first round warms up
                seconds[name].append(clock() - start)
    return {name: 1e3 * statistics.median(values) for name, values in seconds.items()}


def peak_megabytes(name: str, mode: str, threads: int) -> float:
    """The largest resident memory during two steps less that before the first, in a fresh process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__"])
    with context.Pool(1) as pool:
        return pool.apply(_peak_of_step, (name, mode, threads))


def _peak_of_step(name: str, mode: str, threads: int) -> float:
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    step, _ = step_of(CASES[name], mode)
    before, peak, done = _resident(), [0.0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            peak[0] = max(peak[0], _resident())
            time.sleep(1e-3)

    watcher = threading.Thread(target=watch)
    watcher.start()
    step()
    step()
    done.set()
    watcher.join()
    return peak[0] - before


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def show(result: dict[str, Any]) -> None:
    print(
        f"{result['case']}: {result['weights']:,} weights, batch {result['batch']}; the probe takes {result['probe']}"
    )
    print(f"  {'mode':12} {'samples/s':>10} {'ratio':>7} {'extra MB':>9} {'memory':>7}")
    for mode, row in result["modes"].items():
        print(
            f"  {mode:12} {row['samples_per_second']:10.1f} {row['ratio']:7.2f} {row['extra_mb']:9.0f} "
            f"{row['memory_ratio']:7.2f}"
        )
    for mode, reason in result["left_out"].items():
        print(f"  {mode:12} left out: {reason[:90]}")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="models, comma-separated")
    parser.add_argument("--modes", default=",".join(GRADIENT_MODES), help="gradient modes, comma-separated")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(arguments.threads)
    results = []
    for name in arguments.cases.split(","):
        results.append(measure(name, arguments.modes.split(","), arguments.repeats, arguments.threads))
        show(results[-1])
    if arguments.json:
        about = {
            "threads": arguments.threads, "repeats": arguments.repeats, "machine": platform.machine(),
            "torch": torch.__version__,
        }  # fmt: skip
        arguments.json.write_text(json.dumps({"about": about, "cases": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
