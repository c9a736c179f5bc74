from __future__ import annotations

from agentcredit.envs.base import StepResult
from agentcredit.envs.trail import Trail


def seen(state: str | None, text: str = "") -> StepResult:
    return StepResult(observation=text or str(state), full_state=state)


def trail(*steps: tuple[str, str | None], erase_loops: bool = True, task: str = "t", seed: int = 0) -> Trail:
    made = Trail(task, seed, erase_loops)
    made.start(seen("s0" if erase_loops else None))
    for action, state in steps:
        made.push(action, seen(state))
    return made


def test_a_loop_is_cut_out() -> None:
    #  s0 -a-> s1 -b-> s2 -c-> s1 : what is left is the way to s1
    made = trail(("a", "s1"), ("b", "s2"), ("c", "s1"))
    assert made.actions == ["a"]
    assert [result.full_state for result in made.results] == ["s0", "s1"]


def test_an_action_that_changed_nothing_is_not_kept() -> None:
    assert trail(("jump", "s0"), ("a", "s1"), ("jump", "s1")).actions == ["a"]


def test_a_way_back_to_the_start_leaves_nothing() -> None:
    assert trail(("a", "s1"), ("b", "s0")).actions == []


def test_without_the_markov_property_every_action_counts() -> None:
    made = trail(("a", "s1"), ("b", "s1"), erase_loops=False)
    assert made.actions == ["a", "b"]
    unknown = trail(("a", None), ("b", None))
    assert unknown.actions == ["a", "b"]


def test_place_by_full_state_may_come_from_another_way() -> None:
    here = trail(("x", "s1"))
    there = trail(("a", "s1"), ("b", "s2"))
    assert here.place_in(there) == 1
    assert trail(("z", "s9")).place_in(there) is None


def test_place_by_actions_is_the_common_prefix_or_nothing() -> None:
    there = trail(("a", None), ("b", None), erase_loops=False)
    assert trail(("a", None), erase_loops=False).place_in(there) == 1
    assert trail(erase_loops=False).place_in(there) == 0
    assert there.place_in(there) == 2
    assert trail(("b", None), erase_loops=False).place_in(there) is None
    assert trail(("a", None), ("b", None), ("c", None), erase_loops=False).place_in(there) is None


def test_another_task_or_seed_is_another_place() -> None:
    assert trail(task="u").place_in(trail()) is None
    assert trail(seed=1).place_in(trail()) is None
    assert Trail("t", 0, True).place_in(trail()) is None
