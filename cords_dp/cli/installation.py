"""Says what to do where Python lacks our packages, for instance in a clone whose ``.venv`` is not active."""

from __future__ import annotations

import sys
from pathlib import Path

import cords_dp

# What pyproject.toml requires, by the names that are imported. Anything else that is missing is a bug.
REQUIRED = frozenset(
    {
        "absl", "dotmap", "dp_accounting", "filelock", "kymatio", "matplotlib", "numba", "numpy", "opacus", "pandas",
        "PIL", "prv_accountant", "randomgen", "scipy", "sklearn", "torch", "torchvision", "tqdm", "yaml",
    }
)  # fmt: skip


def is_required(package: str) -> bool:
    return package in REQUIRED


def missing_package(package: str) -> str:
    """Return one line about a package that this Python does not have."""
    clone = Path(cords_dp.__file__).parents[1]
    if (clone / ".venv").is_dir() and not Path(sys.prefix).samefile(clone / ".venv"):
        fix = "this clone has its own in .venv: run `source .venv/bin/activate` first, or use .venv/bin/python"
    elif (clone / "Makefile").is_file():
        fix = "run `make install`, then `source .venv/bin/activate`"
    else:
        fix = "run `pip install` with it on the wheel that cords_dp came in, which adds what it needs"
    return f"{sys.executable} has no {package}; {fix}"
