"""Configurations as TOML: the standard library reads it and does not write it.

Only what a configuration holds: strings, booleans, numbers, lists, tables of plain values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentcredit.config import RunConfig

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(config: RunConfig, origins: Mapping[str, str] | None = None) -> str:
    """Every value of the configuration as a TOML file, with a comment where it is not the model's default.

    Reading the text back as a file gives the same configuration.
    """
    origins = origins or {}
    lines = list(_table("", config.model_dump(), origins))
    return "\n".join(lines).lstrip("\n") + "\n"


def _table(path: str, values: Mapping[str, Any], origins: Mapping[str, str]) -> Iterator[str]:
    """A section's own values first, then the sections below it, as TOML's grammar wants it."""
    # Below method.params a table is a parameter's value, not a section.
    sections = {k: v for k, v in values.items() if isinstance(v, dict)} if path != "method.params" else {}
    if path:
        yield from ("", f"[{path}]")
    for name, value in values.items():
        if name not in sections:
            key = f"{path}.{name}" if path else name
            comment = f"  # {' '.join(origins[key].split())}" if key in origins else ""
            yield f"{_key(name)} = {emit_value(value)}{comment}"
    for name, table in sections.items():
        yield from _table(f"{path}.{name}" if path else name, table, origins)


def emit_value(value: Any) -> str:
    """One value in TOML's notation.

    Raises:
        TypeError: TOML has no form for it.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        # JSON's string is TOML's basic string, but for DEL, which TOML wants escaped.
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, list | tuple):
        return f"[{', '.join(emit_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(name)} = {emit_value(item)}' for name, item in value.items())}}}"
    raise TypeError(f"TOML has no form for {type(value).__name__}")


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else emit_value(name)
