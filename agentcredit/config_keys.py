"""The keys of the configuration, and the sentences about keys and values that are wrong."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agentcredit.config import RunConfig
from agentcredit.config_toml import emit_value
from agentcredit.errors import nearest

FREE_TABLE = "method.params"
"""The one table whose keys are not the model's: each method declares its own parameters."""

_KINDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Path: "a path",
}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


@cache
def keys() -> dict[str, FieldInfo]:
    """Every key of the configuration in the model's order, ``method.params`` as one key."""
    return dict(_fields(RunConfig, ""))


def _fields(model: type[BaseModel], prefix: str) -> Iterable[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        section: Any = field.annotation
        if _is_model(section):
            yield from _fields(section, f"{prefix}{name}.")
        else:
            yield prefix + name, field


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def is_section(key: str) -> bool:
    """Whether ``key`` holds further keys."""
    return key == FREE_TABLE or any(other.startswith(f"{key}.") for other in keys())


def is_known(key: str) -> bool:
    """Whether ``key`` takes a value; any name is taken below ``method.params``, where the method judges it."""
    return key in keys() or (key.startswith(f"{FREE_TABLE}.") and key != f"{FREE_TABLE}.")


def is_textual(field: FieldInfo) -> bool:
    """Whether the field's value is a text, so that ``--set name=123`` means the text 123."""
    if get_origin(field.annotation) is Literal:
        return all(isinstance(choice, str) for choice in get_args(field.annotation))
    return field.annotation in (str, Path)


def is_number(field: FieldInfo) -> bool:
    """Whether the field takes one number."""
    return field.annotation in (int, float)


def unknown_key(key: str, origin: str, of_section: bool = False) -> str:
    """The sentence about a key that does not exist, or that is a section."""
    source = f" ({origin})" if origin.startswith("--") else f" in {origin}"
    if is_section(key):
        first = next((other for other in keys() if other.startswith(f"{key}.")), f"{key}.NAME")
        return f"'{key}'{source} is a section and takes no value of its own; set its keys, e.g. {first}."
    if of_section and "." not in key:
        sections = {other.split(".")[0] for other in keys() if "." in other}
        return f"There is no section '{key}'{source}.{did_you_mean(key, sections)}"
    return f"There is no option '{key}'{source}.{did_you_mean(key, keys())}"


def did_you_mean(key: str, known: Iterable[str]) -> str:
    """The nearest full keys: those with the same last part (``lr``: ``optim.lr``), else by spelling."""
    known = list(known)
    leaf = key.rsplit(".", 1)[-1]
    same = [repr(other) for other in known if other.rsplit(".", 1)[-1] == leaf]
    if same:
        return f" Did you mean {' or '.join(same)}?"
    hint = nearest(key, known)
    if hint.startswith(" Did") or len(known) <= 12:
        return hint
    return " `agentcredit train --dry-run` lists all of them."


def not_allowed(key: str, value: Any, origin: str, complaint: str = "") -> str:
    """The sentence about a value that its key does not take: key, value, source, what is allowed, what it means."""
    source = f" ({origin})" if origin else ""
    field = keys().get(key)
    if field is None:
        return f"{key} = {_shown(value)}{source} is not allowed: {complaint}."
    rule = allowed(field) or complaint
    detail = f" ({complaint})" if "tables" in rule and complaint else ""
    return f"{key} = {_shown(value)}{source} is not allowed: it must be {rule}{detail}. {field.description}"


def allowed(field: FieldInfo) -> str:
    """What a field takes, in words, from its type and bounds; empty where neither says it."""
    annotation: Any = field.annotation
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        choices = [choice or '"" (the default of the environment)' for choice in arguments]
        return f"one of {', '.join(choices)}"
    if get_origin(annotation) is tuple:
        if arguments[-1] is not Ellipsis:
            return f"a list of {len(arguments)} numbers"
        if _is_model(arguments[0]):
            return f"a list of tables with the keys {', '.join(arguments[0].model_fields)}"
        return "a list of whole numbers" if arguments[0] is int else "a list of texts"
    if get_origin(annotation) is dict:
        return "a table"
    bounds = [
        f"{words} {limit:g}"
        for rule in field.metadata
        for name, words in _BOUNDS.items()
        if (limit := getattr(rule, name, None)) is not None
    ]
    return " ".join([_KINDS.get(annotation, ""), " and ".join(bounds)]).strip()


def _shown(value: Any) -> str:
    try:
        return emit_value(value)
    except TypeError:
        return repr(value)
