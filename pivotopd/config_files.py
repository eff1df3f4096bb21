"""From YAML and ``key.sub=value`` overrides to a configuration, and every mistake explained.

Unknown keys are refused with the nearest known key named; every error is a :class:`ConfigError`.
"""

from __future__ import annotations

import difflib
import json
import reprlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from pivotopd.config import RunConfig
from pivotopd.errors import ConfigError

M = TypeVar("M", bound=BaseModel)

_SEE_KEYS = "see `pivotopd config` for every key, its default and its meaning"
_MEND_YAML = "write it as `key: value` lines, sections indented, and quote text with special characters"
_value_text = reprlib.Repr()
"""Says a value shortly: a few lines of YAML with aliases can stand for gigabytes."""
_value_text.maxstring = _value_text.maxother = 120
_value_text.maxlevel = 3


_KINDS = {
    "dict_type": "a mapping of keys is wanted here",
    "list_type": "a list is wanted here",
    "tuple_type": "a list is wanted here",
    "string_type": "a text is wanted here",
    "int_type": "a whole number is wanted here",
    "int_parsing": "a whole number is wanted here",
    "int_from_float": "a whole number is wanted here",
    "float_type": "a number is wanted here",
    "float_parsing": "a number is wanted here",
    "bool_type": "true or false is wanted here",
    "bool_parsing": "true or false is wanted here",
}
"""What is wanted where a value is of another kind."""
_WORDS = {
    "Value error, ": "",
    "Input should be": "must be",
    "Tuple should": "must",
    "List should": "must",
    "Dictionary should": "must",
    "String should": "must",
    "Keys should be strings": "keys must be texts",
    " after validation": "",
}
"""The checker's words, and ours."""

_CHOICE_KEYS = frozenset({"method.name", "student.kind", "teacher.kind"})
"""Keys that choose what a section is; another choice starts from its own defaults."""
_DEFAULT_CHOICE = {"method": "pivotopd", "student": "tiny", "teacher": "oracle"}
_MAY_HOLD_SECRETS = frozenset({"api_key_variable", "base_url", "uri", "urls"})
"""Keys at which a key or password may stand by mistake: an error does not repeat their value."""


class _OnceLoader(yaml.SafeLoader):
    """Refuses a key that is given twice, of which YAML readers silently keep the last."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)  # before merge keys are resolved: those may be overridden
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key.value!r} is given twice", problem_mark=key.start_mark
                    )
                seen.add((key.tag, key.value))
        return node


def parse_yaml(text: str, *, where: str) -> Any:
    """Return the plain values of a YAML text.

    Raises:
        ConfigError: It is no YAML, gives a key twice, or is nested beyond reason.
    """
    try:
        return yaml.load(text, Loader=_OnceLoader)  # noqa: S506 - a subclass of the safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        at = f"{where}, line {mark.line + 1}, column {mark.column + 1}" if mark else where
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"not valid YAML: {problem}", where=at, mend=_MEND_YAML) from error
    except (yaml.YAMLError, ValueError) as error:  # a date of month 99 is a ValueError of YAML's own reader
        reason = str(error).partition("\n")[0]
        raise ConfigError(f"not valid YAML: {reason}", where=where, mend=_MEND_YAML) from error
    except RecursionError as error:
        raise ConfigError("the YAML is nested too deeply", where=where, mend=_MEND_YAML) from error


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file and apply dotted overrides such as ``recovery.depth=1``.

    Raises:
        ConfigError: The file cannot be read, or a key or value is not acceptable; all problems are named.
    """
    data: dict[str, Any] = {}
    if path is not None:
        data = read_yaml(Path(path))
    for override in _sections_first(overrides):
        _apply(data, override)
    return parse_config(data, where=" ".join([*([str(path)] if path else []), *_shown(overrides)]))


def parse_config(data: Any, *, where: str) -> RunConfig:
    """Validate plain values; see :func:`load_config`."""
    if not isinstance(data, dict):
        raise ConfigError("the configuration is not a mapping of keys", where=where, mend=_MEND_YAML)
    return parse_section(RunConfig, data, where=where, mend=_SEE_KEYS)


def parse_section(model: type[M], data: dict[str, Any], *, where: str, mend: str) -> M:
    """Validate the plain values of a section, such as a whole run or an experiment.

    Raises:
        ConfigError: A key or value is not acceptable; all problems are named.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = [_explain(problem, model) for problem in error.errors()]
        raise ConfigError("; ".join(problems), where=where, mend=mend) from error


def apply_overrides(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """Return a configuration with dotted overrides on top.

    Raises:
        ConfigError: As :func:`load_config`.
    """
    data = config.model_dump(mode="json")
    for override in _sections_first(overrides):
        _apply(data, override)
    return parse_config(data, where=" ".join(_shown(overrides)))


def dump_config(config: RunConfig) -> str:
    """Return the resolved configuration as YAML, every default written out."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping of keys in a YAML file; an empty file is an empty one.

    Raises:
        ConfigError: It cannot be read, or is no YAML mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ConfigError(
            f"cannot read the configuration: {reason}",
            where=str(path),
            mend="give the path of a YAML file in UTF-8",
        ) from error
    data = parse_yaml(text, where=str(path))
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise ConfigError("the configuration is not a mapping of keys", where=str(path), mend=_MEND_YAML)
    return data


def _shown(overrides: Sequence[str]) -> list[str]:
    """Return overrides as an error may repeat them."""
    parts = [(override, *override.partition("=")[:2]) for override in overrides]
    return [
        f"{key}{sign}..." if key.rpartition(".")[2] in _MAY_HOLD_SECRETS else override
        for override, key, sign in parts
    ]


