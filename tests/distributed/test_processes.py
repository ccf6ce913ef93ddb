"""Several gloo processes beside one: the same law, the same ε and ledger, released values equal to rounding."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import REPOSITORY
from ranks import CASES

SCRIPT = REPOSITORY / "tests" / "ranks.py"
SELECTING = ("align", "empty_part", "threshold", "class_weights", "group_rates")


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def started(size, folder, cases, **environment):
    """One process for each rank, as torchrun starts them."""
    folder.mkdir(parents=True, exist_ok=True)
    port, ranks = free_port(), []
    for rank in range(size):
        env = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **environment,
        }  # fmt: skip
        command = [sys.executable, str(SCRIPT), str(folder), *cases]
        ranks.append(
            subprocess.Popen(
                command, env=env, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
    return ranks


def results_of(size, folder, cases):
    """By case, what each rank says."""
    ranks = started(size, folder, cases)
    outputs = [process.communicate(timeout=280)[0] for process in ranks]
    found = {}
    for case in cases:
        files = [folder / f"{case}-{rank}.pickle" for rank in range(size)]
        survivors = files[:-1] if case == "dies" else files
        assert all(file.is_file() for file in survivors), (case, *(output[-2000:] for output in outputs))
        found[case] = [pickle.loads(file.read_bytes()) for file in survivors]
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one process makes of a case, here, with the config that several have."""
    folder, known = tmp_path_factory.mktemp("alone"), {}

    def of(case, ranks):
        name = (case, len(ranks) if case == "empty_part" else 0)
        if name not in known:
            known[name] = CASES[case](folder / "-".join(map(str, name)), len(ranks))
        return known[name]

    return of


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return results_of(2, tmp_path_factory.mktemp("two"), list(CASES))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return results_of(4, tmp_path_factory.mktemp("four"), list(CASES))


SIZES = ["two", pytest.param("four", marks=pytest.mark.slow)]


@pytest.fixture(params=SIZES)
def several(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("case", ["everybody", "everybody_without_noise"])
def test_with_every_record_in_every_step_the_model_is_that_of_one_process(case, several, alone):
    """Noise of more than one rank, a sum that was not added up, or a record that two ranks hold would show."""
    one = alone(case, several[case])
    for rank in several[case]:
        for name, weight in one["weights"].items():
            np.testing.assert_allclose(rank["weights"][name], weight, rtol=1e-4, atol=1e-6)
    assert sum(rank["own"][0] for rank in several[case]) == one["own"][0]


@pytest.mark.parametrize("case", [*SELECTING, "random", "full", "resumed"])
def test_ledger_and_epsilon_are_those_of_one_process(case, several, alone):
    one = alone(case, several[case])
    for rank in several[case]:
        assert rank["ledger"] == one["ledger"]
        assert rank["epsilon"] == one["epsilon"] <= 8.0
        for name, weight in several[case][0]["weights"].items():
            np.testing.assert_array_equal(rank["weights"][name], weight)


@pytest.mark.parametrize("case", ["align", "empty_part", "class_weights", "group_rates"])
def test_the_first_selection_releases_what_one_process_releases(case, several, alone):
    """Same noise, added once to sums over all records: later selections look through weights that coins have moved."""
    released, one = several[case][0]["released"]["1"], alone(case, several[case])["released"]["1"]
    assert released.keys() == one.keys()
    _close(released, one)


def _close(found, wanted):
    if isinstance(wanted, dict):
        for key, value in wanted.items():
            _close(found[key], value)
    else:
        torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(wanted), rtol=1e-4, atol=1e-5)


def test_every_record_lies_with_one_process_and_one_of_them_has_none(several, alone):
    for case in (*SELECTING, "full"):
        own = np.array([rank["own"] for rank in several[case]])
        assert own.sum(axis=0).tolist() == alone(case, several[case])["own"]
    assert several["empty_part"][-1]["own"] == [0, 0, 0]
    assert (np.array([rank["own"] for rank in several["align"]]) > 0).all()


def test_accuracy_is_that_of_one_process_within_noise(several, alone):
    """Fresh noise moves one process by 0.7 points (the deviation of ten runs), so the difference of two by one."""
    assert several["full"][0]["accuracy"] == pytest.approx(alone("full", several["full"])["accuracy"], abs=0.04)
    assert several["full"][0]["accuracy"] > 0.8


def test_what_compares_records_with_each_other_is_refused_and_says_what_to_use(several):
    for rank in several["refused"]:
        assert set(rank) == {"exponential", "top_k"}
        assert all("'align'" in message and "one process" in message for message in rank.values())


def test_a_rank_that_dies_ends_the_run_with_a_message_and_a_ledger_that_is_right(several):
    for rank in several["dies"]:
        assert "another process of this run has ended" in rank["message"]
    (entry,) = several["dies"][0]["ledger"]
    assert entry["phase"] == "training"
    assert entry["event"]["count"] == 2 * several["dies"][0]["steps"]  # two epochs had begun, none more
