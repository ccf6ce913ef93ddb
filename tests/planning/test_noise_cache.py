"""The cache of noise: quick, and never believed."""

from __future__ import annotations

import stat

import pytest

from cords_dp.accounting import composition
from cords_dp.config.settings import PrivacySettings, SubsetSettings
from cords_dp.planning import noise_cache
from cords_dp.planning.build import build_plan
from cords_dp.selection.align import Align
from cords_dp.studies.match import Match

BUDGET = 2.0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CORDS_DP_CACHE", str(tmp_path))
    return tmp_path / "noise"


def plan(mechanism=None, epsilon=BUDGET, accountant="pld"):
    """Made anew each time: the process' own memory is emptied."""
    build_plan.cache_clear()
    composition._bound.cache_clear()
    privacy = PrivacySettings(epsilon=epsilon, accountant=accountant)
    subset = SubsetSettings(fraction=0.2)
    name = "GLISTERDP" if mechanism else "FullDP"
    return build_plan(
        name,
        privacy,
        subset,
        mechanism,
        epochs=3,
        batch_size=100,
        n=2000,
        n_validation=500,
        uses_all=mechanism is None,
    )


def test_the_folder_is_its_owner_s(folder):
    folder.mkdir(mode=0o755)  # as version 0.2.0 left it
    plan()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("mechanism", [None, Match(), Align()], ids=["none", "match", "align"])
def test_a_plan_from_the_cache_is_the_same_plan(folder, mechanism):
    first = plan(mechanism)
    assert any(folder.iterdir())
    assert plan(mechanism) == first
    for file in folder.iterdir():
        file.unlink()
    assert plan(mechanism) == first


def test_what_was_found_before_is_asked_about_once(folder, monkeypatch):
    plan()
    asked = []
    real = composition._ACCOUNTANT_FUNCTIONS["pld"]
    monkeypatch.setitem(
        composition._ACCOUNTANT_FUNCTIONS, "pld", lambda events, delta: asked.append(1) or real(events, delta)
    )
    plan()
    assert len(asked) == 1


@pytest.mark.parametrize("forged", ["0.3", "1e-6", "1e8", "-4", "nan", "inf", "", "12 monkeys", "[2.0]", "0.0"])
@pytest.mark.parametrize("mechanism", [None, Match()], ids=["none", "match"])
def test_a_forged_cache_never_weakens_the_promise(folder, mechanism, forged):
    honest = plan(mechanism)
    for file in folder.iterdir():
        file.write_text(forged)
    found = plan(mechanism)
    cost = found.cost()
    assert 0.995 * BUDGET <= cost.training_data.epsilon <= BUDGET
    assert cost.epsilon <= BUDGET
    assert found.sigma == pytest.approx(honest.sigma, rel=0.02)


def test_a_forged_cache_is_mended(folder):
    plan()
    (file,) = folder.iterdir()
    right = file.read_text()
    file.write_text("0.4")
    plan()
    assert float(file.read_text()) == pytest.approx(float(right), rel=0.01)


def test_another_budget_accountant_or_version_is_another_file(folder, monkeypatch):
    plan()
    plan(epsilon=3.0)
    plan(accountant="rdp")
    assert len(list(folder.iterdir())) == 3
    monkeypatch.setattr(noise_cache, "_versions", lambda: ("another",))
    plan()
    assert len(list(folder.iterdir())) == 4


def test_without_a_folder_nothing_is_kept_and_all_is_well(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CORDS_DP_CACHE", str(tmp_path / "file"))  # no folder can be made there
    assert plan().cost().epsilon <= BUDGET
    monkeypatch.setenv("CORDS_DP_CACHE", "off")
    assert noise_cache.remembered("anything") is None
    noise_cache.remember("anything", 1.0)