def _sections_first(overrides: Sequence[str]) -> list[str]:
    """Order overrides: a choice or a whole section before single keys, so that it never takes one back."""

    def depth(override: str) -> int:
        key = override.partition("=")[0]
        return 0 if key in _CHOICE_KEYS else key.count(".")

    return sorted(overrides, key=depth)


def _apply(data: dict[str, Any], override: str) -> None:
    """Set ``a.b=value`` in nested dictionaries; the value is read as YAML."""
    key, separator, text = override.partition("=")
    if not separator or not key or any(not part for part in key.split(".")):
        raise ConfigError(f"not an override: {override!r}", where="command line", mend="write key.sub=value")
    value = parse_yaml(text, where=f"value of {key}")
    if isinstance(value, str):
        value = _number(value)
    if key in _CHOICE_KEYS and _other_choice(data, key, value):
        data.pop(key.partition(".")[0])  # another choice starts from its own defaults
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


def _other_choice(data: dict[str, Any], key: str, value: Any) -> bool:
    """Tell whether an override chooses another method, student or teacher than is configured."""
    section, _, tag = key.partition(".")
    kept = data.get(section)
    return isinstance(kept, dict) and kept.get(tag, _DEFAULT_CHOICE[section]) != value


def _number(text: str) -> str | float:
    """Read ``1e-4`` as a number, which YAML 1.1 takes for text."""
    try:
        return float(text) if any(character.isdigit() for character in text) else text
    except ValueError:
        return text


def _explain(problem: Any, model: type[BaseModel]) -> str:
    """Say one validation problem in words, with the nearest known key for an unknown one."""
    location = [str(part) for part in problem["loc"]]
    choice = location[1] if len(location) > 1 and location[1] in _choices() else None
    shown = ".".join(location if choice is None else [location[0], *location[2:]])
    kind, value = problem["type"], _value_text.repr(problem["input"])
    if kind == "extra_forbidden":
        return _explain_unknown(location, choice, shown, model)
    if kind == "union_tag_invalid":
        tag, known = problem["ctx"]["tag"], problem["ctx"]["expected_tags"]
        near = difflib.get_close_matches(tag, [one.strip("' ") for one in known.split(",")], n=1)
        return f"{shown}: {tag!r} is not one of {known}" + (f"; did you mean {near[0]!r}?" if near else "")
    if kind in {"model_type", "model_attributes_type", "union_tag_not_found"}:
        return f"{shown}: a section of keys is wanted here (got {value})"
    if kind == "missing":
        return f"{shown} has no default and is not given"
    secret = bool(location) and location[-1] in _MAY_HOLD_SECRETS
    return f"{shown or 'a key'}: {_in_words(problem)}" + ("" if secret else f" (got {value})")


def _in_words(problem: Any) -> str:
    """Say what is wrong with a value in the words of a configuration file, not of Python or its checker."""
    kind, said = problem["type"], str(problem["msg"])
    if kind in _KINDS:
        return _KINDS[kind]
    for words, ours in _WORDS.items():
        said = said.replace(words, ours)
    return said


def _explain_unknown(location: list[str], choice: str | None, shown: str, model: type[BaseModel]) -> str:
    """Say that a key is unknown, with the nearest known one."""
    known = list(_keys_beside(location, model))
    near = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
    if not near:
        same = [key for key in _all_keys(model) if key.rsplit(".", 1)[-1] == location[-1]]
        near = sorted(same, key=lambda key: key.partition(".")[0] != location[0])[:1]
    if near == [shown]:
        choices = _models_of(model.model_fields[location[0]].annotation)
        owners = [_tag_of(one) for one in choices if location[-1] in one.model_fields]
        return f"{choice!r} has no key {shown!r}, only {', '.join(known)}; {' and '.join(owners)} has it"
    hint = f"; did you mean {near[0]!r}?" if near else f"; known keys: {', '.join(known)}"
    return f"unknown key {shown!r}{hint}"


def _choices() -> set[str]:
    """Return the names of the sections that a key may choose between."""
    keys = (RunConfig.model_fields[key].annotation for key in _DEFAULT_CHOICE)
    return {_tag_of(model) for annotation in keys for model in _models_of(annotation)}


def _models_of(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the section classes inside an annotation such as ``A | B``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _models_of(inner)


def _keys_beside(location: list[str], root: type[BaseModel]) -> Iterator[str]:
    """Yield the keys that would have been accepted at a location."""
    models: list[type[BaseModel]] = [root]
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


def _as_yaml(value: object) -> str:
    """Return a default as it is written in a file, where Python writes it otherwise."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def describe_keys() -> list[tuple[str, str, str]]:
    """Return (dotted key, default, meaning) of every leaf key, for the command line's help."""
    rows: list[tuple[str, str, str]] = []

    def walk(model: type[BaseModel], prefix: str) -> None:
        for name, info in model.model_fields.items():
            inner = list(_models_of(info.annotation))
            if inner and get_origin(info.annotation) is dict:
                walk(inner[0], f"{prefix}{name}.STAGE.")
            elif inner:
                if info.default is None:  # without this section unless one of its keys is given
                    rows.append((prefix + name, "null", (info.description or "").strip()))
                for section in inner:
                    tag = f" [{_tag_of(section)}]" if len(inner) > 1 else ""
                    walk(section, f"{prefix}{name}{tag}.")
            else:
                value = "required" if info.is_required() else info.get_default(call_default_factory=True)
                rows.append((prefix + name, _as_yaml(value), (info.description or "").strip()))

    walk(RunConfig, "")
    return rows
