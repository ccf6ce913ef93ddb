"""Which models can be trained privately, and how: the table of docs/models.md, found out by trying."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from dotmap import DotMap
from torch import nn

from cords_dp import CordsDPError
from cords_dp.extend import build_model, make_private_ready, model_names, try_modes

_IMAGES = ("cifar10", "mnist")
_READERS, _VECTOR_LENGTH = ("LSTM", "LSTMClassifier"), 50  # models that read words
_CRITERION = nn.CrossEntropyLoss(reduction="none")


def model_table(names: list[str] | None = None) -> pd.DataFrame:
    """Return one row per model: input, weights, what was replaced, the modes with right gradients, or why not."""
    return pd.DataFrame([_row(name) for name in (names or model_names())])


def _row(name: str) -> dict[str, Any]:
    reasons: list[str] = []
    for dataset, x in _sentences() if name in _READERS else _inputs():
        try:
            with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
                warnings.simplefilter("ignore")
                model, replaced = make_private_ready(build_model(_config(name, dataset), seed=0))
                modes, problems = try_modes(model, x, torch.arange(len(x)) % 10, _CRITERION)
        except CordsDPError as error:
            reasons.insert(0, _reason(error))  # speaks of privacy rather than of shapes
            continue
        except Exception as error:  # CORDS' models raise many kinds
            reasons.append(_reason(error))
            continue
        if modes:
            weights = sum(p.numel() for p in model.parameters() if p.requires_grad)
            changes = (
                "LSTM → DPLSTM, frozen vectors" if name in _READERS else "BatchNorm → GroupNorm" if replaced else ""
            )
            return _cells(name, f"{'×'.join(map(str, x.shape[1:]))}", f"{weights:,}", changes, ", ".join(modes), "")
        reasons.insert(0, list(problems.values())[1])  # the first mode's says only that it is for linear heads
    return _cells(name, "", "", "", "", reasons[0])


def _cells(*values: str) -> dict[str, str]:
    return dict(zip(("model", "input", "weights", "replaced", "modes", "refused because"), values, strict=True))


def _inputs() -> Iterator[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    yield "cifar10", torch.randn(2, 3, 32, 32, generator=generator)
    yield "mnist", torch.randn(2, 1, 28, 28, generator=generator)
    yield "digits", torch.randn(2, 64, generator=generator)


def _sentences() -> Iterator[tuple[str, torch.Tensor]]:
    """Write two made-up words with made-up vectors, in a file as GloVe's are."""
    generator = torch.Generator().manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        vectors = torch.randn(2, _VECTOR_LENGTH, generator=generator).tolist()
        lines = (" ".join(map(str, [word, *vector])) for word, vector in zip("ab", vectors, strict=True))
        (Path(folder) / f"glove.6B.{_VECTOR_LENGTH}d.txt").write_text("\n".join(lines) + "\n")
        yield folder, torch.randint(0, 2, (2, 12), generator=generator)


def _config(name: str, dataset: str) -> DotMap:
    model = {"architecture": name, "numclasses": 10}
    if name in _READERS:  # the settings of CORDS' configs, but for the vectors
        model |= {"wordvec_dim": _VECTOR_LENGTH, "weight_path": dataset, "hidden_size": 128, "num_layers": 1}
    return DotMap(model=model, dataset={"name": dataset})


def _reason(error: Exception) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return text if len(text) < 160 else text[:157] + "..."


_HEADER = """# Models

Every model of CORDS and of ours, tried as a classifier on made-up images, features or words: built, made fit for
per-example gradients, and stepped in each mode of `privacy.grad_sample_mode`, whose clipped sum is compared with one
computed example by example. The table is printed by `python -m cords_dp.studies.models > docs/models.md`; tests
hold it to the truth. A model without a mode is refused when a private run starts, with the reason given here. Register
your own with `cords_dp.register_model`.
"""

if __name__ == "__main__":
    from cords_dp.report.tables import to_markdown

    print(f"{_HEADER}\n{to_markdown(model_table())}")
