"""A room as the generator needs it: enough of ALFWorld's rules to count the turns that the expert takes.

The generator keeps a game when the expert, driven by this model, finishes within the size's limit. That costs
milliseconds where loading the engine costs a second, so a split's task list is quick and no game has to be played in
advance. The tests hold the model's answers against the real engine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from agentcredit.envs.alfworld_expert import expert_steps
from agentcredit.envs.alfworld_games import Game
from agentcredit.envs.base import StepResult


@dataclass
class RoomModel:
    """Places by name with their items and their locations; ``closed`` are the places whose door is shut."""

    contents: Mapping[str, list[str]]
    locations: Mapping[str, str]
    closed: set[str]
    here: str = field(default="", init=False)

    def start(self) -> StepResult:
        """What the agent sees from the middle of the room."""
        return self._result(
            f"You are in the middle of a room. Looking quickly around you, you see {_listing(self.contents)}."
        )

    def step(self, command: str) -> StepResult:
        """The engine's answer to a command of the expert: of text and admissible commands what the expert reads."""
        match command.split():
            case ["go", "to", *place]:
                self.here = self.locations[" ".join(place)]
                return self._result(f"You arrive at {' '.join(place)}. {self._examine(' '.join(place))}")
            case ["open", *place]:
                self.closed.discard(" ".join(place))
                return self._result(f"You open the {' '.join(place)}. {self._examine(' '.join(place))}")
            case ["examine", *place]:
                return self._result(self._examine(" ".join(place)))
            case ["take", kind, number, "from", *place]:
                self.contents[" ".join(place)].remove(f"{kind} {number}")
            case ["move", kind, number, "to", *place]:
                self.contents[" ".join(place)].append(f"{kind} {number}")
        return self._result("")

    def _examine(self, place: str) -> str:
        if place in self.closed:
            return f"The {place} is closed."
        return f"On the {place}, you see {_listing(self.contents[place])}."

    def _result(self, observation: str) -> StepResult:
        # There is no way to go to where one is, nor to another place at the same location.
        ways = [f"go to {place}" for place, location in self.locations.items() if location != self.here]
        return StepResult(observation, admissible=ways)


def expert_turns(game: Game, room: RoomModel) -> int:
    """How many turns the expert takes in the game."""
    steps = expert_steps(game, room.start())
    turns = 0
    try:
        step = next(steps)
        while True:
            turns += 1
            step = steps.send(room.step(step.action))
    except StopIteration:
        return turns


def _listing(names: Iterable[str]) -> str:
    return ", ".join(f"a {name}" for name in names) or "nothing"
