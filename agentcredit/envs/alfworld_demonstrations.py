"""Expert episodes, played through the engine, with a thought before each step."""

from __future__ import annotations

from typing import Protocol

from agentcredit.envs.alfworld_expert import expert_steps
from agentcredit.envs.alfworld_games import Game
from agentcredit.envs.base import ExpertEpisode, ExpertStep, StepResult


class Player(Protocol):
    """What plays a task: the adapter."""

    def reset(self, task_id: str, seed: int = 0) -> StepResult:
        """Starts the task."""
        ...

    def step(self, action: str) -> StepResult:
        """Plays one action."""
        ...


def searching_episode(player: Player, game: Game, max_turns: int) -> ExpertEpisode | None:
    """What the searching expert does, or None where it does not win in time."""
    results, steps = [player.reset(game.id)], list[ExpertStep]()
    plan = expert_steps(game, results[0])
    try:
        step = next(plan)
        while not results[-1].done and len(steps) < max_turns:
            steps.append(step)
            results.append(player.step(step.action))
            step = plan.send(results[-1])
    except StopIteration:
        pass  # the expert has done all it knows; whether it won, the engine says
    return ExpertEpisode(game.id, steps, results) if results[-1].success else None


def stored_episode(player: Player, game: Game) -> ExpertEpisode | None:
    """The game's stored walkthrough with a thought for each step, or None where it has none that wins."""
    results, steps = [player.reset(game.id)], list[ExpertStep]()
    for thought, action in zip(_thoughts(game), game.walkthrough, strict=True):
        steps.append(ExpertStep(thought, action))
        results.append(player.step(action))
    return ExpertEpisode(game.id, steps, results) if results[-1].success else None


def _thoughts(game: Game) -> list[str]:
    """The sub-goal that each command of a walkthrough serves: that of the next command that changes something."""
    thoughts: list[str] = []
    goal = ""
    for command in reversed(game.walkthrough):
        verb, *rest = command.split()
        kind = rest[0] if rest else ""
        if verb == "take":
            goal = f"find {kind}"
            thoughts.append(f"take {kind}")
            continue
        if verb in ("clean", "heat", "cool", "use"):
            goal = f"{verb} {kind}"
        elif verb in ("move", "put"):
            goal = f"put {kind} in {rest[-2]}"
        thoughts.append(goal or f"find {game.target}")
    return thoughts[::-1]
