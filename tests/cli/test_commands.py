"""The command line as a whole: commands, help, JSON, loudness, exit codes, completion."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys

import pytest
from conftest import REPOSITORY

import cords_dp
from cords_dp.cli import EXIT_CODES, REQUIRED, build_parser, guarded, main
from cords_dp.cli.arguments import loading

CONFIGS = REPOSITORY / "configs"
COMMANDS = (
    "run budget validate data sweep compare tune reproduce report audit verify account predict threshold demo check "
    "gains completion"
)


def commands():
    return next(a for a in build_parser()._actions if a.dest == "command").choices


def test_every_command_is_there_with_examples_that_parse():
    assert set(commands()) == set(COMMANDS.split())
    for name, parser in commands().items():
        assert "examples:" in parser.epilog, name
        for line in parser.epilog.splitlines()[1:]:
            words = line.split("cords-dp ", 1)[1].split(" >")[0].replace("'optimizer.lr=loguniform(0.01, 1)'", "a=b")
            args = build_parser().parse_args(words.split())
            assert args.command == name


def test_help_imports_nothing_heavy():
    code = "import sys, cords_dp.cli as c\nc.build_parser().format_help()\n" + (
        "print([m for m in ('torch', 'numpy', 'pandas', 'cords', 'dp_accounting', 'matplotlib') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=True)
    assert run.stdout.strip() == "[]"


def test_exit_codes_are_told(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    assert EXIT_CODES in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main(["budget", "--n", "zero"])
    assert end.value.code == 2


def test_run_s_result_as_json_is_json_from_the_first_character_on(tmp_path, capfd):
    arguments = ["run", "--config", str(CONFIGS / "full_dp_digits.py"), "--out", str(tmp_path), "--json"]
    arguments += ["--set", "train_args.num_epochs=2", "--set", "privacy.accountant=rdp"]
    assert main(arguments) == 0
    printed = capfd.readouterr()
    assert json.loads(printed.out) == json.loads((tmp_path / "result.json").read_text())
    assert "INFO" not in printed.err
    assert "step" not in printed.err  # no progress bar


def test_quiet_leaves_log_lines_to_the_file(tmp_path, capfd):
    arguments = ["run", "--config", str(CONFIGS / "full_dp_digits.py"), "--out", str(tmp_path), "--quiet"]
    assert main([*arguments, "--set", "train_args.num_epochs=2", "--set", "privacy.accountant=rdp"]) == 0
    printed = capfd.readouterr()
    assert "INFO" not in printed.out + printed.err
    assert "test accuracy" in printed.out
    (log,) = tmp_path.rglob("*.log")
    assert "Privacy spent" in log.read_text()


def test_verbose_shows_where_an_error_arose(capsys):
    assert main(["account", "no/such/account.json", "--verbose"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert main(["account", "no/such/account.json"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_data_describe_as_json(tmp_path, capsys):
    table = tmp_path / "t.csv"
    table.write_text("age,sex,income\n1,2,3\n")
    assert main(["data", "describe", str(table), "--target", "income", "--range", "age=0:100", "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["to_fill_in"] > 0
    assert "income" in json.dumps(described["schema"])


def test_output_that_nobody_reads_on_is_no_error():
    command = '"$0" -m cords_dp budget --n 5000 --epsilon 3 | head -1; exit ${PIPESTATUS[0]}'
    run = subprocess.run(["bash", "-c", command, sys.executable], capture_output=True, text=True, cwd=REPOSITORY)
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr


def test_without_argcomplete_completion_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    assert main(["completion", "bash"]) == 2
    assert "pip install '.[completion]' in the clone" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_what_a_shell_reads(shell, capsys):
    pytest.importorskip("argcomplete", reason="argcomplete is in the extra completion")
    assert main(["completion", shell]) == 0
    assert "cords-dp" in capsys.readouterr().out


def test_a_shell_is_told_what_may_follow(tmp_path):
    pytest.importorskip("argcomplete", reason="argcomplete is in the extra completion")
    answer = tmp_path / "answer"
    line = "cords-dp va"
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer), "COMP_LINE": line,
             "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}  # fmt: skip
    environment = {**os.environ, **asked}
    subprocess.run([sys.executable, "-m", "cords_dp"], env=environment, cwd=REPOSITORY, check=True)
    assert "validate" in answer.read_text()


def test_a_python_without_the_packages_is_told_where_they_are(capsys, tmp_path, monkeypatch):
    """`python run_experiment.py` in a clone whose .venv is not active used to end in a traceback."""

    def without(package):
        def handler(args):
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)

        return guarded(handler, argparse.Namespace())

    def clone(*names):
        (tmp_path / "cords_dp").mkdir(exist_ok=True)
        monkeypatch.setattr(cords_dp, "__file__", str(tmp_path / "cords_dp" / "__init__.py"))
        for name in names:
            (tmp_path / name).mkdir()
        return without("dotmap"), capsys.readouterr().err

    code, told = clone()
    assert code == 2
    assert told.startswith(f"error: {sys.executable} has no dotmap; run `pip install` with it on the wheel")
    assert "source .venv/bin/activate" in clone(".venv")[1]
    with pytest.raises(ModuleNotFoundError):  # that one is a bug
        without("cords_dp")


def test_what_is_required_is_what_the_package_says():
    tomllib = pytest.importorskip("tomllib")  # since Python 3.11
    listed = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
    imported = {"absl-py": "absl", "pyyaml": "yaml", "pillow": "PIL", "scikit-learn": "sklearn"}
    names = [re.match(r"[\w-]+", line)[0] for line in listed]
    assert {imported.get(name, name.replace("-", "_")) for name in names} == REQUIRED


def test_a_terminal_says_that_it_is_loading_and_a_file_does_not(capsys, monkeypatch):
    with loading(True):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with loading(True):
        pass
    assert capsys.readouterr().err == "loading PyTorch …\r\033[K"
    with loading(False):
        pass
    assert capsys.readouterr().err == ""


def test_a_terminal_that_knows_ascii_only_shows_escapes_and_no_traceback(tmp_path):
    """`account` used to end in a UnicodeEncodeError after it had begun the account."""
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(REPOSITORY)}
    for command in (
        ["-m", "cords_dp", "account", str(tmp_path / "a.account"), "--create", "--epsilon", "10", "--delta", "1e-6"],
        ["-m", "cords_dp", "account", "--help"],
        [str(REPOSITORY / "run_experiment.py"), "--config", "no ε"],
    ):
        run = subprocess.run([sys.executable, *command], capture_output=True, env=environment, check=False)
        assert b"Traceback" not in run.stderr, run.stderr.decode()
        assert b"\\u03b5" in run.stdout + run.stderr
