"""The statement as a page: the facts of privacy.json, on one sheet of A4."""

from __future__ import annotations

import html
import re
import subprocess

import pytest
from conftest import BROWSER, needs_browser

from cords_dp.accounting import Ledger
from cords_dp.planning.statement import privacy_markdown, privacy_report
from cords_dp.planning.statement_page import about_rows, statement_page
from cords_dp.training.resolve import resolve

ABOUT = {
    "date": "2026-11-18",
    "versions": {"python": "3.11.7", "torch": "2.15.0", "opacus": "1.6.0"},
    "data": {
        "name": "table", "salt": "00ff",
        "files": [{"key": "dataset.path", "file": "<mine>.csv", "digest": "ab" * 32},
                  {"key": "dataset.test_path", "file": "test.csv", "digest": None, "no_digest": "no key"}],
        "records": {"D": 1294, "V": 143, "test": 360},
    },
    "model": {"file": "model.pt", "sha256": "cd" * 32},
    "account": {"file": "hospital.account", "id": "1", "run": "2", "epsilon": 10.0, "delta": 1e-5, "runs": 3,
                "share_held": 0.41, "share_left": 0.59},
}  # fmt: skip


@pytest.fixture
def report(make_config):
    plan = resolve(make_config("GLISTERDP", dss_args={"fraction": 0.3})).plan(1294, 143)
    return privacy_report(plan, Ledger(plan.entries()), about=ABOUT)


def test_page_and_markdown_say_what_the_report_says(report):
    page, text = html.unescape(re.sub("<[^>]*>", " ", statement_page(report))), privacy_markdown(report)
    rows = about_rows(ABOUT)
    assert dict(rows)["records"] == "1,294 in D, 143 in V, 360 in the test set"
    assert "59.0% is left" in dict(rows)["account"]
    assert dict(rows)["dataset.test_path"] == "test.csv (no digest: no key)"
    for fact in (report["statement"], report["other_relations"], *report["protects"], *report["does_not_protect"],
                 *report["not_covered"], report["meaning"], *(value for _, value in rows)):  # fmt: skip
        assert fact in page
        assert fact in text
    for row in report["mechanisms"]:
        assert row["parameters"] in page


def test_the_page_escapes_and_needs_no_network(report):
    page = statement_page(report)
    assert "<mine>" not in page
    assert not re.search(r"(?:src|href|url)\W*https?:", page)
    assert "<script" not in page


def test_the_report_names_mechanisms_that_were_used_and_no_others(make_config):
    plan = resolve(make_config("FullDP")).plan(1294, 143)
    used = privacy_report(plan, Ledger(plan.entries()))["nist_sp_800_226"]["mechanisms and sensitivity"]
    assert used == "Poisson-subsampled Gaussian; listed with sensitivities"


def test_a_report_of_an_earlier_version_can_still_be_rendered(report):
    for key in ("about", "protects", "does_not_protect", "other_relations"):
        report.pop(key)
    assert report["statement"] in html.unescape(statement_page(report))
    assert "Which run" not in privacy_markdown(report)


def test_a_run_without_noise_says_so(make_config):
    plan = resolve(make_config("FullDP", privacy={"epsilon": float("inf")})).plan(1294, 143)
    page = statement_page(privacy_report(plan, Ledger(), about=ABOUT))
    assert "no privacy guarantee" in page
    assert "box open" in page


@needs_browser
@pytest.mark.parametrize("accountant", ["rdp", "auto"])
def test_it_prints_on_one_page(make_config, tmp_path, accountant):
    config = make_config("GLISTERDP", dss_args={"fraction": 0.3}, privacy={"accountant": accountant})
    plan = resolve(config).plan(1294, 143)
    report = privacy_report(plan, Ledger(plan.entries()), about=ABOUT)
    page, pdf = tmp_path / "privacy.html", tmp_path / "privacy.pdf"
    page.write_text(statement_page(report))
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
               "--no-pdf-header-footer", f"--print-to-pdf={pdf}", page.as_uri()]  # fmt: skip
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    content = pdf.read_bytes()
    assert re.findall(rb"/Count (\d+)", content) == [b"1"]
    width, height = map(float, re.search(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)", content).groups())
    assert (round(width), round(height)) == (595, 842)
