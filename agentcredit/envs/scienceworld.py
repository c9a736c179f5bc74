"""ScienceWorld: thirty elementary science experiments in text, the whole benchmark (worker side).

Wang et al., "ScienceWorld: Is your agent smarter than a 5th grader?" (EMNLP 2022); the PyPI package brings simulator and
tasks. How it is played here, and where that differs from other code, is told in docs/environments/scienceworld.md.

Options:
    home             folder for the catalogue of tasks
    show_admissible  list every action that the simulator would accept: 115 to 2749 of them, 50 to 150 ms a step
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentcredit.envs import scienceworld_catalogue
from agentcredit.envs.base import EnvSpec, ExpertEpisode, ExpertStep, StepResult, TaskInfo
from agentcredit.envs.scienceworld_jvm import Simulator

VERSION = "1"
"""Of this adapter: raised when the same package would give other observations, scores or keys."""

NOT_UNDERSTOOD = ("No known action matches that input.", "Unknown action.", "ERROR:")
QUESTION = "Ambiguous request:"

_MEANING = {
    "activate OBJ": "turn a device on",
    "close OBJ": "close a door or a container",
    "connect OBJ to OBJ": "connect electrical components",
    "deactivate OBJ": "turn a device off",
    "disconnect OBJ": "disconnect an electrical component",
    "dunk OBJ in OBJ": "dunk a container into a liquid",
    "eat OBJ": "eat something",
    "flush OBJ": "flush a toilet",
    "focus on OBJ": "declare the object that the task is about; a wrong one fails the task at once",
    "go OBJ": "move to another room, e.g. go to kitchen",
    "inventory": "list what you carry",
    "look around": "describe the room",
    "look at OBJ": "describe an object",
    "look in OBJ": "describe what a container holds",
    "mix OBJ": "mix the substances in a container",
    "move OBJ to OBJ": "move an object into a container or a place",
    "open OBJ": "open a door or a container",
    "pick up OBJ": "take an object",
    "pour OBJ in OBJ": "pour a liquid into a container",
    "put down OBJ": "drop an object",
    "read OBJ": "read a book or a note",
    "task": "state the task again",
    "use OBJ on OBJ": "use a tool or an instrument on an object",
    "wait": "let ten moments pass",
    "wait1": "let one moment pass",
}

_HIDDEN = {"reset task"}  # unmakes what was scored; of no use to an agent


def make(options: Mapping[str, Any]) -> ScienceWorld:
    """The environment, as the worker makes it."""
    return ScienceWorld(home=options["home"], list_actions=bool(options.get("show_admissible")))


class ScienceWorld:
    """One live episode over a Java machine that starts with the first episode."""

    def __init__(self, home: str, list_actions: bool = False) -> None:
        self._catalogue = scienceworld_catalogue.load(home)
        self._list_actions = list_actions
        self._simulator: Simulator | None = None
        self._start_score = 0
        self._score = 0.0

    def spec(self) -> EnvSpec:
        """What the environment is."""
        catalogue = self._catalogue
        return EnvSpec(
            name="scienceworld",
            version=VERSION,
            package=f"scienceworld {catalogue.version}",
            deterministic=True,
            markov=False,
            default_max_turns=30,
            default_layout="window",
            instructions=_instructions(catalogue.actions),
            success_rule="score 100",
            splits={split: len(catalogue.split(split)) for split in scienceworld_catalogue.SPLITS},
            data_source=f"official variations (ScienceWorld {catalogue.version})",
            official=True,
            instances_per_process=1,
            task_types=tuple(sorted(catalogue.tasks)),
        )

    def tasks(self, split: str) -> list[TaskInfo]:
        """All tasks of a split, sorted by id. Raises KeyError for an unknown split."""
        return self._catalogue.split(split)

    def reset(self, task_id: str, seed: int) -> StepResult:
        """Starts the task. There is nothing random in a variation: the seed is not used.

        Raises:
            KeyError: there is no such task.
        """
        name, variation = self._catalogue.find(task_id)
        self._running().load(name, variation)
        return self._begin()

    def step(self, action: str) -> StepResult:
        """Plays one action. Never ends an episode for its length: the rollout counts turns."""
        observation = self._running().step(action)
        before = self._score
        result = self._result(observation)
        return replace(result, reward=result.score - before)

    def expert(self, task_id: str) -> ExpertEpisode | None:
        """The simulator's gold path, each step with the sub-goal it serves; None where that does not reach 100.

        Raises:
            KeyError: there is no such task.
        """
        name, variation = self._catalogue.find(task_id)
        simulator = self._running()
        simulator.load(name, variation, gold=True)
        actions = simulator.gold_path()
        simulator.load(name, variation)
        results, steps = [self._begin()], []
        for action in actions:
            steps.append(ExpertStep(_subgoal(simulator.server.getGoalProgressStr()), action))
            results.append(self.step(action))
            if results[-1].done:
                break
        return ExpertEpisode(task_id, steps, results) if results[-1].success else None

    def close(self) -> None:
        """Ends the Java machine."""
        if self._simulator is not None:
            self._simulator.close()
            self._simulator = None

    def _running(self) -> Simulator:
        if self._simulator is None:
            self._simulator = Simulator()
        return self._simulator

    def _begin(self) -> StepResult:
        """The package's own reset ends with a look around, which is not a move; episodes elsewhere start there too."""
        observation = self._running().step("look around")
        self._start_score = self._running().score()
        return self._result(observation)

    def _result(self, observation: str) -> StepResult:
        server = self._running().server
        score = self._running().score()
        completed = server.getCompleted()
        self._score = relative_score(score, self._start_score)
        asked = "?" if observation.startswith(QUESTION) else ""
        return StepResult(
            observation=observation.strip(),
            done=completed or score < 0,
            score=self._score,
            success=completed and score == 100,
            valid=not observation.startswith(NOT_UNDERSTOOD),
            admissible=sorted(set(server.getValidActionObjectCombinations()) - _HIDDEN) if self._list_actions else None,
            state_key=state_key(server.freeActionLook(), server.freeActionInventory(), score) + asked,
            lifted_key=lifted_key(server.getGoalProgressStr(), score),
        )


