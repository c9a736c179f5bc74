"""The official release: its counts are checked, and a real game of its format is won."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentcredit.envs import alfworld_official
from agentcredit.envs.alfworld import make
from agentcredit.envs.alfworld_official import OfficialGames

PARAMETERS = {"object_target": "Egg", "parent_target": "Fridge", "toggle_target": ""}


def write(root: Path, task: str, *, kind: str = "pick_and_place_simple", solvable: bool = True) -> None:
    folder = root / "json_2.1.1" / task
    folder.mkdir(parents=True)
    grammar = '{"rhs": "Your task is to: put a egg in fridge."}'
    game = {"pddl_domain": "d", "grammar": grammar, "pddl_problem": task, "solvable": solvable, "walkthrough": ["look"]}
    (folder / "game.tw-pddl").write_text(json.dumps(game))
    (folder / "traj_data.json").write_text(json.dumps({"task_type": kind, "pddl_params": PARAMETERS}))


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two games that count and three that do not, in a release that has so many."""
    monkeypatch.setattr(alfworld_official, "COUNTS", {"train": 2, "valid_seen": 1, "valid_unseen": 1})
    write(tmp_path, "train/b/t2")
    write(tmp_path, "train/b/t1")
    write(tmp_path, "train/a/unsolvable", solvable=False)
    write(tmp_path, "train/pick-movable-3/t", kind="pick_and_place_with_movable_recep")
    write(tmp_path, "train/pick-PotatoSliced-3/t")
    write(tmp_path, "valid_seen/a/t")
    write(tmp_path, "valid_unseen/a/t")
    return tmp_path


def test_the_games_that_upstream_counts(release: Path) -> None:
    for folder in (release, release / "json_2.1.1"):
        games = OfficialGames(folder, release / "home")
        tasks = games.tasks("train")
        assert [task.id for task in tasks] == ["train/b/t1", "train/b/t2"]
        assert {(task.goal, task.type) for task in tasks} == {("put a egg in fridge", "pick_and_place_simple")}
        assert tasks[0].content_hash != tasks[1].content_hash
        assert games.tasks("train") == tasks
        game = games.game("train/b/t1")
        assert (game.target, game.destination, game.walkthrough) == ("egg", "fridge", ("look",))
        for name in ("train/b/t3", "other/b/t1", "train/../train/b/t1"):
            with pytest.raises(KeyError):
                games.game(name)


def test_a_list_is_made_anew_when_a_game_changes(release: Path) -> None:
    before = OfficialGames(release, release / "home").tasks("valid_seen")
    file = release / "json_2.1.1" / "valid_seen" / "a" / "t" / "game.tw-pddl"
    file.write_text(file.read_text().replace("egg", "cup"))
    alfworld_official.read_game.cache_clear()
    assert (
        OfficialGames(release, release / "home").tasks("valid_seen")[0].goal == "put a cup in fridge" != before[0].goal
    )


def test_missing_games_are_counted(release: Path) -> None:
    games = OfficialGames(release, release / "home")
    write(release, "valid_seen/b/t")
    with pytest.raises(ValueError, match="not complete: valid_seen has 2 of 1"):
        games.tasks("valid_seen")
    (release / "json_2.1.1" / "train" / "b" / "t1" / "game.tw-pddl").unlink()
    (release / "json_2.1.1" / "valid_unseen" / "a" / "t" / "game.tw-pddl").unlink()
    (release / "json_2.1.1" / "train" / "a" / "unsolvable" / "game.tw-pddl").unlink()
    with pytest.raises(ValueError, match=r"not complete: train has 1 of 2, valid_unseen has 0 of 1\. Fetch the games"):
        OfficialGames(release, release / "home")


def test_no_games_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(
        ValueError, match=r"no official ALFWorld games in .*data/alfworld/official: no json_2\.1\.1/train"
    ):
        make({"official": True, "home": str(tmp_path)})


@pytest.mark.alfworld
def test_a_real_game_is_won_by_its_walkthrough_and_by_the_expert(
    inside: Callable[..., Any], shared_data: Path, tmp_path: Path
) -> None:
    known = json.loads((shared_data / "walkthroughs.json").read_text())["single_agent"]
    files = (str(shared_data / "single_agent_initial_state.pddl"), str(shared_data / "traj_data.json"))
    played = inside("official", *files, known["commands"], home=tmp_path)
    assert played["won"]
    assert played["valid"]
    assert played["observations"] == known["observations"]
    assert played["source"] == "official games (json_2.1.1)"
    assert played["task"]["goal"] == "put a hot potato in sinkbasin"
    assert played["again"] == [played["task"]]
    assert played["expert"]["results"][-1]["success"]
    assert len(played["expert"]["steps"]) < 50
    assert played["expert"]["steps"][-1]["thought"] == "put potato in sinkbasin"
