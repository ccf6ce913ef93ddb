"""Files of texts: every line is a record by itself."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cords_dp.config import config_for
from cords_dp.data.build import build_dataset
from cords_dp.data.sources.texts import _records

BAD = ['"an open quotation mark,good', "too,many,fields", "alone", "", '"a""b" c,bad', "a\rb\0,good", "x" * 200_000]


def written(tmp_path, suffix, lines):
    path = tmp_path / f"texts{suffix}"
    path.write_bytes(("\n".join(lines) + "\n\n").encode())
    return path


@pytest.mark.parametrize("bad", BAD)
def test_a_line_is_a_record_whatever_is_in_it(tmp_path, bad):
    lines = ["text,label", "one,good", "two,bad", '"three, with a comma",good']
    expected = list(_records(written(tmp_path, ".csv", lines)))
    found = list(_records(written(tmp_path, ".csv", [*lines[:2], bad, *lines[2:]])))
    assert [found[0], *found[2:]] == expected
    assert expected[2]["text"] == "three, with a comma"


@pytest.mark.parametrize("bad", ["", "{", "[1]", "null", '{"text": "\\u2028"}', "\r"])
def test_a_line_of_json_is_a_record_whatever_is_in_it(tmp_path, bad):
    lines = [json.dumps({"text": f"a\nb {i}", "label": "good"}) for i in range(3)]
    found = list(_records(written(tmp_path, ".jsonl", [lines[0], bad, *lines[1:]])))
    assert [found[0], *found[2:]] == [json.loads(line) for line in lines]


def test_an_unreadable_line_has_no_class_and_keeps_its_place(tmp_path):
    path = written(tmp_path, ".csv", ["text,label", *["fine,good", '"open,bad'] * 20])
    section = {"path": str(path), "classes": ["bad", "good"]}
    splits = build_dataset(config_for("text", "FullDP", dataset=section, privacy={"epsilon": 1.0}),
                           np.random.default_rng(0))  # fmt: skip
    rows = np.concatenate([part.rows for part in splits[:2]])  # of the test set, which is public, some are left out
    labels = np.concatenate([part.targets for part in splits[:2]])
    assert len(rows) == 32
    assert ((labels == 1) == (rows % 2 == 0)).all()
