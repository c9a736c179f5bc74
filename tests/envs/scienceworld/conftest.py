from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from agentcredit.config import EnvConfig
from agentcredit.envs import registry
from agentcredit.envs.client import PoolClient
from agentcredit.errors import MissingError


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter that has the package."""
    try:
        return registry.interpreter("scienceworld")
    except MissingError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def connect(python: Path) -> Iterator[Callable[..., PoolClient]]:
    """Makes clients with one worker each that simulate everything."""
    with ExitStack() as stack:

        def connect(**settings: object) -> PoolClient:
            config = EnvConfig.model_validate({"name": "scienceworld", "processes": 1, "cache": False} | settings)
            client = registry.connect(config)
            stack.callback(client.close)
            return client

        yield connect


@pytest.fixture(scope="session")
def client(connect: Callable[..., PoolClient]) -> PoolClient:
    return connect()
