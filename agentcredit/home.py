"""Where this machine keeps interpreters, generated data and caches."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def home() -> Path:
    """``AGENTCREDIT_HOME``, or ``agentcredit`` in the user's cache folder. The folder need not exist yet."""
    chosen = os.environ.get("AGENTCREDIT_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "agentcredit"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "agentcredit"
