"""ALFWorld: household tasks in text, on the package's own engine.

``make(options)`` gives one live episode slot; a worker process may hold many. Options:

    size        ``small`` (7 receptacles, the CPU default) or ``full`` (the room as it is)
    official    use the official games instead of generated ones
    data        folder of the official games; empty: the variable ``ALFWORLD_DATA``, then ``<home>/data/alfworld/official``
    home        folder for what is kept between runs (translations, task lists)
    accept_put  read ``put X in/on Y``, the command before alfworld 0.4, as the ``move X to Y`` of today; default yes
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentcredit.envs.alfworld_demonstrations import searching_episode, stored_episode
from agentcredit.envs.alfworld_engine import NOTHING_HAPPENS, engine_class
from agentcredit.envs.alfworld_games import Game, Games
from agentcredit.envs.alfworld_generated import GeneratedGames
from agentcredit.envs.alfworld_official import OfficialGames
from agentcredit.envs.alfworld_package import TASK_TYPES, package
from agentcredit.envs.alfworld_state import StateReader
from agentcredit.envs.base import EnvSpec, ExpertEpisode, StepResult, TaskInfo

INSTRUCTIONS = """You are in a room of a house and act in it by short commands, one at a time, until the task is done.
Commands: go to (place); open (place); close (place); take (object) from (place); move (object) to (place);
clean (object) with (sinkbasin); heat (object) with (microwave); cool (object) with (fridge); use (lamp);
slice (object) with (knife); examine (thing); look; inventory.
Things have a number, as in "countertop 1". You can hold one object. What lies behind a closed door is seen once it is open."""

_IDLE: list[Any] = []
"""Engines of closed slots. Each has its own copy of the planner's library, which cannot be unloaded: the process would
crash at its end."""

_PUT = re.compile(r"put (.+?) (?:in/on|in|on|into|onto) (.+)")
_MOVE = re.compile(r"move (.+?) to (.+)")


def make(options: Mapping[str, Any]) -> Alfworld:
    """One episode slot.

    Raises:
        ValueError: an unknown option or size, or official games that are absent or not complete.
    """
    known = {"size", "official", "data", "home", "accept_put", "show_admissible"}  # it always lists them
    unknown = sorted(set(options) - known)
    if unknown:
        raise ValueError(f"alfworld has no option {unknown[0]!r}; known: {', '.join(sorted(known))}")
    home = Path(options.get("home") or Path(tempfile.gettempdir()) / "agentcredit")
    return Alfworld(_games(options, home), home, bool(options.get("accept_put", True)))


def _games(options: Mapping[str, Any], home: Path) -> Games:
    if not options.get("official"):
        return GeneratedGames(options.get("size") or "small", home)
    named = options.get("data") or os.environ.get("ALFWORLD_DATA")
    return _official(Path(named) if named else home / "data" / "alfworld" / "official", home)


@lru_cache(maxsize=1)
def _official(folder: Path, home: Path) -> OfficialGames:
    """Shared by all slots of a process: looking through the folders takes a while."""
    return OfficialGames(folder, home)


class Alfworld:
    """One live episode slot (:class:`agentcredit.envs.base.Environment`)."""

    def __init__(self, games: Games, home: Path, accept_put: bool = True) -> None:
        self._games = games
        self._translations = home / "cache" / "alfworld" / "translations"
        self._accept_put = accept_put
        self._engine: Any = None
        self._loaded: Game | None = None
        self._admissible: list[str] = []
        self._success = False

    def spec(self) -> EnvSpec:
        """What the environment is."""
        return EnvSpec(
            name="alfworld",
            version=self._games.version,
            package=f"alfworld {package().version}",
            deterministic=True,
            markov=True,
            default_max_turns=self._games.default_max_turns,
            default_layout="dialogue",
            instructions=INSTRUCTIONS,
            success_rule="the simulator's goal condition holds (won)",
            splits=dict(self._games.counts),
            data_source=self._games.data_source,
            official=self._games.official,
            instances_per_process=64,  # a step of 48 episodes, or a wave of an evaluation, in one process
            task_types=TASK_TYPES,
        )

    def tasks(self, split: str) -> list[TaskInfo]:
        """All tasks of a split, sorted by id. Raises KeyError for an unknown split."""
        return self._games.tasks(split)

    def reset(self, task_id: str, seed: int = 0) -> StepResult:
        """Starts the task from its initial state; games are deterministic, the seed changes nothing.

        Raises:
            KeyError: an unknown task.
        """
        if self._loaded is None or self._loaded.id != task_id:
            game = self._games.game(task_id)
            if self._engine is None:
                self._engine = _IDLE.pop() if _IDLE else engine_class(self._translations)()
            self._engine.load(game)
            self._loaded = game
        state = self._engine.reset()
        self._reader = StateReader(self._loaded, self._engine.facts(), self._engine.name)
        room = state.feedback.split("Your task is to:")[0].split("-= Welcome to TextWorld, ALFRED! =-")[-1]
        return self._result(room, state, valid=True, reward=0.0)

    def step(self, action: str) -> StepResult:
        """Plays one command. An inadmissible one answers ``Nothing happens.`` and changes nothing."""
        command = " ".join(action.lower().split())
        if self._accept_put:
            command = in_the_words_of(self._admissible, command)
        known = self._success
        state, _, _ = self._engine.step(command)
        reward = float(bool(state["won"]) and not known)
        return self._result(state.feedback, state, valid=state.feedback != NOTHING_HAPPENS, reward=reward)

    def expert(self, task_id: str) -> ExpertEpisode | None:
        """The searching expert's episode; where it does not win, the stored walkthrough's; else None."""
        game = self._games.game(task_id)
        return searching_episode(self, game, self._games.default_max_turns) or stored_episode(self, game)

    def close(self) -> None:
        """Leaves the engine to the next slot."""
        if self._engine is not None:
            _IDLE.append(self._engine)
        self._engine = self._loaded = None

    def _result(self, text: str, state: Any, valid: bool, reward: float) -> StepResult:
        observation = text.strip()
        self._success = bool(state["won"])
        self._admissible = [command for command in state["admissible_commands"] if command != "help"]
        self._reader.update(observation, self._engine.facts())
        return StepResult(
            observation=observation,
            reward=reward,
            done=self._success,
            score=float(self._success),
            success=self._success,
            valid=valid,
            admissible=list(self._admissible),
            state_key=self._reader.state_key(),
            lifted_key=self._reader.lifted_key(),
            full_state=self._reader.full_state(),
        )


def in_the_words_of(admissible: Sequence[str], command: str) -> str:
    """The command for putting something down as the game's grammar has it, where that makes it admissible.

    Games and papers before alfworld 0.4 say ``put X in/on Y``, later ones ``move X to Y``.
    """
    if command in admissible:
        return command
    said = _PUT.fullmatch(command) or _MOVE.fullmatch(command)
    forms = (f"move {said[1]} to {said[2]}", f"put {said[1]} in/on {said[2]}") if said else ()
    return next((form for form in forms if form in admissible), command)
