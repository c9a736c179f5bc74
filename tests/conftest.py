"""For all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# The same examples at every run of continuous integration, new ones at every run of a developer.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
