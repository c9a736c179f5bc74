"""The example of docs/add-an-environment.md, installed as a package, passes the conformance suite in workers of its own."""

import inspect
import sys
from contextlib import ExitStack

import pytest

from agentcredit.config import EnvConfig
from agentcredit.envs import registry
from tests.conformance import test_environments as conformance
from tests.docs.examples import install
from tests.envs.corridor import play

CHECKS = [check for name, check in inspect.getmembers(conformance, inspect.isfunction) if name.startswith("test_")]


@pytest.fixture(scope="module")
def connect(tmp_path_factory):
    folder = tmp_path_factory.mktemp("package")
    install("add-an-environment.md", folder)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.syspath_prepend(folder)
        patch.setenv("AGENTCREDIT_HALVING_PYTHON", sys.executable)

        def connect():
            client = registry.connect(EnvConfig(name="halving", processes=1, cache=False, retries=0))
            stack.callback(client.close)
            return client

        yield connect


@pytest.fixture(scope="module")
def client(connect):
    return connect()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_it_passes_the_conformance_suite(connect, client, check):
    offered = {"connect": connect, "client": client, "fresh": client, "known_actions": ["guess 1"], "action": "xyzzy"}
    if "fresh" in inspect.signature(check).parameters:
        offered["fresh"] = connect()
    check(**{name: offered[name] for name in inspect.signature(check).parameters})


def test_the_interval_halves_by_hand(client):
    """48 of 1..63: 32 is too low; from 33..63 the middle is 48."""
    (expert,) = client.experts(["dev/48"])
    assert [step.action for step in expert.steps] == ["guess 32", "guess 48"]
    reset, higher, found = play(client, "dev/48", ["guess 32", "guess 48"])
    assert (reset.state_key, higher.state_key, found.state_key) == ("1 to 63", "33 to 63", "found")
    assert (higher.lifted_key, higher.reward, found.reward, found.success) == ("31 left", 0.0, 1.0, True)
    assert len(higher.admissible) == 31
