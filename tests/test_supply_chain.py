"""Lock files, workflows and the check for vulnerabilities: what is installed, and what would run elsewhere."""

from __future__ import annotations

import importlib.util
import json
import os
import re

import pytest
import yaml
from conftest import REPOSITORY
from packaging.requirements import Requirement

SPEC = importlib.util.spec_from_file_location("supply", REPOSITORY / "tools" / "supply.py")
supply = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(supply)
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))


def locked(name: str) -> list[tuple[Requirement, list[str]]]:
    """Every package of a lock with its hashes."""
    lines = (REPOSITORY / ".ci" / name).read_text().replace("\\\n", " ").splitlines()
    parts = [line.split("--hash=") for line in lines if line]
    return [(Requirement(first.strip()), [digest.strip() for digest in digests]) for first, *digests in parts]


# --- locks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", supply.LOCKS)
def test_every_locked_package_has_one_version_and_its_hashes(name):
    packages = locked(name)
    assert packages
    for requirement, digests in packages:
        assert [clause.operator for clause in requirement.specifier] == ["=="], requirement
        assert requirement.url is None
        assert digests, requirement
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", digest) for digest in digests), requirement


@pytest.mark.parametrize("name", supply.LOCKS)
def test_a_lock_says_nothing_about_where_packages_come_from(name):
    assert not re.search(r"://|^-", (REPOSITORY / ".ci" / name).read_text(), re.MULTILINE)


@pytest.mark.parametrize("python", supply.PYTHONS)
def test_the_lock_has_what_the_project_asks_for(python):
    """Directly: what those need in turn is checked by `make lock-check`, which asks the registry."""
    project = pytest.importorskip("tomllib").loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(line for extra in supply.EXTRAS for line in extras[extra])]
    inner = [name for line in wanted if line.startswith("cords-dp[") for name in Requirement(line).extras]
    wanted = [line for line in wanted if not line.startswith("cords-dp[")]
    wanted += [line for extra in inner for line in extras[extra]]
    here = {"python_full_version": f"{python}.5", "python_version": python, "sys_platform": "linux",
            "platform_machine": "x86_64", "platform_python_implementation": "CPython"}  # fmt: skip
    versions = {
        requirement.name.lower(): str(requirement.specifier).removeprefix("==")
        for requirement, _ in locked("requirements.lock")
        if requirement.marker is None or requirement.marker.evaluate(here)
    }
    for line in wanted:
        requirement = Requirement(line)
        name = requirement.name.lower().replace("_", "-")
        assert name in versions, line
        assert requirement.specifier.contains(versions[name], prereleases=True), (line, versions[name])


# --- vulnerabilities ------------------------------------------------------------------------------


def answer(*packages: dict) -> str:
    return json.dumps({"dependencies": list(packages), "fixes": []})


FINE = {"name": "numpy", "version": "2.4.6", "vulns": []}
BAD = {"name": "pillow", "version": "1.0", "vulns": [{"id": "CVE-2099-1"}]}
UNKNOWN = {"name": "torch", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("said", "optional", "required", "words"),
    [
        (answer(FINE), 0, 0, "No known vulnerability in 1 packages"),
        (answer(FINE, BAD), 1, 1, "pillow 1.0: CVE-2099-1"),
        (answer(UNKNOWN, BAD), 1, 1, "pillow 1.0: CVE-2099-1"),
        (answer(FINE, UNKNOWN), 0, 1, "NOT AUDITED: no service that lists vulnerabilities answered about 1 of 2"),
        ("", 0, 1, "NOT AUDITED"),
        ("a traceback", 0, 1, "NOT AUDITED"),
    ],
)
def test_silence_is_no_clean_bill(said, optional, required, words):
    for must, code in ((False, optional), (True, required)):
        found = supply.judge(said, required=must)
        assert found[0] == code
        assert words in found[1]


# --- workflows ------------------------------------------------------------------------------------


def read(path) -> dict:
    return yaml.safe_load(path.read_text())


def triggers(path) -> dict:
    """What starts a workflow: its key ``on``, which is a truth value for YAML unless everything is read as text."""
    return yaml.load(path.read_text(), Loader=yaml.BaseLoader)["on"]


def steps(path) -> list[dict]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


def test_ci_runs_the_same_script_as_here_on_every_python_that_is_promised():
    (path,) = [path for path in WORKFLOWS if path.name == "ci.yml"]
    job = read(path)["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == list(supply.PYTHONS)
    assert f'requires-python = ">={supply.PYTHONS[0]}"' in (REPOSITORY / "pyproject.toml").read_text()
    (step,) = [step for step in job["steps"] if "run" in step]
    assert step == {"run": ".ci/run", "env": {"LOCKED": "1"}}
    assert os.access(REPOSITORY / ".ci" / "run", os.X_OK)


def test_docs_are_built_and_published():
    (path,) = [path for path in WORKFLOWS if path.name == "docs.yml"]
    assert "make docs LOCKED=1" in [step.get("run") for step in steps(path)]
    (upload,) = [step for step in steps(path) if step.get("uses", "").startswith("actions/upload-pages-artifact@")]
    assert upload["with"]["path"] == read_site_dir()
    assert any(step.get("uses", "").startswith("actions/deploy-pages@") for step in steps(path))


def read_site_dir() -> str:
    return re.search(r"^site_dir: (\S+)$", (REPOSITORY / "mkdocs.yml").read_text(), re.MULTILINE)[1]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_parses_and_may_do_little(path):
    content = read(path)
    assert "push" in triggers(path)
    assert content["permissions"] == {"contents": "read"}
    for job in content["jobs"].values():
        assert job["runs-on"]
        assert set(job.get("permissions", {})) <= {"pages", "id-token"}
    for step in steps(path):
        assert ("uses" in step) != ("run" in step)
        if "uses" in step:  # a tag can be moved, a commit cannot
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), step


@pytest.mark.parametrize("path", [*WORKFLOWS, REPOSITORY / ".ci" / "run"], ids=lambda path: path.name)
def test_what_is_called_exists(path):
    commands = [step["run"] for step in steps(path) if "run" in step] if path.suffix else [path.read_text()]
    called = [target for command in commands for target in re.findall(r"\bmake ([a-z-]+)", command)]
    assert called or ".ci/run" in commands
    assert set(called) <= TARGETS
    for command in commands:
        assert not path.suffix or re.match(r"make |\.ci/run$", command), "a step that cannot be run by hand"
