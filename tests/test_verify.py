"""`verify`, by attack: whoever changes, cuts, swaps or rounds is named. The runs are real ones."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import subprocess
import sys

import pytest
from conftest import REPOSITORY
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from cords_dp import verify
from cords_dp.accounting import (
    Account,
    BranchMaximum,
    Entry,
    ExponentialPicks,
    GumbelFreeze,
    PoissonGaussian,
    epsilon_bound,
)
from cords_dp.accounting.events import to_dict
from cords_dp.cli import main
from cords_dp.config import load_config
from cords_dp.config.presets import config_for, merge_into
from cords_dp.planning.statement import rounded_up
from cords_dp.runs.run import run_experiment, write_manifest
from cords_dp.training import checkpoint
from tests.data.test_owners import hospital

TEXTS = ("privacy.md", "privacy.html", "README.md")
SCRIPT = REPOSITORY / "cords_dp" / "verify.py"


def small(strategy="FullDP", **changes):
    config = config_for("digits", strategy)
    given = {
        "train_args": {"num_epochs": 3, "print_every": 3, "device": "cpu", "seed": 0},
        "dss_args": {"select_every": 2} if strategy == "GLISTERDP" else {},
        "ckpt": {"is_save": True},
        "privacy": {"epsilon": 3.0},
    }
    for section in (given, changes):
        merge_into(config, section)
    return config


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A run of FullDP, whose ε is found in half a second."""
    folder = tmp_path_factory.mktemp("verified") / "run"
    run_experiment(small(), folder, progress=False)
    return folder


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def problems(folder):
    result = verify.verify(folder)
    bad = [check for check in result["checks"] if not check["ok"]]
    assert result["verified"] == (not bad)
    return {check["check"]: check["found"] for check in bad}


def change_statement(folder, change):
    path = folder / "privacy.json"
    report = json.loads(path.read_text())
    change(report)
    path.write_text(json.dumps(report, indent=2))
    write_manifest(folder)  # whoever changes a statement can do that too


def journal_of(folder):
    return next(folder.rglob("ledger.jsonl"))


def rechained(records):
    """Write a journal anew, with a chain that fits, as a forger would."""
    lines, chain = [], ""
    for record in records:
        body = json.dumps(record, separators=(",", ":")).encode()
        chain = hashlib.sha256(chain.encode() + body).hexdigest()[:32]
        lines.append(b'{"chain":"%s","record":%s}\n' % (chain.encode(), body))
    size = sum(map(len, lines)) + len('"committed":"0000000000000000",')
    return b'{"committed":"%016d",' % size + lines[0][1:] + b"".join(lines[1:])


# --- what it is -----------------------------------------------------------------------------------------------------


def test_it_is_one_short_file_that_imports_nothing_of_the_package():
    lines = [line for line in SCRIPT.read_text().splitlines() if line.strip()]
    assert len(lines) < 300
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    ours = [line for line in imports if line.split()[1].split(".")[0] not in sys.stdlib_module_names]
    assert {line.split()[1].split(".")[0] for line in ours} == {"numpy", "scipy", "dp_accounting"}


