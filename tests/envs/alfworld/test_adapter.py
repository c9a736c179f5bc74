"""What the program sees of ALFWorld, through a real worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcredit.envs.alfworld import in_the_words_of, make
from agentcredit.envs.client import PoolClient

HEAT = "small-v1/valid_seen/000003"


@pytest.mark.alfworld
def test_what_it_declares(client: PoolClient) -> None:
    spec = client.spec()
    assert (spec.name, spec.version, spec.official) == ("alfworld", "small-v1", False)
    assert spec.data_source == "generated games (small, v1)"
    assert spec.splits == {"train": 3553, "valid_seen": 140, "valid_unseen": 134}
    assert spec.deterministic
    assert spec.markov


@pytest.mark.alfworld
def test_an_episode(client: PoolClient) -> None:
    task = next(task for task in client.tasks("valid_seen") if task.id == HEAT)
    assert task.goal
    (expert,) = client.experts([HEAT])
    assert expert is not None
    episode = client.open(HEAT)
    start = episode.reset().result()
    assert start.observation.startswith("You are in the middle of a room. Looking quickly around you, you see a ")
    assert "task" not in start.observation
    assert start.admissible == sorted(start.admissible or [])
    assert "help" not in (start.admissible or [])
    assert {"look", "inventory"} < set(start.admissible or [])
    nothing = episode.step("dance").result()
    assert (nothing.observation, nothing.valid, nothing.reward) == ("Nothing happens.", False, 0.0)
    assert (nothing.full_state, nothing.state_key) == (start.full_state, start.state_key)
    assert nothing.admissible == start.admissible
    results = [episode.step(step.action.upper() + " ").result() for step in expert.steps]
    assert results == expert.results[1:]
    assert [result.reward for result in results] == [0.0] * (len(results) - 1) + [1.0]
    assert results[-1].success
    episode.close()


@pytest.mark.alfworld
def test_the_older_word_for_putting_down(client: PoolClient) -> None:
    (expert,) = client.experts([HEAT])
    assert expert is not None
    episode = client.open(HEAT)
    episode.reset().result()
    actions = [step.action for step in expert.steps]
    for action in actions[:-1]:
        episode.step(action).result()
    thing, place = actions[-1].removeprefix("move ").split(" to ")
    assert episode.step(f"put {thing} in/on {place}").result() == expert.results[-1]
    episode.close()


def test_putting_down_follows_the_games_grammar() -> None:
    today, before = ["move egg 1 to fridge 1"], ["put egg 1 in/on fridge 1"]
    for said in ("put egg 1 in/on fridge 1", "put egg 1 in fridge 1", "move egg 1 to fridge 1"):
        assert in_the_words_of(today, said) == today[0]
        assert in_the_words_of(before, said) == before[0]
    assert in_the_words_of(today, "put egg 2 in fridge 1") == "put egg 2 in fridge 1"
    assert in_the_words_of(today, "open fridge 1") == "open fridge 1"


def test_wrong_options_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no option 'colour'"):
        make({"colour": "red"})
    with pytest.raises(ValueError, match="no size 'large'; known: small, full"):
        make({"size": "large", "home": str(tmp_path)})


@pytest.mark.parametrize("name", ["small-v1/train/003553", "small-v2/train/000000", "full-v1/train/000000", "train/1"])
def test_unknown_tasks(name: str, tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        make({"size": "small", "home": str(tmp_path)}).reset(name)
