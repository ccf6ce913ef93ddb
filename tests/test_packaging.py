"""What is installed: one version, ready-made configs inside the package, and no extra for the core."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

import pytest
import yaml
from conftest import REPOSITORY

import cords_dp
from cords_dp.config import load_config
from cords_dp.errors import ConfigFileError, MissingExtraError, how_to_install
from cords_dp.extras import need

tomllib = pytest.importorskip("tomllib")  # since Python 3.11
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


def test_the_version_stands_in_one_place():
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]
    lines = (REPOSITORY / "cords_dp" / "__init__.py").read_text().splitlines()
    assert f'__version__ = "{cords_dp.__version__}"' in lines
    assert str(yaml.safe_load((REPOSITORY / "CITATION.cff").read_text())["version"]) == cords_dp.__version__
    releases = re.findall(r"^## (\d+\.\d+\.\d+)", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert releases[0] == cords_dp.__version__


# What belongs to extras only, by the name that is imported.
_EXTRAS = {
    "table": ("pyarrow",), "ray": ("ray",), "submodular": ("apricot",), "lightning": ("lightning",),
    "text": ("tokenizers", "safetensors"), "huggingface": ("datasets",), "tensorboard": ("tensorboard",),
    "wandb": ("wandb",), "completion": ("argcomplete",), "docs": ("mkdocs", "mkdocstrings"),
    "dev": ("mypy", "xdist"),  # torch looks whether pytest and hypothesis are there
}  # fmt: skip
_BLOCKED = f"""
    import sys

    class Blocked:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in {sorted(m for ms in _EXTRAS.values() for m in ms)!r}:
                raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

    sys.meta_path.insert(0, Blocked())
    """


def without_extras(code: str, cwd) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    program = textwrap.dedent(_BLOCKED) + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=cwd, env=env, check=False
    )


def test_every_extra_is_blocked_below():
    assert set(_EXTRAS) == set(PROJECT["optional-dependencies"])


def test_the_core_needs_no_extra_and_what_needs_one_names_it(tmp_path):
    """In a folder elsewhere: import every public name, train a ready-made config, then ask for what is missing."""
    result = without_extras(
        """
        import cords_dp
        from cords_dp import errors
        from cords_dp.cli import main
        import cords_dp.report.page, cords_dp.studies.demo, cords_dp.auditing.audit, cords_dp.extend

        for name in cords_dp.__all__:
            getattr(cords_dp, name)
        fast = ["--set", "train_args.num_epochs=2", "--set", "privacy.accountant=rdp", "--set", "train_args.device=cpu"]
        assert main(["run", "--config", "random_dp_digits", "--out", "run", "--quiet", *fast]) == 0

        open("t.csv", "w").write("a,b\\n1,2\\n")
        print("TABLE", main(["data", "describe", "t.csv", "--target", "b"]), file=sys.stderr)
        print("RAY", main(["sweep", "--config", "random_dp_digits", "--grid", "train_args.run=1", "--ray"]),
              file=sys.stderr)
        import cords_dp.cords
        from cords.selectionstrategies.SL import craigstrategy
        try:
            craigstrategy.apricot.FacilityLocationSelection(3)
        except errors.MissingExtraError as error:
            print(error, file=sys.stderr)
        """,
        tmp_path,
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "run" / "privacy.md").is_file()
    told = result.stderr
    assert "error: a table needs pyarrow: pip install '.[table]' in the clone" in told
    assert "error: running on Ray needs ray: pip install '.[ray]' in the clone" in told
    assert "needs apricot: pip install '.[submodular]' in the clone" in told
    assert "TABLE 2" in told
    assert "RAY 2" in told


def test_ready_made_configs_are_found_by_name_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("glister_dp_digits", "glister_dp_digits.py", "configs/glister_dp_digits.py"):
        assert load_config(name).dss_args.type == "GLISTERDP"
    assert load_config("paper/glister_dp_mnist").dss_args.mechanism == "exponential"
    own = tmp_path / "glister_dp_digits.py"  # a file of the user's comes first
    own.write_text("config = dict(setting='SL', dss_args=dict(type='Mine'))")
    assert load_config("glister_dp_digits.py").dss_args.type == "Mine"


@pytest.mark.parametrize("name", ["nothing", "../config/keys.py", "configs/../config/keys.py", "configs"])
def test_other_names_are_no_configs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigFileError, match="no config file"):
        load_config(name)


def test_the_links_to_the_configs_and_the_package_agree():
    inside = REPOSITORY / "cords_dp" / "configs"
    assert (REPOSITORY / "configs").resolve() == inside
    assert len(list(inside.rglob("*.py"))) > 30


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    need("json", extra="table", what="a test")
    with pytest.raises(MissingExtraError, match=r"a test needs no_such_package: pip install '\.\[table\]'"):
        need("no_such_package", extra="table", what="a test")


# --- how it is installed until an index has it ------------------------------------------------------------------------

_FROM_AN_INDEX = re.compile(r"pip3? install(?:\s|\\n|[\"',])+(?:-\S+\s+)*['\"`]?cords[-_]dp", re.IGNORECASE)
_READ_BY_PEOPLE = (
    "*.md", "*.cff", "*.toml", "Makefile", "docs/*.md", "notebooks/*.ipynb", ".github/**/*.md", "cords_dp/**/*.py",
    "cords_dp/**/*.html", "tests/**/*.py", "benchmarks/*.py",
)  # fmt: skip


def test_nobody_is_told_to_install_a_name_that_no_index_has():
    """Whoever takes the name first would run code on the machines of people who came for privacy."""
    for bad in ("pip install cords-dp", "pip install 'cords_dp[table]'", "pip install\n'cords-dp[text]'"):
        assert _FROM_AN_INDEX.search(bad), bad
    told = [
        path.relative_to(REPOSITORY)
        for pattern in _READ_BY_PEOPLE
        for path in REPOSITORY.glob(pattern)
        if path.name != "test_packaging.py" and _FROM_AN_INDEX.search(path.read_text())
    ]
    assert told == []
    assert not _FROM_AN_INDEX.search(how_to_install("table"))


@pytest.mark.slow
def test_the_wheel_in_a_fresh_environment_trains_the_digits(tmp_path):
    """Its own files come from the wheel; what it depends on, which takes gigabytes, is lent by this environment."""
    source = tmp_path / "clone"
    source.mkdir()
    shutil.copytree(REPOSITORY / "cords_dp", source / "cords_dp", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "Makefile"):
        shutil.copy(REPOSITORY / name, source)

    def run(*command: str, cwd=tmp_path) -> str:
        env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("make", "wheel", f"PYTHON={shlex.quote(sys.executable)}", cwd=source)
    (wheel,) = (source / "dist").glob("*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", "fresh")
    python = str(tmp_path / "fresh/bin/python")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", str(wheel))
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    work = tmp_path / "work"
    work.mkdir()
    assert run(python, "-c", "import cords_dp; print(cords_dp.__file__)", cwd=work).startswith(str(tmp_path / "fresh"))
    fast = ["--set", "train_args.num_epochs=2", "--set", "privacy.accountant=rdp", "--set", "train_args.device=cpu"]
    command = str(tmp_path / "fresh/bin/cords-dp")
    told = run(command, "run", "--config", "glister_dp_digits", "--out", "run", "--quiet", *fast, cwd=work)
    assert "the guarantee" in told
    assert "differentially private" in (work / "run/privacy.md").read_text()
