"""How to get back to where an episode is: its actions, and what each led to.

In a deterministic environment a trail stands for a state, so a state that was lost with its worker, or given up to
another episode, is brought back by playing the trail again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agentcredit.envs.base import StepResult


@dataclass(eq=False)
class Trail:
    """``results`` has one entry more than ``actions``: the reset's first; both are empty before the reset.

    ``erase_loops`` (Markov environments): a step that leads back to a full state of the trail cuts the loop out, so a
    trail is no longer than it must be, and an action that changed nothing is never played again. Our choice; sound
    because there a result is a function of the full state and the action.
    """

    task_id: str
    seed: int
    erase_loops: bool
    actions: list[str] = field(default_factory=list)
    results: list[StepResult] = field(default_factory=list)

    def start(self, result: StepResult) -> None:
        """The reset's result."""
        self.actions.clear()
        self.results[:] = [result]

    def push(self, action: str, result: StepResult) -> None:
        """One step more."""
        if self.erase_loops and result.full_state is not None:
            for index, earlier in enumerate(self.results):
                if earlier.full_state == result.full_state:
                    del self.actions[index:], self.results[index + 1 :]
                    return
        self.actions.append(action)
        self.results.append(result)

    def place_in(self, other: Trail) -> int | None:
        """How many of ``other``'s actions are done where this trail ends; None when this end is not on its way."""
        if not self.results or (self.task_id, self.seed) != (other.task_id, other.seed):
            return None
        here = self.results[-1].full_state
        if self.erase_loops and here is not None:
            for index in range(len(other.results) - 1, -1, -1):
                if other.results[index].full_state == here:
                    return index
            return None
        n = len(self.actions)
        return n if n <= len(other.actions) and other.actions[:n] == self.actions else None
