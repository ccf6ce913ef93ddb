"""Extensions are found by every reader of a config, each once; what is broken is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import REPOSITORY

from cords_dp import extensions
from cords_dp.errors import MechanismError
from cords_dp.planning import registered_mechanisms
from cords_dp.training.strategies import get_strategy, register_strategy, unregister_strategy

MODULE = """
from dataclasses import dataclass
from typing import ClassVar

from cords_dp import register_mechanism, register_strategy
from cords_dp.studies.labels import ClassWeights

@register_mechanism
@dataclass(frozen=True, kw_only=True)
class Other(ClassWeights):
    name: ClassVar[str] = "other"

register_strategy("OtherDP", mechanism="other")
"""
SOURCE = """
from cords_dp.extend import SPLIT_KEYS, Facts, Source

class Dots(Source):
    name, keys = "dots", SPLIT_KEYS
    def check(self, section, *, private): pass
    def facts(self, section): return Facts(shape=(2,), classes=("a", "b"), norm=1.0)
    def build(self, section, rng): raise NotImplementedError
    def card(self, section): return {}
    def read(self, card, path): raise NotImplementedError
"""


def installed(folder: Path, entries: str, **modules: str) -> dict[str, str]:
    """A package on the path, as pip would lay it out; returns the environment that has it."""
    about = folder / "mine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(textwrap.dedent(entries))
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(folder)])}


def cords_dp(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "cords_dp", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=REPOSITORY, check=False)


def test_an_installed_package_is_found_by_the_commands(tmp_path):
    entries = """
        [cords_dp.extensions]
        mine = mine_mechanism
        [cords_dp.sources]
        dots = mine_source:Dots
        """
    env = installed(tmp_path, entries, mine_mechanism=MODULE, mine_source=SOURCE)
    told = cords_dp("budget", "--config", "glister_dp_digits", "--set", "dss_args.type=OtherDP", env=env)
    assert told.returncode == 0, told.stderr
    assert re.search(r"\bjoint, other\b", told.stdout)
    code = "from cords_dp.data.sources.base import find_source; print(find_source('dots').name)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert told.stdout.split() == ["dots"], told.stderr


def test_a_package_that_cannot_be_imported_is_named(tmp_path):
    env = installed(tmp_path, "[cords_dp.extensions]\nbroken = nowhere.at_all\n")
    told = cords_dp("budget", "--config", "glister_dp_digits", env=env)
    assert told.returncode != 0
    assert "the extension 'broken' (nowhere.at_all) cannot be loaded" in told.stderr


def test_a_failure_is_told_again(monkeypatch):
    entry = extensions.EntryPoint("broken", "nowhere.at_all", extensions.MODULES)
    monkeypatch.setattr(extensions, "_OURS", (entry,))
    monkeypatch.setattr(extensions, "_state", "new")
    for _ in range(2):
        with pytest.raises(MechanismError, match="broken"):
            extensions.load_extensions()


def test_no_package_takes_the_name_of_a_source_of_ours(monkeypatch):
    foreign = extensions.EntryPoint("table", "elsewhere:Table", extensions.SOURCES)
    monkeypatch.setattr(extensions, "entry_points", lambda group: [foreign])
    assert extensions.offered_sources()["table"].value.startswith("cords_dp.")


def test_our_mechanisms_come_first_whoever_asks_first():
    """Registering one's own before anything else is imported makes it the default of no config."""
    program = """
        from cords_dp import Mechanism, register_mechanism
        from dataclasses import dataclass
        from typing import ClassVar

        @register_mechanism
        @dataclass(frozen=True, kw_only=True)
        class First(Mechanism):
            name: ClassVar[str] = "first"
            summary: ClassVar[str] = ""
            use_case: ClassVar[str] = ""
            reads_validation = False
            def releases(self, noise, privacy, sizes): return ()
            def build(self, context): return None

        from cords_dp import config_for
        from cords_dp.training.resolve import resolve
        config = config_for("digits", "GLISTERDP", dss_args={"fraction": 0.3}, privacy={"epsilon": 3})
        print(resolve(config, plan=False).mechanism.name)
        """
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    told = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, env=env, check=True
    )
    assert told.stdout.split() == ["align"]


def test_the_order_of_the_mechanisms_is_that_of_the_table():
    names = [kind.name for kind in registered_mechanisms()]
    assert names[:4] == ["align", "threshold", "top_k", "exponential"]
    assert {"match", "class_weights", "balanced_softmax", "group_rates"} < set(names)


def test_a_strategy_needs_a_function_or_a_mechanism():
    with pytest.raises(MechanismError, match="needs a function"):
        register_strategy("NothingDP")
    try:
        made = register_strategy("BalancedDP", mechanism="class_weights")
        assert (made.private, made.selects, made.mechanism) == (True, True, "class_weights")
        assert get_strategy("balanced-dp") is made
    finally:
        unregister_strategy("BalancedDP")


def test_rooms_below_do_not_name_the_studies():
    """The table of `extensions` and the commands do; all others would depend on what is above them."""
    for path in (REPOSITORY / "cords_dp").rglob("*.py"):
        room = path.relative_to(REPOSITORY / "cords_dp").parts[0]
        if room not in ("studies", "cli", "extensions.py"):
            assert "cords_dp.studies" not in path.read_text(), path
