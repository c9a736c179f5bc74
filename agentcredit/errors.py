"""What a command may end with: one clear sentence and one of these exit codes."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AgentCreditError(Exception):
    """A failure that is reported as one sentence, never as a traceback (unless ``--debug``).

    The sentence names the thing, its value, the file or option it came from, and the way out.
    """

    exit_code = 1


class RunFailed(AgentCreditError):
    """The run started and could not finish (exit code 1)."""

    exit_code = 1


class UsageError(AgentCreditError):
    """A wrong flag, key, name or combination (exit code 2)."""

    exit_code = 2


class MissingError(AgentCreditError):
    """An environment, its data, a model or a file is missing or broken (exit code 3)."""

    exit_code = 3


class Interrupted(AgentCreditError):
    """Stopped by a signal; repeating the command continues (exit code 4)."""

    exit_code = 4


class ComparisonRefused(AgentCreditError):
    """The runs were not measured on the same thing (exit code 5)."""

    exit_code = 5


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as `` Did you mean 'proas'?``, or the list of known names when none is close."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f" Did you mean '{close[0]}'?" if close else f" Known: {', '.join(names)}."
