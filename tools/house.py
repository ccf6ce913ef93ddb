"""How large the house is, and how far one has to walk in it.

    python tools/house.py [--config configs/glister_dp_digits.py] [--json]

lines, files: of the package. walk: files of the package in which something happens during one run, from its config to
privacy.md: what a reader opens who follows it. fan-out: of how many other modules of ours a module imports something;
the largest are named. A module that defines nothing (`extend`) is a list of names, which no reader follows: its fan-out
is not counted. Run it from the repository.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import io
import json
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGE = Path("cords_dp")


def sources() -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if "configs" not in path.parts]


def fan_out(path: Path) -> set[str]:
    """The modules of ours that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE.name:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE.name}
    return found


def defines(path: Path) -> bool:
    """Does a file define a function or a class?"""
    return any(isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in ast.walk(ast.parse(path.read_text())))


def walk(config: str) -> list[str]:
    """The files in which a function ran during one run."""
    root, seen = str(PACKAGE.resolve()), set()

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # no body of a module or class
            seen.add(frame.f_code.co_filename)

    sys.path.insert(0, str(Path.cwd()))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        sys.setprofile(watch)
        threading.setprofile(watch)
        try:
            from cords_dp import load_config, run_experiment

            run_experiment(load_config(config), Path(folder) / "run", progress=False)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return sorted(str(Path(name).relative_to(root)) for name in seen if name.startswith(root))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="configs/glister_dp_digits.py")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--names", action="store_true", help="name the files of the walk")
    args = parser.parse_args()
    files = sources()
    wide = sorted(((len(fan_out(path)), str(path)) for path in files if defines(path)), reverse=True)
    walked = walk(args.config)
    found = {
        "files": len(files),
        "lines": sum(len(path.read_text().splitlines()) for path in files),
        "walk": len(walked),
        "over 15 imports of ours": sum(count > 15 for count, _ in wide),
        "widest": [f"{name} {count}" for count, name in wide[:5]],
    }
    if args.json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{key}: {value}" for key, value in found.items()))
    if args.names:
        print("\n".join(walked))


if __name__ == "__main__":
    main()
