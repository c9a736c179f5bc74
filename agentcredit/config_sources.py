"""Where a run's configuration comes from, and how sources are merged.

Weakest first: the model's defaults, the environment's, model's and method's presets, TOML files in the order given,
``AGENTCREDIT_*`` variables, ``--set`` and the named flags. Every value keeps the name of its source, so that a mistake is
answered with the place where it was made.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agentcredit import presets
from agentcredit.config import RunConfig
from agentcredit.config_keys import (
    FREE_TABLE,
    did_you_mean,
    is_known,
    is_number,
    is_section,
    is_textual,
    keys,
    not_allowed,
    unknown_key,
)
from agentcredit.errors import MissingError, UsageError

PREFIX = "AGENTCREDIT_"
_RESERVED = frozenset({"AGENTCREDIT_HOME", "AGENTCREDIT_DEBUG", "AGENTCREDIT_SHARED_DATA"})
_RESERVED_SUFFIX = "_PYTHON"  # AGENTCREDIT_ALFWORLD_PYTHON: an environment's interpreter


@dataclass(frozen=True)
class Resolved:
    """A configuration, and for every key that is not a plain default the source it came from."""

    config: RunConfig
    origins: Mapping[str, str]

    def origin(self, key: str) -> str:
        """Where the value of ``key`` came from."""
        return self.origins.get(key, "default")

    @property
    def given(self) -> frozenset[str]:
        """Keys that a file, a variable or a flag gave, which no default may change."""
        return frozenset(key for key, origin in self.origins.items() if not origin.startswith("default of "))


@dataclass(frozen=True)
class _Value:
    value: Any
    origin: str
    text: str | None = None
    """What was typed, where the source is text (``--set``, variables): a field of type string takes it as it stands."""


def resolve(
    files: Sequence[Path] = (),
    environ: Mapping[str, str] | None = None,
    sets: Sequence[str] = (),
    flags: Mapping[str, tuple[Any, str]] | None = None,
) -> Resolved:
    """Merges all sources into one validated configuration.

    Args:
        files: TOML files, later ones stronger.
        environ: the process's variables; ``AGENTCREDIT_ENV__NAME=alfworld`` sets ``env.name``.
        sets: ``key=value`` of ``--set``; the value is TOML, and a bare word is a string.
        flags: full key to (value, the flag's own name), for flags that were given.

    Raises:
        UsageError: an unknown key, a value of the wrong type or out of range, a malformed file or ``--set``.
        MissingError: a file that does not exist.
    """
    given: dict[str, _Value] = {}
    for path in files:
        given.update(_from_file(path))
    given.update(_from_environ(environ or {}))
    for item in sets:
        given.update(_from_set(item))
    given.update({key: _Value(value, origin) for key, (value, origin) in (flags or {}).items()})
    return _validate(_with_presets(given))


def _from_file(path: Path) -> dict[str, _Value]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise MissingError(f"The configuration file {path} does not exist.") from error
    except OSError as error:
        raise MissingError(f"Cannot read the configuration file {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from error
    return {key: _Value(value, str(path)) for key, value in _flatten(table, str(path))}


def _flatten(table: Mapping[str, Any], origin: str, prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in table.items():
        key = prefix + name
        is_table = isinstance(value, dict) and (key not in keys() or key == FREE_TABLE)
        if is_table and not prefix.startswith(f"{FREE_TABLE}."):
            if not is_section(key):
                raise UsageError(unknown_key(key, origin, of_section=True))
            yield from _flatten(value, origin, f"{key}.")
        else:
            yield key, value


def _from_environ(environ: Mapping[str, str]) -> dict[str, _Value]:
    values: dict[str, _Value] = {}
    for name, text in environ.items():
        if not name.startswith(PREFIX) or name in _RESERVED or name.endswith(_RESERVED_SUFFIX):
            continue
        key = name.removeprefix(PREFIX).lower().replace("__", ".")
        if not is_known(key):
            known = [PREFIX + other.upper().replace(".", "__") for other in keys()]
            raise UsageError(f"The variable {name} sets no option.{did_you_mean(name, known)}")
        values[key] = _Value(_parse(text), name, text)
    return values


def _from_set(item: str) -> dict[str, _Value]:
    key, equals, text = item.partition("=")
    key, text = key.strip(), text.strip()
    if not equals or not key:
        raise UsageError(f"--set {item} is not of the form key=value, e.g. --set optim.lr=1e-4.")
    origin = f"--set {key}"
    value = _parse(text)
    if isinstance(value, dict) and is_section(key):
        return {k: _Value(v, origin) for k, v in _flatten(value, origin, f"{key}.")}
    return {key: _Value(value, origin, text)}


def _parse(text: str) -> Any:
    """A TOML value; what is not one (``alfworld``, ``Qwen/Qwen2.5-7B-Instruct``) is a string."""
    try:
        table = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return table["value"] if len(table) == 1 else text


def _with_presets(given: dict[str, _Value]) -> dict[str, _Value]:
    """Adds the defaults of the environment, the model and the method that the given values name."""
    from agentcredit.methods.registry import defaults_of

    def chosen(key: str, default: Any) -> Any:
        return given[key].value if key in given else default

    base = RunConfig()
    preset = presets.defaults(
        env=str(chosen("env.name", base.env.name)),
        size=str(chosen("env.size", base.env.size)),
        official=chosen("env.official", base.env.official) in (True, "true"),
        model=str(chosen("policy.model", base.policy.model)),
    )
    preset |= defaults_of(
        name=str(chosen("method.name", base.method.name)), base=str(chosen("method.base", base.method.base))
    )
    return {key: _Value(value, origin) for key, (value, origin) in preset.items()} | given


def _validate(values: dict[str, _Value]) -> Resolved:
    known = keys()
    tree: dict[str, Any] = {}
    for key, given in values.items():
        if not is_known(key):
            raise UsageError(unknown_key(key, given.origin))
        if isinstance(given.value, bool) and key in known and is_number(known[key]):
            raise UsageError(not_allowed(key, given.value, given.origin))  # pydantic would take `steps = true` for 1
        *sections, leaf = _path(key)
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        as_typed = given.text is not None and key in known and is_textual(known[key])
        node[leaf] = given.text if as_typed and not isinstance(given.value, str) else given.value
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        key = next((key for key in values if path == key or path.startswith(f"{key}.")), path)
        source = values.get(key, _Value(first.get("input"), ""))
        inner = path.removeprefix(key).lstrip(".")
        complaint = f"{inner}: {first['msg']}" if inner else first["msg"]
        raise UsageError(not_allowed(key, source.value, source.origin, complaint)) from error
    return Resolved(config, {key: given.origin for key, given in values.items()})


def _path(key: str) -> list[str]:
    """Sections and leaf; a method's parameter may itself hold dots."""
    if key.startswith(f"{FREE_TABLE}."):
        return [*FREE_TABLE.split("."), key.removeprefix(f"{FREE_TABLE}.")]
    return key.split(".")