def test_it_runs_as_a_script_where_cords_dp_is_not_installed(run, tmp_path):
    alone = shutil.copy(SCRIPT, tmp_path / "verify.py")
    code = (
        "import runpy, sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('cords_dp', 'torch', 'prv_accountant', 'yaml'): raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        f"sys.argv = ['verify.py', {str(run)!r}]\n"
        f"runpy.run_path({str(alone)!r}, run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert "VERIFIED, from the files alone" in done.stdout


def test_a_run_is_verified_by_the_command(run, capsys):
    assert main(["verify", str(run)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("VERIFIED")
    assert main(["verify", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified"] is True
    (run / "model.pt").write_bytes(b"another")
    assert main(["verify", str(run)]) == 1
    assert main(["verify", str(run / "nothing")]) == 2


# --- attacks on files -----------------------------------------------------------------------------------------------


def test_a_changed_byte_in_any_file_is_named(run, monkeypatch):
    found = verify.Run(run).epsilon["D"]  # once is enough: ε is computed before files are compared
    monkeypatch.setattr(verify, "epsilon_of", lambda parts, inclusion: found)
    names = [path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert len(names) >= 11
    for name in names:
        path = run / name
        content = path.read_bytes()
        for place in (0, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            words = verify.verify(run)["verdict"]
            assert words.startswith("NOT VERIFIED"), (name, place)
            assert path.name in words, (name, place, words)
        path.write_bytes(content)
    assert problems(run) == {}


@pytest.fixture
def known_epsilon(run, monkeypatch):
    """ε once is enough: it is computed before files are compared."""
    found = verify.Run(run).epsilon["D"]
    monkeypatch.setattr(verify, "epsilon_of", lambda parts, inclusion: found)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_done_to_a_file_is_named(run, known_epsilon, data):
    """Bytes set, put in, taken out, cut off: in every file, the empty locks and files.json's own names included."""
    path = data.draw(st.sampled_from(sorted(path for path in run.rglob("*") if path.is_file())))
    content = path.read_bytes()
    at, upto = sorted(data.draw(st.integers(0, len(content))) for _ in range(2))
    rest = data.draw(st.sampled_from([at, at + 1, upto]))
    changed = content[:at] + data.draw(st.binary(max_size=3)) + content[rest:]
    assume(changed != content)
    path.write_bytes(changed)
    try:
        words = verify.verify(run)["verdict"]
    finally:
        path.write_bytes(content)
    assert words.startswith("NOT VERIFIED")
    assert path.name in words


def test_only_an_empty_lock_is_no_file_of_the_run(run):
    lock = next(run.rglob("*.lock"))
    assert not lock.read_bytes()
    assert problems(run) == {}
    lock.write_text("records 3, 17, 240")
    write_manifest(run)  # which lists no locks
    assert problems(run) == {"files": [f"{lock.relative_to(run)} is new, by files.json"]}


@pytest.mark.parametrize("name", ["private/drawn.npy", "extra.npz", "indices.out"])
def test_a_file_that_nobody_can_look_into_is_named(run, name):
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).write_bytes(b"records 3, 17, 240")
    write_manifest(run)
    assert problems(run) == {"nothing unpaid": [f"{name} has no place in a run: nobody looked into it"]}


def test_a_missing_file_and_a_new_one_are_named(run):
    (run / "metrics.csv").unlink()
    (run / "indices.npy").write_bytes(b"1 2 3")
    assert problems(run)["files"] == ["indices.npy is new, by files.json", "metrics.csv is missing, by files.json"]
    (run / "privacy.md").unlink()
    assert "privacy.md" in verify.verify(run)["verdict"]


def test_a_swapped_model_is_named(run):
    (run / "model.pt").write_bytes(b"weights of a run without noise")
    write_manifest(run)
    assert problems(run) == {"belong together": ["model.pt is not the model that privacy.json speaks of"]}


def test_a_model_that_was_swapped_with_its_digest_is_named(run):
    (run / "model.pt").write_bytes(b"weights of a run without noise")
    change_statement(run, lambda r: r["about"]["model"].update(sha256=verify._digest(run / "model.pt")))
    assert problems(run) == {"belong together": ["model.pt is not the model that privacy.json speaks of"]}


def test_a_swapped_config_is_named(run):
    (run / "config.yaml").write_text("privacy: {epsilon: 1.0}\n")
    write_manifest(run)
    assert problems(run) == {"belong together": ["config.yaml is not the config that privacy.json speaks of"]}


# --- attacks on the ledger ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("line", [1, 2, -1])
def test_a_missing_entry_is_named(run, line):
    path = journal_of(run)
    lines = path.read_bytes().splitlines(keepends=True)
    del lines[line]
    path.write_bytes(b"".join(lines))
    write_manifest(run)
    assert "ledger.jsonl was changed" in verify.verify(run)["verdict"]


def test_a_missing_entry_is_named_where_the_chain_was_made_to_fit(run):
    path = journal_of(run)
    records, _ = verify.read_journal(path)
    path.write_bytes(rechained(records[:-1]))
    write_manifest(run)
    assert set(problems(run)) == {"journal", "belong together"}
    path.unlink()
    write_manifest(run)
    assert "ledger.jsonl is missing" in problems(run)["journal"][0]


def test_a_charge_beyond_the_plan_is_named(run):
    def halve(report):
        for entry in report["events"]["datasets"][0]["parts"][0]["events"]:
            entry["event"]["count"] //= 2

    change_statement(run, halve)
    found = problems(run)
    assert set(found) == {"within the plan"}
    assert "beyond the plan" in found["within the plan"][0]
    assert "fewer than planned" in found["within the plan"][1]


def test_what_other_runs_in_the_folder_cost_is_said_to_be_left_out(run):
    shutil.copy(journal_of(run), run / "SL" / "ledger-1.jsonl")  # an earlier run's, set aside by this one
    write_manifest(run)
    (found,) = verify.Run(run).checks()[1:2]
    assert (found[1], "not counted" in found[2]) == ([], True)


def test_a_second_ledger_of_the_run_is_named(run):
    """An older copy, whose folder comes first, while the run went on in the other."""
    path = journal_of(run)
    records, _ = verify.read_journal(path)
    (run / "AA").mkdir()
    shutil.copy(path, run / "AA" / "ledger.jsonl")
    path.write_bytes(rechained([*records, records[-1]]))
    write_manifest(run)
    assert "is there twice" in problems(run)["journal"][0]


def forged(folder, change):
    """Change what every list of events says, in the journal as well, and lower ε everywhere to what follows."""
    path = journal_of(folder)
    records, _ = verify.read_journal(path)
    report = json.loads((folder / "privacy.json").read_text())
    (data,) = report["events"]["datasets"]
    charges = [record["charge"] for record in records if "charge" in record]
    change(data, [charges, report["ledger"]["entries"], data["parts"][0]["events"]])
    path.write_bytes(rechained(records))
    report["ledger"]["head"] = verify.read_journal(path)[1]
    epsilon = 1.00001 * verify.epsilon_of(data["parts"], data["inclusion"])
    report["epsilon"] = report["epsilon_training_data"] = data["epsilon"] = epsilon
    rewritten(folder, report, f"ε = {rounded_up(epsilon)}")
    return epsilon


def rewritten(folder, report, cost):
    """Write another statement, in all texts alike."""
    old, report["measures"] = report["statement"], []
    report["statement"] = re.sub(r"ε = [\d.]+", cost, old, count=1)
    for name in TEXTS:
        text = (folder / name).read_text().replace(old, report["statement"])
        (folder / name).write_text(re.sub(r"ε = [\d.]+", cost, text))
    for name in ("nist_sp_800_226", "dp_deployments_registry"):
        report[name] = {key: re.sub(r"ε = [\d.]+", cost, value) for key, value in report[name].items()}
    (folder / "privacy.json").write_text(json.dumps(report, indent=2))
    (folder / "result.json").write_text('{"epsilon": null}')
    write_manifest(folder)


def more_noise(data, lists):
    for entries in lists:
        for entry in entries:
            entry["event"]["sigma"] *= 2


def fewer_steps(data, lists):
    for entries in lists:
        entries[-1]["event"]["count"] -= 5


def secret(data, lists):
    data["inclusion"] = 0.3


@pytest.mark.parametrize(
    ("change", "check", "words"),
    [
        (more_noise, "within the plan", "fewer than planned"),
        (fewer_steps, "within the plan", "fewer than planned"),
        (secret, "belong together", "inclusion is 0.3, and 1.0 in its plan"),
    ],
)
def test_a_cheaper_run_that_was_forged_alike_but_for_its_plan_is_named(run, change, check, words):
    assert forged(run, change) < 2.9
    found = problems(run)
    assert set(found) == {check}, found
    assert words in found[check][0]


@pytest.mark.parametrize("where", ["charges", "events"])
@pytest.mark.parametrize("count", [-5, 0, 0.5, True, float("nan")])
def test_an_event_with_a_number_that_no_event_has_is_named(run, where, count):
    path = journal_of(run)
    records, _ = verify.read_journal(path)

    def add(report):
        more = json.loads(json.dumps(report["events"]["datasets"][0]["parts"][0]["events"][0]))
        more["event"]["count"] = count
        if where == "events":
            report["events"]["datasets"][0]["parts"][0]["events"].append(more)
        else:
            path.write_bytes(rechained([*records, {"charge": {"dataset": "D", **more}}]))
            report["ledger"]["head"] = verify.read_journal(path)[1]

    change_statement(run, add)
    assert "a number that no event has" in verify.verify(run)["verdict"]


def test_a_ledger_of_another_plan_is_named(run):
    change_statement(run, lambda report: report["plan"].update(sigma=2 * report["plan"]["sigma"]))
    found = problems(run)
    assert found["belong together"] == ["privacy.json: the plan is not the one that its ledger is bound to"]
    assert "fewer than planned" in found["within the plan"][0]


# --- attacks on ε ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["epsilon", "epsilon_training_data", "events", "statement"])
def test_an_epsilon_rounded_down_is_named(run, key):
    def round_down(report):
        low = math.floor(100 * verify.Run(run).epsilon["D"]) / 100
        if key == "events":
            report["events"]["datasets"][0]["epsilon"] = low
        elif key == "statement":
            old = report["statement"]
            report["statement"] = old.replace(rounded_up(report["epsilon"]), f"{low:.4f}")
            assert report["statement"] != old
            for name in TEXTS:
                (run / name).write_text((run / name).read_text().replace(old, report["statement"]))
        else:
            report[key] = low

    change_statement(run, round_down)
    found = problems(run)
    assert set(found) == {"epsilon"}
    assert "found" in found["epsilon"][0]


def test_a_larger_delta_is_named(run):
    change_statement(run, lambda report: report["events"]["datasets"][0]["parts"][0].update(delta=1e-3))
    assert "δ of D" in problems(run)["epsilon"][0]


def test_a_larger_delta_with_its_epsilon_and_the_old_one_in_the_sentence_is_named(run):
    report = json.loads((run / "privacy.json").read_text())
    data = report["events"]["datasets"][0]
    report["delta"] = data["delta"] = data["parts"][0]["delta"] = 1e-3
    epsilon = 1.00001 * verify.epsilon_of(data["parts"])
    report["epsilon"] = report["epsilon_training_data"] = data["epsilon"] = epsilon
    rewritten(run, report, f"ε = {rounded_up(epsilon)}")
    found = problems(run)
    assert found["belong together"] == ["privacy.json: δ is 0.001, and 1e-05 in its plan"]
    assert "δ in the sentence = 1e-05" in found["epsilon"][0]


def test_a_smaller_delta_in_the_sentence_is_named(run):
    def less(report):
        old = report["statement"]
        report["statement"] = old.replace("δ = 1e-05", "δ = 1e-09")
        for name in TEXTS:
            (run / name).write_text((run / name).read_text().replace(old, report["statement"]))

    change_statement(run, less)
    assert "δ in the sentence = 1e-09" in problems(run)["epsilon"][0]


@pytest.mark.parametrize("name", TEXTS)
def test_an_epsilon_rounded_down_in_a_text_is_named(run, name):
    for pattern, words in (("ε = 2[.][0-9]+", "another statement"), ("ε = 2[.][0-9]+, δ = 1e-05[.;<]", f"ε in {name}")):
        text = (run / name).read_text()
        changed = re.sub(pattern, lambda found: found[0].replace("ε = 2.9", "ε = 0.9"), text)
        if changed != text:
            (run / name).write_text(changed)
            write_manifest(run)
            assert words in verify.verify(run)["verdict"]
            (run / name).write_text(text)


@pytest.mark.parametrize("name", ["nist_sp_800_226", "dp_deployments_registry", "result.json"])
def test_an_epsilon_rounded_down_where_programs_read_it_is_named(run, name):
    def lower(fields):
        return {key: re.sub(r"ε = 2[.]\d+", "ε = 0.5000", str(value)) for key, value in fields.items()}

    if name == "result.json":
        result = json.loads((run / name).read_text())
        (run / name).write_text(json.dumps({**result, "epsilon": 0.5}))
    change_statement(run, lambda report: report.update({name: lower(report[name])} if name in report else {}))
    assert set(problems(run)) == {"epsilon"}


@pytest.mark.parametrize("key", ["epsilon", "delta", "epsilon_training_data"])
def test_what_is_no_number_is_named(run, key):
    change_statement(run, lambda report: report.update({key: math.nan}))
    assert "nan" in problems(run)["epsilon"][0]


@pytest.mark.parametrize(("key", "value"), [("unit", "owner"), ("units", 10**6)])
def test_another_unit_than_the_plan_s_is_named(run, key, value):
    change_statement(run, lambda report: report["events"]["datasets"][0].update({key: value}))
    assert f"{value}, and " in problems(run)["belong together"][0]


@pytest.mark.slow  # twelve seconds
def test_a_sentence_that_had_to_be_rounded_is_verified(tmp_path):
    """With branches the claim is the bound itself: rounded to the nearest it may claim less than that."""
    assert [rounded_up(epsilon) for epsilon in (2.99994, 2.99996, 3.0, 0.00001)] == [
        "3.0000",
        "3.0000",
        "3.0000",
        "0.0001",
    ]
    config = small("GLISTERDP", dss_args={"fraction": 0.3}, privacy={"validation": "public"})
    run_experiment(config, tmp_path / "run", progress=False)
    assert problems(tmp_path / "run") == {}


def test_noise_from_the_seed_is_no_privacy(tmp_path):
    run_experiment(small(privacy={"reproducible_noise": True}), tmp_path / "run", progress=False)
    assert "follows from the seed" in problems(tmp_path / "run")["nothing unpaid"][0]
    change_statement(tmp_path / "run", lambda report: report.update(private=True))
    assert "follows from the seed" in problems(tmp_path / "run")["nothing unpaid"][0]


@pytest.mark.parametrize(
    "events",
    [
        [PoissonGaussian(0.8, 0.01, 500)],
        [PoissonGaussian(5.0, 1.0, 3), PoissonGaussian(1.2, 0.1, 40)],
        [GumbelFreeze(0.25, 4)],
        [GumbelFreeze(0.25, 1), PoissonGaussian(1.2, 0.1, 40)],
        [ExponentialPicks(0.05, 30), PoissonGaussian(1.2, 0.1, 40)],
    ],
    ids=["rare", "gaussian and drawn", "freezes", "freeze and steps", "picks and steps"],
)
@pytest.mark.parametrize("inclusion", [1.0, 0.3])
def test_epsilon_is_the_package_s_own(events, inclusion):
    """Two programs that share no code but dp-accounting's compositions."""
    inside = epsilon_bound(events, 1e-5 / inclusion, "quick").epsilon
    ours = math.log1p(inclusion * math.expm1(inside))
    parts = [{"delta": 1e-5, "events": [{"event": to_dict(event)} for event in events]}]
    assert verify.epsilon_of(parts, inclusion) == pytest.approx(ours, rel=1e-6)


def test_a_choice_between_branches_costs_the_worst_at_every_epsilon():
    branches = BranchMaximum(((PoissonGaussian(2.0, 0.1, 20),), (PoissonGaussian(8.0, 1.0, 2),)))
    events = [branches, PoissonGaussian(20.0, 1.0, 1)]
    parts = [{"delta": 1e-5, "events": [{"event": to_dict(event)} for event in events]}]
    found = verify.epsilon_of(parts)
    assert found == pytest.approx(epsilon_bound(events, 1e-5, "pld").epsilon, rel=1e-6)
    for branch in branches.branches:
        assert found > epsilon_bound([*branch, events[1]], 1e-5, "pld").epsilon * (1 - 1e-6)


def test_an_unknown_kind_of_event_is_not_waved_through():
    parts = [{"delta": 1e-5, "events": [{"event": {"kind": "laplace", "scale": 1.0, "count": 1}}]}]
    with pytest.raises(ValueError, match="laplace"):
        verify.epsilon_of(parts)


# --- what nobody paid for -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("subset.json", '{"rows": [1, 2]}', "which records"),
        ("about.json", '{"indices": [1, 2]}', "which records"),
        ("metrics.csv", "epoch,accuracy,trn_acc\n1,0.5,0.5\n", "exact metrics"),
        ("train.log", "INFO: Training Accuracy: 0.93\n", "exact metrics"),
    ],
)
def test_what_nobody_paid_for_is_named(run, name, content, words):
    (run / name).write_text(content)
    write_manifest(run)
    found = problems(run)
    assert set(found) == {"nothing unpaid"}
    assert name in found["nothing unpaid"][0]
    assert words in found["nothing unpaid"][0]


def test_exact_metrics_that_were_switched_on_are_named(tmp_path):
    config = small(privacy={"exact_metrics": True}, train_args={"print_args": ["tst_acc", "trn_acc"]})
    run_experiment(config, tmp_path / "run", progress=False)
    assert "exact metrics of private records are shown" in problems(tmp_path / "run")["nothing unpaid"][0]


# --- accounts -------------------------------------------------------------------------------------------------------


def reserve(account, run, count=20):
    event, on_v = PoissonGaussian(2.0, 0.1, count), PoissonGaussian(9.0, 1.0, 1)
    account.reserve(run, [Entry("D", "training", event), Entry("V", "validation", on_v)])


@pytest.mark.parametrize("adaptive", [True, False])
def test_an_account_is_verified(tmp_path, adaptive):
    account = Account.open(tmp_path / "account.jsonl", 3.0, 1e-5, adaptive=adaptive)
    for run in ("one", "two"):
        reserve(account, run)
    result = verify.verify(account.path)
    assert result["verified"], result
    assert f"{account.share():.2%}" in result["verdict"]


@pytest.mark.parametrize("adaptive", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_an_account_that_holds_more_than_its_total_is_named(tmp_path, adaptive):
    account = Account.open(tmp_path / "account.jsonl", 3.0, 1e-5, adaptive=adaptive)
    reserve(account, "one")
    reserve(account, "two")
    records, _ = verify.read_journal(account.path)
    for entry in records[2]["entries"]:
        entry["event"]["count"] *= 20
    account.path.write_bytes(rechained(records))
    assert "NOT VERIFIED: account.jsonl: 2 runs hold" in verify.verify(account.path)["verdict"]


def with_records(path, change):
    records, _ = verify.read_journal(path)
    change(records)
    path.write_bytes(rechained(records))
    return verify.verify(path)["verdict"]


@pytest.mark.parametrize("adaptive", [True, False])
def test_an_account_that_forgets_is_named(tmp_path, adaptive):
    """Charges that are known do not become fewer; where nothing is given back, reservations do not either."""
    account = Account.open(tmp_path / "account.jsonl", 3.0, 1e-5, adaptive=adaptive)
    assert verify.verify(account.path)["verified"]  # with no run at all
    reserve(account, "one")
    account.settle("one", [Entry("D", "training", PoissonGaussian(2.0, 0.1, 20))])
    content = account.path.read_bytes()

    def forget(records):
        records.append({**records[-1], "entries": [], "charged": []})

    def hold_less(records):
        records.append({**records[-1], "entries": records[-1]["entries"][1:], "charged": records[-1]["charged"]})

    for change in (forget, hold_less):
        assert "forgets what run one has charged" in with_records(account.path, change)
        account.path.write_bytes(content)
    assert verify.verify(account.path)["verified"]


def test_an_account_of_records_and_of_owners_is_named(tmp_path):
    account = Account.open(tmp_path / "account.jsonl", 3.0, 1e-5)
    for run in ("one", "two"):
        reserve(account, run)
    words = with_records(account.path, lambda records: records[1].update(unit="owner"))
    assert "adds up records and owners" in words


@pytest.mark.parametrize("total", [math.nan, math.inf, -3.0])
def test_an_account_without_a_total_is_named(tmp_path, total):
    account = Account.open(tmp_path / "account.jsonl", 3.0, 1e-5)
    reserve(account, "one", 2)
    assert "NOT VERIFIED" in with_records(account.path, lambda records: records[0].update(epsilon=total))


def test_an_account_with_a_negative_charge_is_named(tmp_path):
    account = Account.open(tmp_path / "account.jsonl", 3.0, 1e-5)
    reserve(account, "one")

    def refund(records):
        more = json.loads(json.dumps(records[1]["entries"][0]))
        more["event"]["count"] = -19
        records[1]["entries"].append(more)

    assert "a number that no event has" in with_records(account.path, refund)


def test_an_account_with_a_changed_byte_is_named(tmp_path):
    account = Account.open(tmp_path / "account.jsonl", 3.0, 1e-5)
    reserve(account, "one")
    content = account.path.read_bytes()
    for place in range(33, len(content), 41):  # after the mark of what was committed, which may lag behind
        account.path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert "account.jsonl was changed" in verify.verify(account.path)["verdict"], place


# --- runs of every kind ---------------------------------------------------------------------------------------------

KINDS = {
    "top_k": ("GLISTERDP", {"mechanism": "top_k"}, {}),
    "threshold": ("GLISTERDP", {"mechanism": "threshold"}, {}),
    "exponential, basic composition": ("GLISTERDP", {"mechanism": "exponential"}, {"composition": "basic"}),
    "secret subset": ("RandomDP", {"fraction": 0.3, "secret_subset": True}, {}),
    "public V": ("GLISTERDP", {}, {"validation": "public"}),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=() if k == "secret subset" else pytest.mark.slow) for k in KINDS]
)
def test_runs_of_every_kind_are_verified(kind, tmp_path):
    strategy, selection, privacy = KINDS[kind]
    selection = {"fraction": 0.3, "select_every": 1, **selection}
    config = small(strategy, dss_args=selection, privacy=privacy, train_args={"num_epochs": 2})
    config["ckpt"]["is_save"] = kind != "secret subset"
    run_experiment(config, tmp_path / "run", progress=False)
    assert problems(tmp_path / "run") == {}


def test_a_run_of_owners_is_verified(tmp_path):
    config = hospital(tmp_path)
    config["privacy"]["reproducible_noise"] = False
    run_experiment(config, tmp_path / "run", progress=False)
    assert problems(tmp_path / "run") == {}
    assert "per owner" in verify.verify(tmp_path / "run")["verdict"]


def test_a_run_that_was_interrupted_and_resumed_is_verified(tmp_path, monkeypatch):
    config = small(ckpt={"save_every": 1})
    real = checkpoint.save_checkpoint

    def interrupted(*args):
        real(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_checkpoint", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_experiment(config, tmp_path / "run", progress=False)
    merge_into(config, {"ckpt": {"is_load": True}})
    run_experiment(config, tmp_path / "run", progress=False)
    assert problems(tmp_path / "run") == {}
    assert "attempt" in journal_of(tmp_path / "run").read_text()


def test_a_tuning_is_refused_with_the_reason(run):
    (run / "privacy.json").write_text('{"private": true, "trials": {}}')
    assert "is a tuning" in verify.verify(run)["verdict"]


# --- ready-made configs ---------------------------------------------------------------------------------------------

CONFIGS = sorted((REPOSITORY / "configs").rglob("*.py"))
QUICK = [path for path in CONFIGS if path.stem.endswith(("_digits", "_synthetic"))]
SLOW = [path for path in CONFIGS if path not in QUICK or path.stem.startswith("glister")]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.slow if path in SLOW else ()) for path in CONFIGS],
    ids=lambda path: str(path.relative_to(REPOSITORY / "configs")),
)
def test_a_run_of_every_ready_made_config_is_verified(path, tmp_path):
    """Three epochs with the config's own strategy, selection and privacy; other data sets than these two give way to
    the digits, with a linear model, so that nothing has to be downloaded."""
    config = load_config(path)
    if path not in QUICK:
        for section in ("dataset", "model"):
            config[section] = config_for("digits", "FullDP")[section]
        merge_into(config, {"dataloader": {"batch_size": 32}, "optimizer": {"lr": 0.1}})
        config["privacy"].pop("augmentations", None)  # views are of images
        config["privacy"].pop("records_per_owner", None)  # each of the digits is somebody's only one
    merge_into(config, {"train_args": {"num_epochs": 3, "device": "cpu", "seed": 0}})
    if "select_every" in config["dss_args"]:
        config["dss_args"]["select_every"] = 1
    run_experiment(config, tmp_path / "run", progress=False)
    assert problems(tmp_path / "run") == {}
