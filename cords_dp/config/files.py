"""CORDS' config files: a ``.py`` file with a dict called ``config``, or YAML; overrides; plain copies of a config."""

from __future__ import annotations

import ast
import copy
import hashlib
import importlib.util
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from dotmap import DotMap

from cords_dp.config.keys import KEYS
from cords_dp.config.values import suggest
from cords_dp.errors import ConfigError, ConfigFileError

_MOST_VALUES = 100_000
_DEEPEST = 10
READY_MADE = Path(__file__).resolve().parents[1] / "configs"


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> DotMap:
    """Load a CORDS config file and apply ``a.b=c`` overrides.

    Where there is no such file, ``configs/NAME.py`` and plain ``NAME`` mean the ready-made one of that name.
    """
    path = _file(Path(path).expanduser())
    if path.suffix not in (".py", ".yaml", ".yml"):
        raise ConfigFileError(f"{path.name}: a config is a .py file with a dict `config`, or .yaml")
    try:
        given = _read_yaml(path) if path.suffix in (".yaml", ".yml") else _read_python(path)
        if not isinstance(given, Mapping) or not given:  # a DotMap of anything but a dict is empty
            raise ConfigFileError(f"{path.name} holds no config: its top level must be a dict of sections")
        cfg = DotMap(given)
    except ConfigFileError:
        raise
    except AttributeError as error:
        raise ConfigFileError(f"{path.name} defines no dict called `config`") from error
    except SystemExit as error:  # a script that was meant to be run
        raise ConfigFileError(f"{path.name} ends the program ({error.code!r}) instead of defining `config`") from error
    except Exception as error:
        raise ConfigFileError(f"{path.name} cannot be read: {type(error).__name__}: {error}") from error
    for override in overrides:
        apply_override(cfg, override)
    return cfg


def _file(path: Path) -> Path:
    """Find the file that is meant: one of the user's, or one of the ready-made configs, which come with the package."""
    if path.is_file():
        return path
    if not path.is_absolute() and ".." not in path.parts:
        inside = READY_MADE.joinpath(*(path.parts[1:] if path.parts[:1] == ("configs",) else path.parts))
        for candidate in (inside, inside.with_name(f"{inside.name}.py")):
            if candidate.is_file():
                return candidate
    names = ", ".join(sorted(p.stem for p in READY_MADE.glob("*.py") if p.stem.endswith("digits")))
    raise ConfigFileError(f"no config file {str(path)!r}; ready-made ones are those of {READY_MADE}, such as {names}")


def _read_python(path: Path) -> Any:
    """Read what the file calls ``config``. CORDS, which takes seconds, reads files that import other packages."""
    if _imports(path) - {"cords_dp", "__future__"}:
        from cords_dp.cords import load_config_data

        return load_config_data(str(path))
    spec = importlib.util.spec_from_file_location("config", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return copy.deepcopy(module.config)


def _imports(path: Path) -> set[str]:
    """Return the packages that a Python file imports, by name."""
    names = [
        alias.name if isinstance(node, ast.Import) else node.module or ""
        for node in ast.walk(ast.parse(path.read_bytes(), str(path)))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    ]
    return {name.partition(".")[0] for name in names}


def _read_yaml(path: Path) -> Any:
    """Read plain values only. CORDS' own reader knows tags that build Python objects, and forgets to read ``.yml``."""
    import yaml

    given = yaml.safe_load(path.read_text())
    _refuse_sprawl(given, path.name)
    return given


def _refuse_sprawl(given: Any, name: str) -> None:
    """Refuse anchors that let a short file stand for a billion values, or for itself."""
    level, seen = [given], 0
    while level and seen <= _MOST_VALUES:
        seen += len(level)
        level = [
            part
            for value in level[: _MOST_VALUES + 1]
            if isinstance(value, (dict, list, tuple))
            for part in (value.values() if isinstance(value, dict) else value)
        ]
    if level:
        raise ConfigFileError(f"{name} holds more than {_MOST_VALUES} values: that is no config")


def apply_override(cfg: DotMap, override: str) -> None:
    """Apply one ``section.key=value``; the value is a Python literal or, failing that, a string."""
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError("--set", override, "write it as section.key=value, for instance privacy.epsilon=8")
    *sections, leaf = key.strip().split(".")
    target = cfg
    for depth, section in enumerate(sections):
        if section not in target:
            if section not in KEYS or depth:
                raise ConfigError(".".join(sections), text, suggest(section, target.keys()))
            target[section] = DotMap()
        target = target[section]
        if not isinstance(target, Mapping):
            raise ConfigError(".".join(sections), target, "is a value, not a section")
    target[leaf] = _parse_value(text)


def _parse_value(text: str) -> Any:
    special = {"inf": math.inf, "true": True, "false": False, "none": None}
    if text.lower() in special:
        return special[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def given_copy(cfg: Any) -> Mapping[str, Any]:
    """Return a read-only copy of what a config says.

    Empty dicts inside a section are left out: reading a key that is not there makes a DotMap put one there.
    """
    if not isinstance(cfg, Mapping):
        raise ConfigError("config", cfg, "a config is a dict of sections; see configs/ for complete examples")
    return MappingProxyType({str(key): _given(part, str(key), depth=1) for key, part in cfg.items()})


def _given(value: Any, name: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ConfigError(name, "...", f"has more than {_DEEPEST} levels: that is no config")
    if isinstance(value, Mapping):
        parts = {key: part for key, part in value.items() if not (isinstance(part, Mapping) and not part)}
        return MappingProxyType({str(key): _given(part, f"{name}.{key}", depth + 1) for key, part in parts.items()})
    return frozen_copy(value)


def frozen_copy(value: Any) -> Any:
    """Return a read-only copy of a config. Live objects (a collate function, say) stay the same objects."""
    if isinstance(value, Mapping):
        return MappingProxyType({str(key): frozen_copy(part) for key, part in value.items()})
    return tuple(_python(part) for part in value) if isinstance(value, list) else _python(value)


def _python(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value  # no file format knows numpy's numbers


def thawed_copy(value: Any) -> Any:
    """Return a copy that CORDS may write into."""
    return {key: thawed_copy(part) for key, part in value.items()} if isinstance(value, Mapping) else value


def to_plain(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config as plain dicts and lists, without live objects, ready for YAML or JSON."""
    return {str(key): _plain_value(value) for key, value in cfg.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain_value(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_value(part) for part in value]
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):  # of a subclass, such as numpy's floats, YAML knows nothing
        if isinstance(value, kind):
            return kind(value)
    return getattr(value, "__name__", type(value).__name__)


def config_digest(cfg: Mapping[str, Any]) -> str:
    """Hash what decides the gradients: one seed must not give two different trainings the same noise."""
    plain = to_plain(cfg)
    (plain.get("dataset") or {}).pop("datadir", None)
    decisive = {key: plain.get(key) for key in ("dataset", "model", "loss", "optimizer", "scheduler")}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]
