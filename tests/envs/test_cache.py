from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcredit.envs.base import EnvSpec, ExpertEpisode, ExpertStep, StepResult
from agentcredit.envs.cache import Position, TransitionCache, digest, namespace
from agentcredit.envs.store import BlobStore

SPEC = EnvSpec(
    name="toy",
    version="1",
    package="toy 1.0",
    deterministic=True,
    markov=True,
    default_max_turns=9,
    default_layout="window",
    instructions="",
    success_rule="",
    splits={"train": 1},
    data_source="",
    official=False,
)
TEXT = st.text(st.characters(codec=None), max_size=20)
RESULTS = st.builds(
    StepResult,
    observation=TEXT,
    reward=st.floats(allow_nan=False),
    done=st.booleans(),
    score=st.floats(allow_nan=False),
    success=st.booleans(),
    valid=st.booleans(),
    admissible=st.none() | st.lists(TEXT, max_size=4),
    state_key=st.none() | TEXT,
    lifted_key=st.none() | TEXT,
    full_state=st.none() | TEXT,
)


def test_parts_of_a_key_do_not_run_together() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("a", "") != digest("a")
    assert digest(b"a") == digest("a")


@pytest.mark.parametrize(
    ("spec", "source", "options", "same"),
    [
        (SPEC, "s", {"size": "small", "home": "/elsewhere", "data": "/there"}, True),
        (SPEC, "s", {"size": "full", "home": "/h"}, False),
        (SPEC, "t", {"size": "small", "home": "/h"}, False),
        (dataclasses.replace(SPEC, package="toy 1.1"), "s", {"size": "small"}, False),
        (dataclasses.replace(SPEC, version="2"), "s", {"size": "small"}, False),
        (dataclasses.replace(SPEC, name="tory"), "s", {"size": "small"}, False),
    ],
)
def test_what_a_namespace_depends_on(spec: EnvSpec, source: str, options: dict[str, str], same: bool) -> None:
    assert (namespace(spec, source, options) == namespace(SPEC, "s", {"size": "small"})) is same


def test_the_reset_depends_on_the_task_its_content_and_the_seed() -> None:
    keys = {
        Position.initial(b"n", content, task, seed).prefix
        for content in ("h1", "h2")
        for task in ("t1", "t2")
        for seed in (0, 1)
    }
    assert len(keys) == 8


def test_with_a_full_state_the_way_there_does_not_matter() -> None:
    start = Position.initial(b"n", "h", "t", 0)
    here = StepResult("", full_state="s")
    one = start.after(None, here, True).after("a", here, True)
    other = start.after(None, here, True).after("b", here, True).after("c", here, True)
    assert one.key("x") == other.key("x")
    assert one.key("x") != one.key("y")
    elsewhere = start.after(None, StepResult("", full_state="s2"), True)
    assert one.key("x") != elsewhere.key("x")


@pytest.mark.parametrize("full_state", [None, "s"])
def test_without_the_markov_property_every_action_matters(full_state: str | None) -> None:
    start = Position.initial(b"n", "h", "t", 0)
    here = StepResult("", full_state=full_state)
    reset = start.after(None, here, False)
    one, other = reset.after("a", here, False), reset.after("b", here, False)
    assert one.key("x") != other.key("x")
    assert one.key("x") == reset.after("a", here, False).key("x")
    assert reset.after("a", here, False).after("b", here, False).key("c") != reset.after("ab", here, False).key("c")


def test_a_missing_full_state_falls_back_to_the_actions() -> None:
    reset = Position.initial(b"n", "h", "t", 0).after(None, StepResult("", full_state="s"), True)
    lost = StepResult("", full_state=None)
    assert reset.after("a", lost, True).key("x") != reset.after("b", lost, True).key("x")


@settings(max_examples=25, deadline=None)
@given(result=RESULTS)
def test_a_result_comes_back_from_disk_as_it_was(tmp_path_factory: pytest.TempPathFactory, result: StepResult) -> None:
    path = tmp_path_factory.mktemp("cache") / "c.sqlite"
    cache = TransitionCache(BlobStore(path, 2**20))
    cache.put(b"k" * 16, result)
    assert cache.get(b"k" * 16) == result
    cache.close()
    again = TransitionCache(BlobStore(path, 2**20))
    assert again.recent(b"k" * 16) is None
    assert again.get(b"k" * 16) == result
    assert again.recent(b"k" * 16) == result
    again.close()


def test_an_expert_and_its_absence_are_both_answers(tmp_path: Path) -> None:
    episode = ExpertEpisode("t", [ExpertStep("I go", "go")], [StepResult("a"), StepResult("b", reward=1.0)])
    cache = TransitionCache(BlobStore(tmp_path / "c.sqlite", 2**20))
    cache.put_expert(b"1" * 16, episode)
    cache.put_expert(b"2" * 16, None)
    assert cache.expert(b"1" * 16) == (True, episode)
    assert cache.expert(b"2" * 16) == (True, None)
    assert cache.expert(b"3" * 16) == (False, None)
    cache.close()


def test_memory_is_bounded_and_forgets_the_least_recently_used(tmp_path: Path) -> None:
    cache = TransitionCache(BlobStore(tmp_path / "c.sqlite", 2**20), memory_entries=2)
    cache.put(b"a", StepResult("a"))
    cache.put(b"b", StepResult("b"))
    cache.recent(b"a")
    cache.put(b"c", StepResult("c"))
    assert [cache.recent(key) is not None for key in (b"a", b"b", b"c")] == [True, False, True]
    assert cache.get(b"b") == StepResult("b")  # from the store
    cache.close()


def test_a_damaged_value_is_a_miss(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "c.sqlite", 2**20)
    store.put(b"k", b"\x78\x01 damaged")
    assert TransitionCache(store).get(b"k") is None
    store.close()
