"""No code of the package can run what a file says: by the syntax tree of every file, not by the cases we thought of.

tests/faults/test_pickles.py hands malicious files to what is read today; this one refuses the readers themselves.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from conftest import REPOSITORY

FILES = [*sorted((REPOSITORY / "cords_dp").rglob("*.py")), REPOSITORY / "run_experiment.py",
         *sorted((REPOSITORY / "tools").glob("*.py"))]  # fmt: skip
MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve", "runpy"}
CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.unsafe_load", "yaml.full_load",
    "yaml.load_all", "yaml.unsafe_load_all", "pandas.read_pickle", "torch.jit.load", "torch.hub.load", "torch.package",
    "numpy.lib.npyio.NpzFile",
}  # fmt: skip
# a keyword with which a call is safe, said aloud at every call: defaults differ between versions
SAFE = {"torch.load": ("weights_only", True), "numpy.load": ("allow_pickle", False)}
METHODS = {"exec_module", "read_pickle"}  # whatever the object is called
# file and what it does: why that is no way in
ALLOWED = {
    ("config/files.py", "exec_module"): "a config in Python is a program of the user's own; YAML is for others' files",
    ("cords.py", "exec_module"): "the installed CORDS",
    ("data/fetch.py", "torchvision.datasets"): "CIFAR's batches are pickles; torchvision compares the MD5 of each",
}


def dangers(code: str) -> list[str]:
    """Name what could run code that a file brings along."""
    tree = ast.parse(code)
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.asname or a.name.partition(".")[0]: a.name if a.asname else a.name.partition(".")[0]
                      for a in node.names}  # fmt: skip
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    found = [name for name in names.values() if name.split(".")[0] in MODULES]
    found += [a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names
              if a.name.split(".")[0] in MODULES]  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _called(node, names) == "torchvision.datasets":
            found.append("torchvision.datasets")
        if not isinstance(node, ast.Call):
            continue
        name = _called(node.func, names)
        keywords = {k.arg: k.value for k in node.keywords}
        if name in SAFE:
            key, value = SAFE[name]
            given = keywords.get(key)
            if not (isinstance(given, ast.Constant) and given.value is value):
                found.append(f"{name} without {key}={value}")
        elif name == "yaml.load":
            loader = node.args[1] if len(node.args) > 1 else keywords.get("Loader")
            if not _is_safe_loader(loader, tree):
                found.append("yaml.load without a safe loader")
        elif name in CALLS or name.split(".")[-1] in METHODS:
            found.append(name if name in CALLS else name.split(".")[-1])
        given = keywords.get("shell")
        if name.startswith("subprocess.") and given is not None and not _is_false(given):
            found.append("shell")
        given = keywords.get("trust_remote_code")
        if given is not None and not _is_false(given):
            found.append("trust_remote_code")
    return found


def _called(function: ast.expr, names: dict[str, str]) -> str:
    """What is called, by its full name, whatever it was imported as."""
    if isinstance(function, ast.Name):
        return names.get(function.id, function.id)
    if isinstance(function, ast.Attribute):
        return f"{_called(function.value, names)}.{function.attr}"
    return ""


def _is_false(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is False


def _is_safe_loader(loader: ast.expr | None, tree: ast.AST) -> bool:
    if isinstance(loader, ast.Name):
        assigned = [n.value for n in ast.walk(tree) if isinstance(n, ast.Assign)
                    and any(isinstance(t, ast.Name) and t.id == loader.id for t in n.targets)]  # fmt: skip
        return bool(assigned) and all(_is_safe_loader(value, tree) for value in assigned)
    if isinstance(loader, ast.Call) and ast.unparse(loader.func) == "getattr":  # the fast one, where it was built
        wanted = loader.args[1]
        return isinstance(wanted, ast.Constant) and wanted.value == "CSafeLoader" and _is_safe_loader(
            loader.args[2], tree)  # fmt: skip
    return isinstance(loader, ast.Attribute) and loader.attr in ("SafeLoader", "CSafeLoader")


@pytest.mark.parametrize(
    "code",
    [
        "import pickle", "import pickle as p", "from pickle import loads", "import joblib", "from dill import load",
        "import torch\ntorch.load(f)", "import torch\ntorch.load(f, weights_only=False)",
        "import torch\ntorch.load(f, weights_only=safe)", "from torch import load as read\nread(f)",
        "import numpy as np\nnp.load(f)", "import numpy as np\nnp.load(f, allow_pickle=True)",
        "from numpy import load\nload(f)", "import yaml\nyaml.load(f)", "import yaml\nyaml.load(f, yaml.Loader)",
        "import yaml\nyaml.load(f, Loader=yaml.UnsafeLoader)", "import yaml\nyaml.unsafe_load(f)",
        "import yaml\nx = yaml.FullLoader\nyaml.load(f, Loader=x)", "from yaml import load\nload(f)",
        "eval(text)", "exec(text)", "__import__(name)", "compile(a, b, c)", "import pandas as pd\npd.read_pickle(f)",
        "spec.loader.exec_module(m)", "import os\nos.system(x)", "import subprocess\nsubprocess.run(x, shell=True)",
        "from datasets import load_dataset\nload_dataset(x, trust_remote_code=True)", "import xml.x, marshal.y",
        "import torchvision\nd = torchvision.datasets.CIFAR10", "import torch.hub\ntorch.hub.load(x)",
    ],
)  # fmt: skip
def test_it_would_be_noticed(code):
    assert dangers(code)


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.load(f, weights_only=True)", "import numpy as np\nnp.load(f, allow_pickle=False)",
        "import yaml\nyaml.safe_load(f)", "import yaml\nyaml.load(f, Loader=yaml.SafeLoader)",
        "import yaml\nx = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)\nyaml.load(f, Loader=x)",
        "import json\njson.load(f)", "model.eval()", "import ast\nast.literal_eval(x)", "import re\nre.compile(x)",
        "import subprocess\nsubprocess.run([x])",
    ],
)  # fmt: skip
def test_what_is_safe_passes(code):
    assert dangers(code) == []


def test_no_file_of_the_package_can_run_what_a_file_brings_along():
    assert len(FILES) > 200
    found = {(_name(path), danger) for path in FILES for danger in dangers(path.read_text())}
    assert found == set(ALLOWED), "what is new, or is listed here and gone"


def _name(path: Path) -> str:
    inside = REPOSITORY / "cords_dp"
    return path.relative_to(inside if path.is_relative_to(inside) else REPOSITORY).as_posix()
