from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcredit.config import EnvConfig
from agentcredit.envs import registry
from agentcredit.envs.client import PoolClient
from agentcredit.errors import MissingError

REPOSITORY = Path(__file__).parents[3]
INSIDE = Path(__file__).with_name("inside.py")


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter that has the package."""
    try:
        return registry.interpreter("alfworld")
    except MissingError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def inside(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Calls a function of ``inside.py`` in a fresh process of that interpreter; what goes in and out is JSON."""
    home = tmp_path_factory.mktemp("home")

    def call(function: str, *arguments: Any, hash_seed: int = 0, home: Path = home) -> Any:
        variables = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(REPOSITORY)}
        variables |= {"TEST_HOME": str(home), "OMP_NUM_THREADS": "1"}
        variables.pop("ALFWORLD_DATA", None)
        command = [str(python), str(INSIDE), function, json.dumps(arguments)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return call


@pytest.fixture(scope="session")
def client(python: Path) -> Iterator[PoolClient]:
    """Small games in one worker, everything simulated."""
    client = registry.connect(EnvConfig(name="alfworld", processes=1, cache=False))
    yield client
    client.close()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Third-party data for local checks, where a developer has them; never a part of the repository."""
    folder = Path(os.environ.get("AGENTCREDIT_SHARED_DATA", REPOSITORY.parent / "shared" / "data")) / "alfworld"
    if not folder.is_dir():
        pytest.skip("no shared data: set AGENTCREDIT_SHARED_DATA")
    return folder
