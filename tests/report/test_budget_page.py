"""The page with sliders: its grid, its interpolation, and the page itself in a real browser where there is one."""

from __future__ import annotations

import html
import json
import math
import re
import subprocess

import numpy as np
import pytest
from conftest import BROWSER, needs_browser
from hypothesis import given, settings
from hypothesis import strategies as st

from cords_dp.config.settings import PrivacySettings, SubsetSettings
from cords_dp.planning.budget import Question, budget_of
from cords_dp.report import budget_page
from cords_dp.report.budget_page import (
    SPLITS,
    Grid,
    grid_error,
    interpolated,
    noise_grid,
    page_numbers,
    rate_rows,
    write_budget_page,
)
from cords_dp.report.plots import budget_figure
from cords_dp.selection.align import Align

AXES = tuple(
    tuple(map(math.log, axis)) for axis in ((0.5, 1, 2, 4, 8), (0.004, 0.02, 0.1, 0.4, 1), (10, 40, 200, 1000))
)


@pytest.fixture(scope="module")
def budget():
    question = Question(PrivacySettings(epsilon=3.0), SubsetSettings(fraction=0.1), Align(), epochs=5)
    return budget_of(question, 20_000, 2000)


@pytest.fixture
def grid():
    """A made-up surface, smooth as the real one is: what is tested with it does not depend on the accountant."""
    e, q, t = np.meshgrid(*AXES, indexing="ij")
    base = 0.9 * q + 0.45 * t - 0.8 * e + 0.02 * e * q
    return Grid(2e-6, AXES, np.stack([base + 0.01 * (1 - split) for split in SPLITS]))


@settings(max_examples=50)
@given(
    coefficients=st.lists(st.floats(-2, 2), min_size=12, max_size=12),
    place=st.tuples(*(st.floats(axis[0], axis[-1]) for axis in AXES)),
)
def test_interpolation_is_exact_for_cubics(coefficients, place):
    def surface(*point):
        return sum(coefficients[4 * i + power] * x**power for i, x in enumerate(point) for power in range(4))

    values = surface(*np.meshgrid(*AXES, indexing="ij"))
    assert interpolated(AXES, values, place) == pytest.approx(surface(*place), rel=1e-7, abs=1e-6)


def test_outside_of_the_grid_its_face_counts(grid):
    assert grid.sigma(1.0, 100.0, 0.1, 40) == pytest.approx(grid.sigma(1.0, 8.0, 0.1, 40))
    assert grid.sigma(1.0, 1.0, 0.1, 1) == pytest.approx(grid.sigma(1.0, 1.0, 0.1, 10))


@pytest.mark.slow
def test_the_grid_is_the_accountant_s_to_two_percent():
    grid = noise_grid(1e-5)
    assert grid_error(grid, 40, seed=1) < 0.02
    assert (np.diff(grid.values[0], axis=0) < 0).all()  # more ε, less noise
    assert (np.diff(grid.values[0], axis=1) > 0).all()  # a higher rate, more noise
    assert (grid.values[2] > grid.values[0]).all()  # selection costs


def test_a_wrong_grid_is_noticed(grid):
    """The error that the page states is measured, not believed."""
    assert grid_error(grid, 3) > 0.05


def test_rates_are_those_of_plans(budget):
    rows = {row["label"]: row for row in rate_rows()}
    assert set(rows) >= {"FullDP, equal compute", "align", "match", "RandomDP"}
    assert "exponential" not in rows  # its releases are not Gaussian
    share = budget_page._SHARES.index(0.1)
    batch, n = budget.plan.shape.batch_size, budget.plan.shape.n
    planned = {row.label.removeprefix("joint, "): row.rate for row in budget.alternatives}
    for name in ("align", "match", "threshold", "class_weights"):
        assert rows[name]["multiples"][share] * batch / n == pytest.approx(planned[name], rel=1e-3), name


def test_the_page_is_whole_and_needs_no_network(budget, grid, tmp_path, monkeypatch):
    monkeypatch.setattr(budget_page, "grid_error", lambda *_: 0.0123)
    page = write_budget_page(budget, tmp_path / "b.html", grid).read_text()
    assert "__NUMBERS__" not in page
    assert not re.search(r"https?://|src=|@import|fetch\(", page)
    assert "off by at most 1.23 %" in page


def test_the_picture(budget, tmp_path):
    assert budget_figure(budget, tmp_path / "b.png").stat().st_size > 10_000


_PROBE = """<pre id="answers"></pre><script>
const answers = [];
for (const [epsilon, share, n] of __POINTS__) {
  for (const [id, value] of [["epsilon", epsilon], ["share", share], ["n", n]]) {
    document.getElementById(id).value = Math.log(value);
    document.getElementById(id).dispatchEvent(new Event("input"));
  }
  const rows = {};
  for (const row of document.querySelectorAll("#rows tr"))
    rows[row.dataset.label] = [row.querySelector(".sigma").textContent, row.querySelector(".price").textContent];
  answers.push(rows);
}
const wide = document.documentElement.scrollWidth > window.innerWidth;
document.getElementById("answers").textContent = JSON.stringify({answers, wide, errors, width: window.innerWidth});
</script>"""


@needs_browser
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_in_a_browser(budget, grid, tmp_path, monkeypatch, width):
    """Sliders are moved: what is shown is what Python interpolates; no script error, nothing wider than the window."""
    monkeypatch.setattr(budget_page, "grid_error", lambda *_: 0.01)
    path = write_budget_page(budget, tmp_path / "b.html", grid)
    points = [(0.7, 0.1, 20_000), (3.0, 0.3, 50_000), (6.5, 0.05, 200_000)]
    page = path.read_text().replace(
        "<script id=", "<script>const errors = []; window.onerror = m => errors.push(String(m));</script><script id=", 1
    )
    path.write_text(page.replace("</body>", _PROBE.replace("__POINTS__", json.dumps(points)) + "</body>"))
    told = seen(path, width, tmp_path)
    assert told["errors"] == []
    assert not told["wide"]
    rows = {row["label"]: row for row in page_numbers(budget, grid)["rows"]}
    shape = budget.plan.shape
    for (epsilon, share, n), shown in zip(points, told["answers"], strict=True):
        assert set(shown) == set(rows)
        batch = min(shape.batch_size, math.floor(share * n))
        steps = len(shape.epochs) * math.ceil(math.floor(share * n) / batch)
        for label, multiple in (("FullDP, equal compute", 1.0), ("RandomDP", 1 / share)):
            expected = grid.sigma(rows[label]["split"], epsilon, min(1.0, multiple * batch / n), steps)
            assert float(shown[label][0]) == pytest.approx(expected, abs=2e-3, rel=2e-3)
        assert shown["FullDP, equal compute"][1] == "0.0 %"


def seen(path, width, tmp_path):
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--dump-dom"]
    command = [BROWSER, *options, f"--window-size={width},900", path.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    return json.loads(html.unescape(re.search(r'<pre id="answers">(.*?)</pre>', dom, re.S).group(1)))
