"""The only module that imports CORDS.

CORDS 0.0.4 imports a few things that no longer exist (``sklearn.datasets.load_boston``, ``torchtext.data``, ``cgi`` on
Python 3.13), and packages that only some of its strategies and examples use: extras of ours, or of a git checkout of
CORDS alone. While CORDS is imported an empty module stands in for each of them. A function of such a module is looked
up when it is called, and fails then if its package is not installed.

Works with the wheel and with a git checkout of CORDS that stands earlier on ``sys.path``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import pkgutil
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets
import torch
from dotmap import DotMap

from cords_dp.errors import ToolkitMissingError
from cords_dp.extras import need

INSTALL_COMMAND = "pip install --no-deps cords==0.0.4"

# Imported by CORDS at module level: gone, or extras that parts of it use which are seldom called.
_OPTIONAL_MODULES = (
    "apricot",
    "asyncore",
    "cgi",
    "datasets",
    "h5py",
    "ray",
    "ray.tune",
    "sentence_transformers",
    "submodlib",
    "torchtext",
    "torchtext.data",
    "transformers",
    "turtle",
    "wandb",
)
_EXTRAS = {"apricot": "submodular", "ray": "ray", "wandb": "wandb"}

# Functions of a checkout that some configs import without calling them.
_CHECKOUT_NAMES = ("generate_image_global_order", "generate_text_global_order")


class _Stub(types.ModuleType):
    """A module in which every public name exists, and is looked up in the real one when it is called."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> _Stub:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Stub(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        package = self.__name__.split(".")[0]
        if package in _EXTRAS:
            need(package, extra=_EXTRAS[package], what=f"this part of CORDS ({self.__name__})")
        try:
            with _undisturbed():
                function = pkgutil.resolve_name(self.__name__)
        except Exception as error:  # not there, or built for another torch
            raise ToolkitMissingError(f"{self.__name__} cannot be used, and this part of CORDS needs it") from error
        return function(*args, **kwargs)

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        """Let a class be derived from one that is not there; whoever makes such an object is told so."""
        return (type(self.__name__.split(".")[-1], (), {"__init__": self.__call__}),)


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
    """Let stubs stand in for optional modules that nobody has imported; leave everything as it was."""
    stubs = {name: _Stub(name) for name in _OPTIONAL_MODULES if name not in sys.modules}
    datasets: Any = sklearn.datasets
    stub_boston = "load_boston" not in vars(datasets)
    if stub_boston:
        datasets.load_boston = None
    sys.modules.update(stubs)
    try:
        with _undisturbed():
            yield list(stubs)
    finally:
        for name, stub in stubs.items():
            if sys.modules.get(name) is stub:
                del sys.modules[name]
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
    """Load CORDS' train loop: ``train_sl.py`` in a checkout, an example in the wheel.

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
    with stubs_for_dead_imports():
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
except RuntimeError as error:  # a torchvision that was built for another torch
    raise ToolkitMissingError(f"CORDS cannot be imported: {error}. Install torch and torchvision together") from error


def load_config_data(path: str) -> DotMap:
    """Read a config file with CORDS' reader; one that parses the command line (CORDS' for MILO) sees an empty one.

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
