"""Renders ``privacy.json`` as one A4 page for whoever has to sign it: ``privacy.html``, which needs no network."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from cords_dp.planning.guarantee import measure_lines

_STYLE = """
@page { size: A4; margin: 9mm 14mm; }
* { box-sizing: border-box; }
body { font: 8.2pt/1.28 "Helvetica Neue", Arial, "Liberation Sans", sans-serif; color: #1d2433; background: #fff;
       max-width: 182mm; margin: 8mm auto; overflow-wrap: break-word; }
h1 { font-size: 15pt; margin: 0 0 1mm; }
h2 { font-size: 9.4pt; margin: 2.6mm 0 .8mm; }
p, ul, table { margin: 0 0 1mm; }
ul { padding-left: 4mm; }
.box { border: .4mm solid #2e7d4f; padding: 2mm 3mm; font-size: 9.4pt; }
.box.open { border-color: #b3363b; }
.two { display: grid; grid-template-columns: 1fr 1fr; gap: 0 6mm; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .5mm 1.5mm .5mm 0; border-bottom: .2mm solid #d5dae4; }
th { font-weight: 600; }
.facts td { overflow-wrap: anywhere; }
.facts th { white-space: nowrap; width: 1%; padding-right: 4mm; }
.curve { display: grid; grid-template-columns: auto 1fr; gap: 4mm; align-items: center; }
.curve svg { width: 38mm; height: auto; }
.small { font-size: 7.2pt; line-height: 1.22; color: #444b5a; }
.sign { margin-top: 4mm; display: grid; grid-template-columns: 1fr 1fr 1fr; gap: 8mm; }
.sign span { border-top: .2mm solid #1d2433; padding-top: .6mm; }
@media print { body { margin: 0; max-width: none; } }
@media (max-width: 40rem) { body { margin: 3mm; } .two { grid-template-columns: 1fr; } }
"""
_MOST_ROWS = 8  # more mechanisms would not leave room for the rest of the page


def statement_page(report: Mapping[str, Any]) -> str:
    """Render one page to print. What a report does not hold is left out."""
    kind = "box" if report.get("private") else "box open"
    parts = [
        "<h1>Privacy statement</h1>",
        f"<p class='{kind}'>{_text(report['statement'])}</p>",
        _facts("Which run", about_rows(report.get("about") or {})),
        "<div class=two>",
        _list("Whom it protects", report.get("protects")),
        _list("Whom it does not protect", report.get("does_not_protect")),
        "</div>",
        _meaning(report),
        _mechanisms(report.get("mechanisms") or report.get("mechanisms_of_a_trial") or ()),
        _costs(report),
        _paragraph("Compared with other definitions", report.get("other_relations")),
        _list("Not covered", report.get("not_covered"), small=True),
        "<div class=sign><span>checked by</span><span>on</span><span>signature</span></div>",
    ]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta name=viewport content="width=device-width, initial-scale=1">'
        f"<title>Privacy statement</title><style>{_STYLE}</style>{''.join(parts)}</html>\n"
    )


def about_rows(about: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what is known about a run, in words: its data, day, model, account and versions."""
    rows: list[tuple[str, str]] = []
    data, model, account = (about.get(name) or {} for name in ("data", "model", "account"))
    if data:
        rows += [("data", data["name"]), *((file["key"], _file_words(file)) for file in data.get("files") or ())]
        if data.get("salt") and any(file.get("digest") for file in data["files"]):
            rows.append(("checked with", "cords-dp data digest FILE --statement privacy.json, by the owner of the key"))
        for what in ("records", "owners"):
            counts = [f"{number:,} in {_SETS.get(name, name)}" for name, number in (data.get(what) or {}).items()]
            rows += [(what, ", ".join(counts))] if counts else []
    rows += [("date", about["date"])] if about.get("date") else []
    if "model" in about:
        rows.append(("model", f"{model['file']}, sha256 {model['sha256']}" if model else "no file was written"))
    if "account" in about:
        rows.append(("account", _account_words(account) if account else "none: nothing adds this run to others"))
    if about.get("versions"):
        rows.append(("versions", ", ".join(f"{name} {number}" for name, number in about["versions"].items())))
    return rows


_SETS = {"test": "the test set"}


def _file_words(file: Mapping[str, Any]) -> str:
    if file.get("digest"):
        return f"{file['file']}, keyed digest {file['digest']}"
    return f"{file['file']} (no digest: {file.get('no_digest')})"


def _account_words(account: Mapping[str, Any]) -> str:
    return (
        f"{account['file']} (id {account['id']}), ε = {account['epsilon']:g} and δ = {account['delta']:g} for all runs "
        f"together; {account['runs']} hold {account['share_held']:.1%}, this one with its whole plan; "
        f"{account['share_left']:.1%} is left"
    )


def _facts(title: str, rows: Sequence[tuple[str, str]]) -> str:
    if not rows:
        return ""
    lines = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows)
    return f"<h2>{title}</h2><table class=facts>{lines}</table>"


def _list(title: str, items: Sequence[str] | None, *, small: bool = False) -> str:
    if not items:
        return ""
    lines = "".join(f"<li>{_text(item)}</li>" for item in items)
    return f"<div><h2>{title}</h2><ul{' class=small' if small else ''}>{lines}</ul></div>"


def _paragraph(title: str, words: str | None) -> str:
    return f"<h2>{title}</h2><p>{_text(words)}</p>" if words else ""


def _meaning(report: Mapping[str, Any]) -> str:
    """Say what an attacker can tell, with the curve beside it."""
    words, measures = _paragraph("What it means", report.get("meaning")), report.get("measures") or ()
    if not measures:
        return words
    lines = "".join(f"<li>{_text(line)}</li>" for line in measure_lines(measures, brief=True))
    return f"<div class=curve>{trade_off_figure(measures)}<div>{words}<ul class=small>{lines}</ul></div></div>"


def _mechanisms(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    names = ("phase", "mechanism", "parameters", "count")
    lines = "".join(
        f"<tr>{''.join(f'<td>{_text(row[name])}</td>' for name in names)}</tr>" for row in rows[:_MOST_ROWS]
    )
    more = f"<p>… and {len(rows) - _MOST_ROWS} more, in privacy.md.</p>" if len(rows) > _MOST_ROWS else ""
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<h2>What was used</h2><table class=small><tr>{head}</tr>{lines}</table>{more}"


def _costs(report: Mapping[str, Any]) -> str:
    """Say in a line what each set and each phase costs."""
    if report.get("epsilon_training_data") is None:
        return ""
    words = [f"D in total ε = {report['epsilon_training_data']:.4f}"]
    words += [f"{name} in total ε = {epsilon:.4f}" for name, epsilon in other_totals(report).items()]
    words += [f"{name} alone {bound['epsilon']:.4f}" for name, bound in (report.get("phases") or {}).items()]
    how = ", ".join(filter(None, [report.get("accountant"), report.get("composition")]))
    return _paragraph("What it cost", f"{'; '.join(words)}; all at δ = {report['delta']:.3g} at most ({how}).")


def other_totals(report: Mapping[str, Any]) -> dict[str, float]:
    """Return ε of the sets beside D that are charged, by name."""
    found = {"V": report.get("epsilon_validation_data"), "T": report.get("epsilon_test_data")}
    return {name: epsilon for name, epsilon in found.items() if epsilon is not None}


def _text(value: Any) -> str:
    return html.escape(str(value))


# --- as a picture ----------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _BOTTOM, _TOP = 250, 180, 42, 18, 34, 10
_COLORS = ("#2e5fa3", "#c2571a", "#2e7d4f")
_LEAST = -4  # of the logarithm of either rate


def trade_off_figure(measures: Sequence[Mapping[str, Any]]) -> str:
    """Draw, for every data set, the most that an attack can find against what it accuses wrongly; both logarithmic.

    The picture stands inside of a page and needs no network.
    """
    parts = [_axes(), _line(((10.0**_LEAST, 10.0**_LEAST), (1.0, 1.0)), "#999", dashed=True)]
    for place, row in enumerate(measures):
        color, curve = _COLORS[place % len(_COLORS)], row["trade_off"]
        points = [(float(fpr), tpr) for fpr, tpr in curve["true_positive_rates"].items()]
        parts.append(_line(points, color))
        mu = "" if curve["mu"] is None else f", μ = {curve['mu']:.2f}"
        # at the lower right: no curve lies below guessing
        y = _HEIGHT - _BOTTOM - 8 - 12 * (len(measures) - 1 - place)
        parts.append(
            f'<text x="{_WIDTH - _RIGHT - 6}" y="{y}" text-anchor="end" fill="{color}">{row["dataset"]}{mu}</text>'
        )
    words = "most true positives of a membership attack, by its false positives; dashed: guessing"
    return (
        f'<svg role="img" aria-label="{words}" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'font-size="9" font-family="sans-serif">{"".join(parts)}</svg>'
    )


def _x(rate: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (1 - math.log10(max(rate, 10.0**_LEAST)) / _LEAST)


def _y(rate: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * math.log10(max(rate, 10.0**_LEAST)) / _LEAST


def _line(points: Sequence[tuple[float, float]], color: str, *, dashed: bool = False) -> str:
    path = " ".join(f"{_x(a):.1f},{_y(b):.1f}" for a, b in points)
    dashes = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.4"{dashes}/>'


def _axes() -> str:
    parts = []
    for power in range(_LEAST, 1):
        rate, label = 10.0**power, f"{100 * 10.0**power:g} %"
        parts.append(f'<text x="{_x(rate):.1f}" y="{_HEIGHT - 20}" text-anchor="middle" fill="#555">{label}</text>')
        parts.append(f'<text x="{_LEFT - 4}" y="{_y(rate) + 3:.1f}" text-anchor="end" fill="#555">{label}</text>')
        parts.append(_line(((rate, 10.0**_LEAST), (rate, 1.0)), "#e3e6ee"))
        parts.append(_line(((10.0**_LEAST, rate), (1.0, rate)), "#e3e6ee"))
    middle = (_x(10.0**_LEAST) + _x(1.0)) / 2
    words = "false positives; upwards: most true ones"
    parts.append(f'<text x="{middle:.1f}" y="{_HEIGHT - 5}" text-anchor="middle" fill="#555">{words}</text>')
    return "".join(parts)
