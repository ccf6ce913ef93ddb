"""The importer of CORDS leaves no trace; without CORDS it says how to install it."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap

import pytest
from conftest import REPOSITORY

import cords_dp
from cords_dp import cords as toolkit


def run_python(code: str, *path: str) -> subprocess.CompletedProcess:
    import os

    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *path])}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=env, check=False
    )


def test_stubs_go_away_and_scikit_learn_stays_as_it_was():
    import sklearn.datasets

    with toolkit.stubs_for_dead_imports() as stubbed:
        assert all(isinstance(sys.modules[name], toolkit._Stub) for name in stubbed)
    assert not [name for name, module in sys.modules.items() if isinstance(module, toolkit._Stub)]
    assert "load_boston" not in vars(sklearn.datasets)


def test_only_missing_modules_are_stubbed(monkeypatch):
    present = type(sys)("wandb")
    monkeypatch.setitem(sys.modules, "wandb", present)
    with toolkit.stubs_for_dead_imports() as stubbed:
        assert "wandb" not in stubbed
        assert sys.modules["wandb"] is present


def test_floating_point_errors_stay_as_they_were():
    """CORDS turns every numpy underflow into an exception, for the whole process."""
    import numpy as np

    assert np.geterr()["under"] == "ignore"


def test_a_stub_fails_only_when_called():
    stub = toolkit._Stub("torchtext")
    function = stub.anything
    with pytest.raises(ImportError, match=r"torchtext\.anything"):
        function()


def test_a_class_derived_from_a_stub_fails_only_when_an_object_is_made(monkeypatch):
    monkeypatch.setattr(toolkit, "_OPTIONAL_MODULES", ("nobody_has_this",))
    with toolkit.stubs_for_dead_imports():
        import nobody_has_this

        class Absent(nobody_has_this.Base):
            pass

    with pytest.raises(ImportError, match=r"nobody_has_this\.Base"):
        Absent()


def test_without_cords_the_command_to_install_it_is_named():
    result = run_python(
        """
        import sys
        sys.modules["cords"] = None   # what an absent package looks like to the importer
        import cords_dp
        assert cords_dp.__version__   # importing the package itself works
        cords_dp.TrainClassifier
        """
    )
    assert result.returncode != 0
    assert "pip install --no-deps cords==0.0.4" in result.stderr


@pytest.mark.slow  # ten seconds
def test_a_git_checkout_on_the_path_is_used(tmp_path):
    """A checkout has train_sl.py beside the package; here a copy of the installed CORDS is laid out like one."""
    import shutil

    shutil.copytree(toolkit.cords_root / "cords", tmp_path / "cords")
    (tmp_path / "train_sl.py").write_text(
        "import wandb, logging\n"
        "class TrainClassifier:\n"
        "    def __init__(self, cfg): self.cfg, self.logger = cfg, logging.getLogger('checkout')\n"
        "    from_checkout = True\n"
    )
    code = "from cords_dp import cords, TrainClassifier; print(cords.IS_CHECKOUT, TrainClassifier.from_checkout)"
    result = run_python(code, str(tmp_path))
    assert result.stdout.split() == ["True", "True"], result.stderr


@pytest.mark.parametrize(
    "first",
    [
        "import sklearn.datasets\nfrom cords_dp import RandomDPDataLoader",
        *(
            pytest.param(first, marks=pytest.mark.slow)  # seconds each, and the one above goes through the same door
            for first in (
                "from cords_dp import TrainClassifier",
                "from cords_dp import GLISTERDPDataLoader",
                "from cords_dp import tune",
                "import cords_dp.cords",
            )
        ),
    ],
)
def test_cords_modules_can_be_imported_afterwards_as_the_docs_say(first):
    """``import cords.utils.models`` alone fails: scikit-learn has withdrawn what it imports."""
    result = run_python(
        f"{first}\n"
        "import cords.utils.models\n"
        "from cords.utils.models import ResNet18\n"
        "from cords.utils.config_utils import load_config_data\n"
        "from cords.selectionstrategies.SL import GLISTERStrategy, CRAIGStrategy\n"
        "from cords.utils.data.datasets.SL import gen_dataset\n"
        "from cords.utils.data.dataloader.SL.adaptive import GLISTERDataLoader, RandomDataLoader\n"
        "from cords.utils.data.dataloader.SL.nonadaptive import FacLocDataLoader\n"
        "assert sum(p.numel() for p in ResNet18(10).parameters()) > 1e6\n"
    )
    assert result.returncode == 0, result.stderr


def test_one_module_alone_imports_cords():
    for path in (REPOSITORY / "cords_dp").rglob("*.py"):
        if path.name != "cords.py":
            assert not {name for name in imports_of(path) if name.split(".")[0] in ("cords", "examples")}, path


def imports_of(path) -> set[str]:
    names = set()
    tree = ast.parse(path.read_text())
    # what only a type checker reads couples no code
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


# which rooms a room may use; those of `OPEN` are open to all
OPEN = {"errors", "extras", "files", "progress"}
ARROWS = {
    "errors": set(),
    "extensions": set(),  # names modules of all rooms, which it loads when they are asked for
    "files": set(),
    "extras": set(),
    "progress": set(),
    "verify": set(),
    "cords": set(),
    "processes": set(),
    "accounting": set(),
    "config": {"accounting", "cords"},
    "planning": {"accounting", "config", "extensions"},
    "noise": set(),
    "evaluation": set(),
    "data": {"cords", "config", "extensions", "planning", "processes"},
    "models": {"cords", "data", "config", "processes"},
    "selection": {"accounting", "config", "data", "models", "noise", "planning", "processes"},
    "training": {
        "accounting", "config", "cords", "data", "evaluation", "extensions", "models", "noise", "planning", "processes",
        "selection",
    },
    "auditing": {"accounting", "config", "data", "noise", "planning", "selection", "training"},
    "report": {"accounting", "config", "planning"},
    "runs": {
        "accounting", "config", "data", "evaluation", "models", "noise", "planning", "processes", "report",
        "selection", "training",
    },
    "tuning": {
        "accounting", "config", "data", "evaluation", "models", "noise", "planning", "processes", "report", "runs",
        "selection", "training",
    },
    "extend": {
        "accounting", "config", "data", "models", "noise", "planning", "selection", "training",
    },
    "estimators": {
        "accounting", "config", "data", "evaluation", "models", "noise", "planning", "processes", "report", "runs",
        "selection", "training", "tuning",
    },
    # by public names alone (test_docs_site)
    "studies": {"accounting", "config", "data", "extend", "planning", "report", "runs", "selection"},
}  # fmt: skip
ABOVE_ALL = {"cli", "__main__", "__init__"}


def rooms():
    return {p.stem for p in (REPOSITORY / "cords_dp").iterdir() if p.suffix == ".py" or (p / "__init__.py").is_file()}


def test_every_room_has_its_arrows():
    assert rooms() == {*ARROWS, *ABOVE_ALL}


@pytest.mark.parametrize("room", ARROWS)
def test_arrows_between_rooms(room):
    place = REPOSITORY / "cords_dp" / room
    for path in place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")]:
        used = {name.split(".")[1] for name in imports_of(path) if name.startswith("cords_dp.")} - set(cords_dp.__all__)
        assert used - {room, *OPEN} <= ARROWS[room], path


def test_no_two_rooms_use_each_other():
    """A newcomer can read the rooms in one order: each uses only those before it."""
    remaining = {room: set(used) for room, used in ARROWS.items()}
    while remaining:
        ready = {room for room, used in remaining.items() if not used & set(remaining)}
        assert ready, f"a cycle among {sorted(remaining)}"
        remaining = {room: used for room, used in remaining.items() if room not in ready}


def test_tests_mirror_the_rooms():
    """Beside the rooms there are tests of the whole: in several processes, replayed, handled roughly, and of bugs."""
    of_the_whole = {"distributed", "faults", "mutants", "replay"}
    folders = {path.name for path in (REPOSITORY / "tests").iterdir() if list(path.glob("*.py"))}
    assert folders == of_the_whole | {room for room in rooms() if (REPOSITORY / "cords_dp" / room).is_dir()}


def test_nothing_is_replaced_at_run_time():
    """No file sets an attribute of something that it imports, be it torch's, Opacus' or the package's own.

    The importer of CORDS does, while CORDS is imported: CORDS needs what is no longer there.
    """
    for path in (REPOSITORY / "cords_dp").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        imports = [alias for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom)) for alias in node.names]
        imported = {alias.asname or alias.name.split(".")[0] for alias in imports} - {"sys"}  # streams may be set
        set_by_name = [n.args[0] for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == "setattr"]
        targets = [target for n in nodes if isinstance(n, ast.Assign) for target in n.targets]
        written = [target.value for target in targets if isinstance(target, ast.Attribute)]
        replaced = {ast.unparse(owner).split(".")[0] for owner in (*written, *set_by_name)} & imported
        assert not replaced or path.name == "cords.py", (path, replaced)


def test_what_cords_needs_seldom_is_imported_when_it_is_called_and_leaves_the_number_of_threads_alone():
    """numba, which CORDS and apricot import, sets OpenMP to as many threads as there are cores."""
    code = (
        "import sys, torch; torch.set_num_threads(1); import cords_dp.training.trainer\n"
        "assert not {'apricot', 'ray'} & set(sys.modules) and torch.get_num_threads() == 1\n"
        "from cords.selectionstrategies.SL import craigstrategy\n"
        "chosen = craigstrategy.apricot.functions.facilityLocation.FacilityLocationSelection(3, metric='precomputed')\n"
        "assert type(chosen).__module__.startswith('apricot') and torch.get_num_threads() == 1\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_planning_imports_neither_cords_nor_opacus():
    """`budget` answers in seconds because of it."""
    code = (
        "import sys; from cords_dp.cli import main\n"
        "main(['budget', '--config', 'configs/full_dp_digits.py', '--json'])\n"
        "assert not {'cords', 'opacus', 'torchvision', 'sklearn', 'ray'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY, capture_output=True)
