"""``docs/configuration.md``, made from the model: ``python -m agentcredit.config_docs > docs/configuration.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from agentcredit import presets
from agentcredit.config import RunConfig
from agentcredit.config_keys import allowed, keys
from agentcredit.config_toml import emit_value

_INTRODUCTION = """# Configuration

Every setting has one full key, such as `optim.lr`. A value comes from, weakest first:

1. the defaults below;
2. the defaults of the environment and of the model (last section), then those of the method (its card);
3. TOML files, in the order given: `-c a.toml -c b.toml`;
4. variables: `AGENTCREDIT_OPTIM__LR=1e-4` sets `optim.lr` (two underscores for a dot);
5. flags: `--set optim.lr=1e-4`, or the named ones (`--env`, `--method`, `--base`, `--model`, `--seed`, `--steps`,
   `--name`, `--out`).

The value of `--set` and of a variable is TOML (`3`, `1e-4`, `true`, `["a", "b"]`); what is not, is a text. An unknown key is
an error. `agentcredit train --dry-run` prints every value with the place it came from, as a TOML file that `-c` takes.

A run's folder is named after a hash of these values; those marked ○ cannot change a result and are not part of it.

Variables that are no settings: `AGENTCREDIT_HOME` (caches, interpreters and generated games; default: the user's cache folder),
`AGENTCREDIT_DEBUG=1` (tracebacks), `AGENTCREDIT_<ENV>_PYTHON` (an environment's interpreter), `MLFLOW_TRACKING_URI`,
`ALFWORLD_DATA`, `NO_COLOR`.
"""

_CASES = (
    ("alfworld, small games", ("alfworld", "small", False, presets.TINY)),
    ("alfworld, full or official games", ("alfworld", "full", False, presets.TINY)),
    ("scienceworld", ("scienceworld", "small", False, presets.TINY)),
    ("model smollm2 (on top of the environment's)", ("", "small", False, presets.SMOLLM2)),
    ("models above 1B (on top of the environment's; verl-agent's settings)", ("", "small", False, "any")),
)


def markdown() -> str:
    """The whole document."""
    return "\n".join([_INTRODUCTION, *_sections(), *_presets()]) + "\n"


def _sections() -> Iterator[str]:
    counted = _counted()
    previous = None
    for key, field in keys().items():
        section = key.split(".")[0] if "." in key else ""
        if section != previous:
            previous = section
            yield from _heading(section)
        default = field.get_default(call_default_factory=True)
        mark = "" if key in counted else " ○"
        yield f"| `{key}`{mark} | `{emit_value(default)}` | {_cell(allowed(field))} | {_cell(field.description or '')} |"
    yield ""


def _heading(section: str) -> Iterator[str]:
    if section:
        model = RunConfig.model_fields[section].annotation
        yield f"\n## {section}\n\n{' '.join((model.__doc__ or '').split())}\n"
    else:
        yield "## The run\n"
    yield "| key | default | takes | meaning |\n|---|---|---|---|"


def _presets() -> Iterator[str]:
    yield "## Defaults of environments and models\n"
    for name, case in _CASES:
        values = ", ".join(f"`{key} = {emit_value(value)}`" for key, (value, _) in presets.defaults(*case).items())
        yield f"- {name}: {values}."


def _counted() -> set[str]:
    """Keys whose values are part of the fingerprint."""
    compared = RunConfig().compared()
    return {key for key in keys() if _has(compared, key)}


def _has(values: object, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(markdown())
