"""What is imported late: planning needs neither torch nor CORDS, and a name that comes late is the same name."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import cords_dp.datasets
import cords_dp.models
import cords_dp.training
from cords_dp.late import LateName, late_module, late_names

SLOW = ("torch", "torchvision", "opacus", "cords", "pandas", "sklearn", "matplotlib", "numba")


def imported_by(*arguments: str) -> set[str]:
    """The slow packages that a command has imported by its end, in a process of its own."""
    code = (
        "import contextlib, io, json, sys\n"
        "from cords_dp.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        f"    assert main({list(arguments)!r}) == 0\n"
        f"print(json.dumps([name for name in {SLOW!r} if name in sys.modules]))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return set(json.loads(ended.stdout))


@pytest.mark.parametrize("name", ["full_dp_digits", "random_dp_mnist", "glister_dp_cifar10"])
def test_the_budget_of_a_config_needs_no_torch(name):
    assert imported_by("budget", "--config", f"configs/{name}.py") == set()


def test_the_budget_of_numbers_needs_no_torch():
    assert imported_by("budget", "--n", "50000", "--epsilon", "3", "--json") == set()


def test_an_account_needs_no_torch(tmp_path):
    assert imported_by("account", str(tmp_path / "a.json"), "--create", "--epsilon", "3", "--delta", "1e-6") == set()


@pytest.mark.parametrize("package", [cords_dp.datasets, cords_dp.models, cords_dp.training])
def test_every_public_name_can_be_had(package):
    for name in package.__all__:
        assert getattr(package, name) is not None


def test_a_late_module_is_the_module():
    assert late_module("json").dumps is json.dumps
    with pytest.raises(AttributeError):
        _ = late_module("json").no_such_name


def test_a_late_name_is_looked_up_when_it_is_used():
    name = LateName("fractions", "Fraction")
    assert name(1, 2) == name.from_float(0.5)
    assert isinstance(name(1, 2), name)
    assert not isinstance(0.5, name)


def test_nothing_is_an_instance_of_what_nobody_has_imported():
    code = (
        "import sys; from cords_dp.late import LateName\n"
        "assert not isinstance(1, LateName('fractions', 'Fraction')) and 'fractions' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sharded_tensors_are_found_by_who_asks_for_them():
    code = (
        "import sys, torch, cords_dp.opacus_parts\n"
        "from opacus.optimizers import optimizer\n"
        "late = torch.distributed.tensor.DTensor\n"
        "assert not isinstance(torch.zeros(1), late) and 'torch.distributed.tensor' not in sys.modules\n"
        "from torch.distributed.tensor import DTensor\n"
        "assert torch.distributed.tensor.DTensor is DTensor\n"
        "assert optimizer.DTensor._real() is DTensor\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_that_a_package_lacks_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        late_names("json", {"decoder": ("JSONDecoder",)})("no_such_name")
