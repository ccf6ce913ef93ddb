"""The only module that imports CORDS.

CORDS 0.0.4 imports a few things that no longer exist (``sklearn.datasets.load_boston``,
``torchtext.data``, ``cgi`` on Python 3.13) and, in a git checkout, packages that only its text
examples use. None of them is needed here, so each one that is missing is replaced by an empty stub
while CORDS is imported, and taken away again afterwards.

What it imports at once and needs seldom, if at all, takes seconds to load (apricot compiles its functions, ray starts
up): such a module is imported when something in it is used. A name that CORDS imports from one (scikit-learn's
``StandardScaler``) is looked up when it is called.

Works with the wheel and with a git checkout of CORDS that stands earlier on ``sys.path``.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dotmap import DotMap

from cords_dp.errors import ToolkitMissingError
from cords_dp.extras import need
from cords_dp.late import LateName, standing_in
from cords_dp.lazy_compiler import compiler_deferred, free_optimizers_of_compiler

INSTALL_COMMAND = "pip install --no-deps cords==0.0.4"

# Imported by CORDS at module level, used only by parts of it that cords_dp does not call.
_OPTIONAL_MODULES = (
    "asyncore",
    "cgi",
    "datasets",
    "h5py",
    "sentence_transformers",
    "submodlib",
    "torchtext",
    "torchtext.data",
    "transformers",
    "turtle",
    "wandb",
)

# Slow to import, and used by a few of CORDS' strategies and datasets only, or by nothing that is called here.
_DEFERRED = (
    "apricot",
    "matplotlib",
    "matplotlib.pyplot",
    "pandas",
    "ray",
    "ray.tune",
    "sklearn",
    "sklearn.datasets",
    "sklearn.linear_model",
    "sklearn.model_selection",
    "sklearn.preprocessing",
    "torchvision",
    "torchvision.datasets",
    "torchvision.transforms",
)
_DEFERRED_EXTRAS = {"apricot": "submodular", "ray": "ray"}

# Functions of a checkout that some configs import without calling them.
_CHECKOUT_NAMES = ("generate_image_global_order", "generate_text_global_order")


class _Stub(types.ModuleType):
    """A module in which every public name exists and fails only when it is called."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"

        def missing(*_: object, **__: object) -> None:
            raise ToolkitMissingError(f"{full} is not installed; this part of CORDS needs it")

        return missing


class _Deferred(types.ModuleType):
    """A module that is imported when a name in it is first used; one that CORDS imports waits until it is called."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        if f"{self.__name__}.{name}" in _DEFERRED:
            return _Deferred(f"{self.__name__}.{name}")
        if sys.modules.get(self.__name__) is self:
            return LateName(self.__name__, name, _imported)
        return getattr(_imported(self.__name__), name)


def _imported(module: str) -> types.ModuleType:
    package = module.split(".")[0]
    need(package, extra=_DEFERRED_EXTRAS.get(package, package), what=f"this part of CORDS ({module})")
    with _undisturbed(), compiler_deferred():
        return importlib.import_module(module)


# Present on many machines and yet not importable: a binary built for another torch, no Tk.
_OFTEN_BROKEN = ("torchtext", "torchtext.data", "turtle")


def _is_missing(name: str) -> bool:
    if name in sys.modules:
        return False
    try:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # nothing, or a folder of that name that happens to be on the path
            return True
        if name in _OFTEN_BROKEN:
            importlib.import_module(name)
    except Exception:  # a broken binary raises OSError, not ImportError
        return True
    return False


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Take back what an import does to the whole process."""
    float_errors, threads = np.geterr(), torch.get_num_threads()
    try:
        yield
    finally:
        np.seterr(**float_errors)  # CORDS makes every underflow in the process an exception
        torch.set_num_threads(threads)  # numba sets all of OpenMP to as many threads as there are cores


@contextlib.contextmanager
def stubs_for_dead_imports() -> Iterator[list[str]]:
    """Stub what is missing, yield the stubbed names, leave everything as it was."""
    datasets: Any = sys.modules.get("sklearn.datasets")
    stubs = {name: _Stub(name) for name in _OPTIONAL_MODULES if _is_missing(name)}
    stub_boston = datasets is not None and "load_boston" not in vars(datasets)
    if stub_boston:
        datasets.load_boston = None
    try:
        with _undisturbed(), standing_in(stubs):
            yield list(stubs)
    finally:
        if stub_boston:
            del datasets.load_boston


def _load_file(name: str, path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _train_module(cords_root: Path) -> types.ModuleType:
    """CORDS' train loop: ``train_sl.py`` in a checkout, an example in the wheel.

    Loaded by path, because ``examples`` is a name that any project may have on its path.
    """
    checkout = cords_root / "train_sl.py"
    wheel = cords_root / "examples/HPO/image_classification/python_code/vision_train_sl.py"
    for path in (checkout, wheel):
        if path.is_file():
            return _load_file("cords_dp._cords_train_loop", path)
    raise ToolkitMissingError(
        f"the CORDS found has no train loop that cords_dp knows; install it with: {INSTALL_COMMAND}"
    )


try:
    _slow = {name: _Deferred(name) for name in _DEFERRED if name not in sys.modules}
    free_optimizers_of_compiler()
    with stubs_for_dead_imports(), standing_in(_slow):
        import cords
        from cords.selectionstrategies.SL import GLISTERStrategy
        from cords.utils import config_utils
        from cords.utils import models as cords_models
        from cords.utils.data import data_utils
        from cords.utils.data.data_utils import WeightedSubset
        from cords.utils.data.dataloader.SL import adaptive, nonadaptive
        from cords.utils.data.datasets.SL import gen_dataset

        cords_root = Path(cords.__file__).resolve().parent.parent
        train_module = _train_module(cords_root)
except ImportError as error:
    if isinstance(error, ToolkitMissingError):
        raise
    missing = (error.name or "").split(".")[0]
    hint = INSTALL_COMMAND if missing == "cords" else f"pip install {missing}"
    raise ToolkitMissingError(f"cords_dp needs {missing or error}. Install it with: {hint}") from error


def load_config_data(path: str) -> DotMap:
    """CORDS' reader of config files. A config that parses the command line, as CORDS' for MILO do, sees an empty one.

    Names that only a checkout's ``data_utils`` has are there while it is read, and fail when they are called.
    """
    missing = [name for name in _CHECKOUT_NAMES if not hasattr(data_utils, name)]
    for name in missing:
        setattr(data_utils, name, getattr(_Stub("cords.utils.data.data_utils"), name))
    arguments, sys.argv = sys.argv, [path]
    try:
        with stubs_for_dead_imports():
            return config_utils.load_config_data(path)
    finally:
        sys.argv = arguments
        for name in missing:
            delattr(data_utils, name)


TrainClassifier = train_module.TrainClassifier
GLISTERDataLoader = adaptive.GLISTERDataLoader
RandomDataLoader = adaptive.RandomDataLoader
IS_CHECKOUT = (cords_root / "train_sl.py").is_file()

__all__ = [
    "INSTALL_COMMAND",
    "IS_CHECKOUT",
    "GLISTERDataLoader",
    "GLISTERStrategy",
    "RandomDataLoader",
    "TrainClassifier",
    "WeightedSubset",
    "adaptive",
    "cords_models",
    "gen_dataset",
    "load_config_data",
    "nonadaptive",
    "stubs_for_dead_imports",
]
