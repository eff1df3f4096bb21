"""From YAML and ``key.sub=value`` overrides to a configuration, and every mistake explained.

Unknown keys are refused with the nearest known key named; every error is a :class:`ConfigError`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from pivotopd.config import RunConfig
from pivotopd.errors import ConfigError


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file and apply dotted overrides such as ``recovery.depth=1``.

    Raises:
        ConfigError: The file cannot be read, or a key or value is not acceptable; all problems are named.
    """
    data: dict[str, Any] = {}
    if path is not None:
        data = _read_yaml(Path(path))
    for override in overrides:
        _apply(data, override)
    return parse_config(data, where=str(path) if path else "overrides")


def parse_config(data: dict[str, Any], *, where: str) -> RunConfig:
    """Validate a plain dictionary; see :func:`load_config`."""
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        problems = [_explain(problem, data) for problem in error.errors()]
        raise ConfigError(
            "; ".join(problems),
            where=where,
            mend="see `pivotopd config` for every key, its default and its meaning",
        ) from error


def apply_overrides(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """Return a configuration with dotted overrides on top.

    Raises:
        ConfigError: As :func:`load_config`.
    """
    data = config.model_dump(mode="json")
    for override in overrides:
        _apply(data, override)
    return parse_config(data, where="overrides")


def dump_config(config: RunConfig) -> str:
    """Return the resolved configuration as YAML, every default written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the configuration: {error}", where=str(path), mend="check the path"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"not valid YAML: {error}", where=str(path)) from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError("the configuration is not a mapping of keys", where=str(path))
    return data


def _apply(data: dict[str, Any], override: str) -> None:
    """Set ``a.b=value`` in nested dictionaries; the value is read as YAML."""
    key, separator, text = override.partition("=")
    if not separator or not key or any(not part for part in key.split(".")):
        raise ConfigError(f"not an override: {override!r}", mend="write key.sub=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"the value of {key} is not valid YAML: {error}", mend="quote it") from error
    if isinstance(value, str):
        value = _number(value)
    *parents, last = key.split(".")
    node = data
    for part in parents:
        child = node.get(part)
        if part == "method" and isinstance(child, str):
            child = {"name": child}
        node[part] = child = child if isinstance(child, dict) else {}
        node = child
    kept = node.get(last)
    if key == "method" and isinstance(kept, dict) and kept.get("name", "pivotopd") == value:
        return  # naming the method that is configured keeps its settings
    node[last] = value


def _number(text: str) -> str | float:
    """Read ``1e-4`` as a number, which YAML 1.1 takes for text."""
    try:
        return float(text) if any(character.isdigit() for character in text) else text
    except ValueError:
        return text


def _explain(problem: Any, data: dict[str, Any]) -> str:
    """Say one validation problem in words, with the nearest known key for an unknown one."""
    location = [str(part) for part in problem["loc"]]
    tags = {
        _tag_of(model)
        for key in ("method", "student")
        for model in _models_of(RunConfig.model_fields[key].annotation)
    }
    shown = ".".join(part for index, part in enumerate(location) if not (index == 1 and part in tags))
    if problem["type"] == "extra_forbidden":
        known = list(_keys_beside(location))
        near = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
        if not near:
            near = [key for key in _all_keys(RunConfig) if key.rsplit(".", 1)[-1] == location[-1]][:1]
        hint = f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(known)}"
        return f"unknown key {shown!r}{hint}"
    if problem["type"] == "union_tag_invalid":
        return f"{shown}: {problem['ctx']['tag']!r} is not one of {problem['ctx']['expected_tags']}"
    del data
    return f"{shown}: {problem['msg']} (got {problem['input']!r})"


def _models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the section classes inside an annotation such as ``A | B``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _models_of(inner)


def _keys_beside(location: list[str]) -> Iterator[str]:
    """Yield the keys that would have been accepted at a location."""
    models: list[type[BaseModel]] = [RunConfig]
    for part in location[:-1]:
        inner = [
            m
            for model in models
            if part in model.model_fields
            for m in _models_of(model.model_fields[part].annotation)
        ]
        models = inner or [m for m in models if _tag_of(m) == part] or models
    for model in models:
        yield from model.model_fields


def _tag_of(model: type[BaseModel]) -> Any:
    for name in ("name", "kind"):
        if name in model.model_fields:
            return model.model_fields[name].default
    return None


def _all_keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of a section."""
    for name, info in model.model_fields.items():
        yield prefix + name
        for inner in _models_of(info.annotation):
            yield from _all_keys(inner, f"{prefix}{name}.")


def describe_keys() -> list[tuple[str, str, str]]:
    """Return (dotted key, default, meaning) of every leaf key, for the command line's help."""
    rows: list[tuple[str, str, str]] = []

    def walk(model: type[BaseModel], prefix: str) -> None:
        for name, info in model.model_fields.items():
            inner = list(_models_of(info.annotation))
            if inner:
                for section in inner:
                    tag = f" [{_tag_of(section)}]" if len(inner) > 1 else ""
                    walk(section, f"{prefix}{name}{tag}.")
            else:
                default = "required" if info.is_required() else str(info.default)
                rows.append((prefix + name, default, (info.description or "").strip()))

    walk(RunConfig, "")
    return rows