def relative_score(score: int, start: int) -> float:
    """The environment's score (-100 to 100) as a share of what the start left to gain, 0 to 1.

    Doing nothing gives 0 and success 1. A failed task (-100, a wrong focus) gives 0, and so loses what was gained.
    """
    return max(0.0, (score - start) / (100 - start))


def state_key(look: str, inventory: str, score: int) -> str:
    """Level 0 (docs/methods/proas.md): room, sorted inventory, digest of the free look, environment's score."""
    room = re.search(r"called the (.+?)\.", look)
    carried = sorted(line.strip() for line in inventory.splitlines()[1:] if line.strip())
    digest = hashlib.sha256(look.encode()).hexdigest()[:12]
    return f"{room.group(1) if room else '?'}|{'; '.join(carried)}|{digest}|{score}"


def lifted_key(progress: str, score: int) -> str:
    """Level 1 (docs/methods/proas.md): score by tens, and which ordered and which optional sub-goals are met.

    Tasks of one type have the same sub-goals in the same order, whatever their objects.
    """
    ordered, _, optional = progress.partition("Unordered and Optional Subgoals")
    flags = ("".join("1" if met else "0" for met, _ in _goals(part)) for part in (ordered, optional))
    bucket = "failed" if score < 0 else str(score // 10 * 10)
    return "|".join([bucket, *flags])


def _subgoal(progress: str) -> str:
    """The first ordered sub-goal that is not met, in the simulator's words; a few have none."""
    ordered = progress.partition("Unordered and Optional Subgoals")[0]
    return next((words for met, words in _goals(ordered) if not met and words), "finish the task")


def _goals(progress: str) -> list[tuple[bool, str]]:
    lines = re.findall(r"^\d+\t(true|false)\t[^\t]*\t(.*)$", progress, flags=re.MULTILINE)
    return [(met == "true", words.strip()) for met, words in lines]


def _instructions(actions: list[str]) -> str:
    lines = [f"{action}: {_MEANING[action]}" if action in _MEANING else action for action in sorted(actions)]
    return "\n".join(
        [
            "You carry out elementary science experiments in a house of several rooms, by text commands.",
            "These are the commands; OBJ stands for the name of an object that you see or carry:",
            *(line for line in lines if line not in _HIDDEN),
            "When a command is ambiguous you are asked to choose: answer with the number alone.",
        ]
    )
