"""CORDS' config files: a ``.py`` file with a dict called ``config``, or YAML; overrides; plain copies of a config."""

from __future__ import annotations

import ast
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dotmap import DotMap

from cords_dp.config.settings import KNOWN_KEYS
from cords_dp.config.values import suggest
from cords_dp.errors import ConfigError, ConfigFileError


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> DotMap:
    """Load a CORDS config file and apply ``a.b=c`` overrides."""
    from cords_dp.toolkit import load_config_data

    path = Path(path).expanduser()
    if not path.is_file():
        raise ConfigFileError(f"no config file {str(path)!r}; configs/ holds ready-made ones")
    if path.suffix not in (".py", ".yaml", ".yml"):
        raise ConfigFileError(f"{path.name}: a config is a .py file with a dict `config`, or .yaml")
    try:
        cfg = _load_yml(path) if path.suffix == ".yml" else load_config_data(str(path))
    except AttributeError as error:
        raise ConfigFileError(f"{path.name} defines no dict called `config`") from error
    except Exception as error:
        raise ConfigFileError(f"{path.name} cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(cfg, Mapping):
        raise ConfigFileError(f"{path.name} holds no config: its top level must be a dict of sections")
    for override in overrides:
        apply_override(cfg, override)
    return cfg


def _load_yml(path: Path) -> DotMap:
    """CORDS accepts ``.yml`` and then forgets to read it."""
    import yaml

    return DotMap(yaml.safe_load(path.read_text()))


def apply_override(cfg: DotMap, override: str) -> None:
    """Apply one ``section.key=value``; the value is a Python literal or, failing that, a string."""
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError("--set", override, "write it as section.key=value, for instance privacy.epsilon=8")
    *sections, leaf = key.strip().split(".")
    target = cfg
    for depth, section in enumerate(sections):
        if section not in target:
            if section not in KNOWN_KEYS or depth:
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


def frozen_copy(value: Any) -> Any:
    """A read-only copy of a config. Live objects (a collate function, say) stay the same objects."""
    if isinstance(value, Mapping):
        return MappingProxyType({str(key): frozen_copy(part) for key, part in value.items()})
    return tuple(value) if isinstance(value, list) else value


def thawed_copy(value: Any) -> Any:
    """A copy that CORDS may write into."""
    return {key: thawed_copy(part) for key, part in value.items()} if isinstance(value, Mapping) else value


def to_plain(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """A config as plain dicts and lists, without live objects, ready for YAML or JSON."""
    return {str(key): _plain_value(value) for key, value in cfg.items()}


def _plain_value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain_value(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_value(part) for part in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return getattr(value, "__name__", type(value).__name__)


def config_digest(cfg: Mapping[str, Any]) -> str:
    """A hash of what decides the gradients: one seed must not give two different trainings the same noise."""
    plain = to_plain(cfg)
    plain.get("dataset", {}).pop("datadir", None)
    decisive = {key: plain.get(key) for key in ("dataset", "model", "loss", "optimizer", "scheduler")}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]
