"""A made-up hospital's table: in order, or as messy as such tables are.

Which patient has which fault follows from its place, so that a test can count them.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

WARDS = ("cardiology", "medicine", "surgery")
_COLUMNS = {
    "admitted": {"range": ["2020-01-01", "2025-12-31"]},
    "age": {"range": [0, 110]},
    "sex": {"categories": ["f", "m"]},
    "ward": {"categories": list(WARDS)},
    "creatinine": {"range": [0, 10], "log": True},
}
SCHEMA = {
    "target": {"name": "readmitted", "classes": ["no", "yes"]},
    "columns": _COLUMNS,
    "ignore": ["patient_id", "notes", "stay"],
}
STAY = {
    "target": {"name": "stay", "range": [0, 60]},
    "columns": _COLUMNS,
    "ignore": ["patient_id", "notes", "readmitted"],
}
_NOTES = (
    "stable",
    "fell at home, no fracture",
    "on admission:\npale, short of breath\n\nsee letter",
    'says she is "much better", wants to leave',
    "",
    "discharged;\r\nfollow-up in two weeks",
)


def patients(n: int, seed: int = 0) -> list[dict[str, str]]:
    """Records in order. Both targets can be told from the columns; notes hold commas, quotes and line breaks."""
    rng = np.random.default_rng(seed)
    age, ward = rng.integers(18, 100, n), rng.integers(0, 3, n)
    creatinine = rng.lognormal(0, 0.5, n).clip(0.2, 9.9).round(2)
    risk = (age - 60) / 25 + np.array([0.9, 0.0, -0.6])[ward] + 1.5 * np.log(creatinine) + rng.normal(0, 0.4, n)
    stay = (60 / (1 + np.exp(1.2 - 0.9 * risk)) + rng.normal(0, 2, n)).clip(0, 60).round(1)
    days = np.datetime64("2020-01-01") + rng.integers(0, 2000, n)
    return [
        {
            "patient_id": f"P{place:06d}",
            "admitted": str(days[place]),
            "age": str(age[place]),
            "sex": str(rng.choice(["f", "m"])),
            "ward": WARDS[ward[place]],
            "creatinine": str(creatinine[place]),
            "notes": _NOTES[place % len(_NOTES)],
            "readmitted": "yes" if risk[place] > 0 else "no",
            "stay": str(stay[place]),
        }
        for place in range(n)
    ]


def rarely_readmitted(n: int, seed: int = 0) -> list[dict[str, str]]:
    """Patients of whom 7 in 100 come back: more of those at risk, but it remains a matter of chance."""
    rows, rng = patients(n, seed), np.random.default_rng([seed, 1])
    for row in rows:
        ward = (0.9, 0.0, -0.6)[WARDS.index(row["ward"])]
        risk = (float(row["age"]) - 60) / 25 + ward + 1.5 * np.log(float(row["creatinine"]))
        row["readmitted"] = "yes" if rng.random() < 1 / (1 + np.exp(2.85 - 0.6 * risk)) else "no"
    return rows


def messy(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The same patients as several clerks have written them down."""
    spelt = {"yes": ("yes", "YES", "1"), "no": ("no", "No", "0")}
    made = []
    for place, row in enumerate(rows):
        row = dict(row)
        row["readmitted"] = spelt[row["readmitted"]][0 if place % 4 else 1 + place // 4 % 2]
        if place % 25 == 3:
            row["age"] = ("250", "forty", "", "n/a")[place // 25 % 4]
        if place % 20 == 5:
            row["ward"] = ("Cardiology", "ICU", "", "?")[place // 20 % 4]
        if place % 50 == 7:
            row["stay"] = ("90", "long", "")[place // 50 % 3]
        made.append(row)
    return made


def write_csv(path: Path, rows: list[dict[str, str]], *, delimiter: str = ",", broken: tuple[int, ...] = ()) -> None:
    """As every tool writes it (RFC 4180); the records at ``broken`` have a field too many."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(rows[0])
        for place, row in enumerate(rows):
            writer.writerow([*row.values(), *(["and more"] if place in broken else [])])


def visits(people: int, seed: int = 0) -> list[dict[str, str]]:
    """About ten visits of each patient, from one to nineteen. Age, sex and a patient's own risk stay the same."""
    rng = np.random.default_rng([seed, 2])
    each = rng.integers(1, 20, people)
    who = np.repeat(np.arange(people), each)
    of_person, rows = patients(people, seed), patients(len(who), seed + 1)
    frailty = rng.normal(0, 0.5, people)
    for place, (row, person) in enumerate(zip(rows, who, strict=True)):
        row |= {key: of_person[person][key] for key in ("patient_id", "age", "sex")} | {"notes": "stable"}
        ward = (0.9, 0.0, -0.6)[WARDS.index(row["ward"])]
        risk = (float(row["age"]) - 60) / 25 + ward + 1.5 * np.log(float(row["creatinine"])) + frailty[person]
        row["readmitted"] = "yes" if rng.random() < 1 / (1 + np.exp(1.5 - 0.8 * risk)) else "no"
        row["stay"] = str(float(place % 30))
    return rows
