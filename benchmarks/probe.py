"""How often the choice of a gradient mode errs: right modes refused, wrong ones let through.

    python benchmarks/probe.py [--models ResNet18,MnistNet] [--seeds 20] [--records 2]

Right: every model of CORDS that can be trained privately, with other first weights for each seed. None must be refused,
and each must get the same mode whatever its weights.

Wrong: the same models, whose last weight is used once more through ``F.linear``, and once more by calling its layer.
Ghost clipping then measures one use and sums both. Its look at the graph, which refuses such models at once, is
switched off, so that the comparison alone has to find it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import time
import warnings
from collections import Counter

import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cords_dp.errors import UnsupportedModelError
from cords_dp.models.build import build_model, model_names
from cords_dp.models.private import make_private_ready
from cords_dp.studies.models import _config, _inputs
from cords_dp.training.gradients import opacus
from cords_dp.training.gradients.choose import choose_mode, try_modes

CRITERION = nn.CrossEntropyLoss(reduction="none")
BIASED_READERS = ("LSTM", "LSTMClassifier")  # read words from a file of vectors


class UsedTwice(nn.Module):
    """A model whose last linear layer also reads the record itself."""

    def __init__(self, model: nn.Module, *, by_function: bool):
        super().__init__()
        self.model, self.by_function = model, by_function
        self.last = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]

    def forward(self, x: Tensor) -> Tensor:
        record = x.flatten(1).repeat(1, 1 + self.last.in_features // x[0].numel())[:, : self.last.in_features]
        more = F.linear(record, self.last.weight) if self.by_function else self.last(record)
        return self.model(x) + more


def built(name: str, dataset: str, seed: int) -> nn.Module:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return make_private_ready(build_model(_config(name, dataset), seed=seed))[0]


def input_of(name: str, records: int) -> tuple[str, Tensor] | None:
    """The first of the usual inputs that a model reads."""
    for dataset, x in _inputs():
        try:
            built(name, dataset, 0)(x[:1])
        except Exception:
            continue
        return dataset, torch.randn(records, *x.shape[1:], generator=torch.Generator().manual_seed(0))
    return None


def measured(name: str, dataset: str, x: Tensor, seeds: range) -> dict[str, object]:
    y = torch.arange(len(x)) % 10
    taken: Counter[str] = Counter()
    function, call, start = [], [], time.perf_counter()
    for seed in seeds:
        model = built(name, dataset, seed)
        with contextlib.suppress(UnsupportedModelError):
            taken[choose_mode(model, x, y, CRITERION).name] += 1
        for by_function, refused in ((True, function), (False, call)):
            refused.append(bool(try_modes(UsedTwice(model, by_function=by_function), x, y, CRITERION, ["ghost"])[1]))
    return {
        "model": name,
        "right, refused": len(seeds) - taken.total(),
        "F.linear, let through": len(function) - sum(function),
        "called twice, let through": len(call) - sum(call),
        "of": len(seeds),
        "modes": "+".join(sorted(taken)),
        "seconds each": (time.perf_counter() - start) / len(seeds),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="", help="comma-separated; all by default")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--records", type=int, default=2)
    args = parser.parse_args()
    opacus.refuse_weights_used_twice = lambda losses, parameters: None
    rows = []
    for name in args.models.split(",") if args.models else model_names():
        found = None if name in BIASED_READERS else input_of(name, args.records)
        if found is None:
            continue
        try:
            rows.append(measured(name, *found, range(args.first, args.first + args.seeds)))
        except Exception as error:  # no classifier, or weights without effect: refused as such
            print(f"{name}: {str(error).splitlines()[0]}", flush=True)
            continue
        print(pd.DataFrame(rows[-1:]).to_string(header=len(rows) == 1, index=False), flush=True)


if __name__ == "__main__":
    main()
