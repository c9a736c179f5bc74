"""Which tasks a step trains on: a pure function of the run's seed and the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from agentcredit.policies.noise import generator

T = TypeVar("T")


def tasks_of_step(tasks: Sequence[T], seed: int, step: int, count: int) -> list[T]:
    """``count`` different tasks of step ``step`` (from 1): the next ones of an endless row of shuffled passes.

    Every task comes once before any comes again, but that a step which spans two passes takes no task twice; two
    methods with the same seed train on the same tasks in the same order. With fewer tasks than ``count`` the step
    takes them all.

    Args:
        tasks: the panel, in its own order.
        seed: the run's.
        step: from 1.
        count: tasks of every step.
    """
    count = min(count, len(tasks))
    chosen: list[int] = []
    place = (step - 1) * count
    while len(chosen) < count:
        epoch, offset = divmod(place, len(tasks))
        index = int(_order(len(tasks), seed, epoch)[offset])
        if index not in chosen:
            chosen.append(index)
        place += 1
    return [tasks[index] for index in chosen]


def other_tasks(tasks: Sequence[T], used: Sequence[T], seed: int, step: int, batch: int, count: int) -> list[T]:
    """``count`` tasks to play in the place of others at this step, none of them used at it yet; fewer where none are left.

    Drawn by themselves and not from the row of :func:`tasks_of_step`, so that a run that replaces tasks still begins every
    step with those of a run that does not.
    """
    order = generator(("other tasks", seed, step, batch)).permutation(len(tasks)).tolist()
    return [tasks[index] for index in order if tasks[index] not in used][:count]


def _order(n: int, seed: int, epoch: int) -> Sequence[int]:
    return generator(("tasks", seed, epoch)).permutation(n).tolist()
