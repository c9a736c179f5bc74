"""Whether an environment does what it declares: experts succeed, results repeat, tasks are the known ones, and how fast.

What is played is a sample of every split, chosen as limited panels are. Each task's expert plays it; its actions are then
played again in new workers, in another order of the tasks each time, because a simulator that is not deterministic
most often depends on what its process did before (ScienceWorld's issue #33 shows within one process alone).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from agentcredit.envs import registry
from agentcredit.envs.base import EnvClient, EnvSpec, ExpertEpisode, StepResult
from agentcredit.envs.panels import build_panel, committed, role_of, sample
from agentcredit.errors import UsageError, nearest

if TYPE_CHECKING:
    from agentcredit.config import EnvConfig

EPISODES = 18
WORKERS = 2

SLOW_TYPES = frozenset({"mendelian-genetics-known-plant", "mendelian-genetics-unknown-plant"})
"""Left out unless asked for: planning one such gold path of ScienceWorld takes up to several minutes."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class SplitCheck:
    """A split: how many tasks it has, its panel, and whether that panel is a committed one (and so was compared)."""

    split: str
    role: str
    tasks: int
    panel_sha256: str
    committed: bool


@dataclass(frozen=True)
class ExpertCheck:
    """An expert's episode: ``steps`` is 0 where the expert has no way; ``turns`` is what the environment allows."""

    task_id: str
    type: str
    split: str
    steps: int
    turns: int
    score: float
    success: bool


@dataclass(frozen=True)
class Determinism:
    """``found`` is whether every replay equalled the expert's own results; ``difference`` names the first that did not."""

    declared: bool
    found: bool
    workers: int
    episodes: int
    steps: int
    difference: str = ""


@dataclass(frozen=True)
class Speed:
    """Of one worker process, by the wall clock. Rates count steps; ``reset_seconds`` is the mean of a reset."""

    reset_seconds: float
    steps_per_second: float
    steps_per_second_cached: float | None
    cache_hit_rate: float | None
    cached_equal: bool | None


@dataclass(frozen=True)
class Report:
    """What ``agentcredit envs check`` found. ``problems`` is empty when all is well."""

    env: str
    version: str
    package: str
    data_source: str
    official: bool
    splits: list[SplitCheck]
    experts: list[ExpertCheck]
    determinism: Determinism
    speed: Speed
    problems: list[str]

    def plain(self) -> dict[str, Any]:
        """As JSON values, with the experts' successes counted."""
        won = sum(expert.success for expert in self.experts)
        return asdict(self) | {"expert_successes": won, "expert_episodes": len(self.experts)}


@dataclass
class _Replay:
    """Expert actions played again: the results by task, and the seconds of resets and steps."""

    results: dict[str, list[StepResult]]
    reset_seconds: float = 0.0
    step_seconds: float = 0.0
    steps: int = 0


def check(
    env: EnvConfig,
    *,
    episodes: int = EPISODES,
    workers: int = WORKERS,
    types: Collection[str] = (),
    say: Say = lambda line: None,
) -> Report:
    """Checks one environment.

    Args:
        env: which, and how it is run; its number of processes serves the experts.
        episodes: expert episodes over all splits, at least one for each split.
        workers: new workers in which every episode is played again.
        types: task types to play; empty: all but :data:`SLOW_TYPES`.
        say: receives one line per stage.

    Raises:
        UsageError: a task type is not known.
        MissingError: the environment is not set up, or its tasks differ from a committed panel.
        EnvFailure: a worker failed more often than it may.
    """
    alone = env.model_copy(update={"cache": False})
    with closing(registry.connect(alone)) as client:
        spec = client.spec()
        say(f"{spec.name}: {spec.package}, {spec.data_source}")
        splits = [_split(client, spec, split) for split in spec.splits]
        for wanted in types:
            if wanted not in spec.task_types:
                raise UsageError(f"'{spec.name}' has no task type '{wanted}'.{nearest(wanted, spec.task_types)}")
        played_types = set(types) or set(spec.task_types) - SLOW_TYPES
        chosen = [
            (task, split) for n, split in enumerate(spec.splits)
            for task in sample([t for t in client.tasks(split) if t.type in played_types], max(1, (episodes + n) // len(spec.splits)))
        ]  # fmt: skip
        say(f"{len(chosen)} expert episodes")
        played = client.experts([task.id for task, _ in chosen])
    experts = [
        _expert(task.id, task.type, split, spec, episode) for (task, split), episode in zip(chosen, played, strict=True)
    ]
    known = [episode for episode in played if episode is not None]
    determinism, first = _determinism(alone, spec, known, workers, say)
    speed = _speed(env, spec, known, first, say)
    return Report(
        env=spec.name,
        version=spec.version,
        package=spec.package,
        data_source=spec.data_source,
        official=spec.official,
        splits=splits,
        experts=experts,
        determinism=determinism,
        speed=speed,
        problems=_problems(experts, determinism, speed),
    )


def _split(client: EnvClient, spec: EnvSpec, split: str) -> SplitCheck:
    panel = build_panel(client, split)
    is_committed = committed(spec.name, spec.data_source, split) is not None
    return SplitCheck(split, role_of(spec.name, split), len(panel.tasks), panel.sha256, is_committed)


def _expert(task_id: str, kind: str, split: str, spec: EnvSpec, episode: ExpertEpisode | None) -> ExpertCheck:
    if episode is None:
        return ExpertCheck(task_id, kind, split, 0, spec.default_max_turns, 0.0, False)
    last = episode.results[-1]
    return ExpertCheck(task_id, kind, split, len(episode.steps), spec.default_max_turns, last.score, last.success)


def _determinism(
    env: EnvConfig, spec: EnvSpec, episodes: Sequence[ExpertEpisode], workers: int, say: Say
) -> tuple[Determinism, _Replay]:
    """Replays in new workers. The first replay is returned for its times."""
    difference = ""
    replays: list[_Replay] = []
    for number in range(workers):
        say(f"replay {number + 1} of {workers}, in a new worker")
        with closing(registry.connect(env.model_copy(update={"processes": 1}))) as client:
            client.spec()
            replays.append(_replay(client, _reordered(episodes, number)))
        difference = difference or _difference(episodes, replays[-1])
    steps = sum(len(episode.steps) for episode in episodes)
    return Determinism(spec.deterministic, not difference, workers, len(episodes), steps, difference), replays[0]


def _speed(env: EnvConfig, spec: EnvSpec, episodes: Sequence[ExpertEpisode], alone: _Replay, say: Say) -> Speed:
    reset_seconds = alone.reset_seconds / max(1, len(episodes))
    rate = alone.steps / max(alone.step_seconds, 1e-9)
    if not spec.deterministic:
        return Speed(reset_seconds, rate, None, None, None)
    say("twice with the transition cache")
    with closing(registry.connect(env.model_copy(update={"processes": 1, "cache": True}))) as client:
        for split in spec.splits:
            client.tasks(split)  # the cache's keys need the tasks' content hashes
        _replay(client, episodes)
        before = client.stats()
        again = _replay(client, episodes)
        after = client.stats()
    asked = len(episodes) + again.steps
    hits = after["cache_hits"] - before["cache_hits"]
    equal = not _difference(episodes, again)
    return Speed(reset_seconds, rate, again.steps / max(again.step_seconds, 1e-9), hits / max(1, asked), equal)


def _replay(client: EnvClient, episodes: Sequence[ExpertEpisode]) -> _Replay:
    replay = _Replay({})
    for episode in episodes:
        live = client.open(episode.task_id)
        started = time.perf_counter()
        results = [live.reset().result()]
        stepping = time.perf_counter()
        results += [live.step(step.action).result() for step in episode.steps]
        replay.step_seconds += time.perf_counter() - stepping
        replay.reset_seconds += stepping - started
        replay.steps += len(episode.steps)
        replay.results[episode.task_id] = results
        live.close()
    return replay


def _reordered(episodes: Sequence[ExpertEpisode], number: int) -> list[ExpertEpisode]:
    """Another order for each number: so that what a worker did before an episode differs."""
    start = number * 5 % max(1, len(episodes))
    rotated = [*episodes[start:], *episodes[:start]]
    return rotated[::-1] if number % 2 else rotated


def _difference(episodes: Sequence[ExpertEpisode], replay: _Replay) -> str:
    """The first result that is not the expert's own, in words; "" when there is none."""
    for episode in episodes:
        for turn, (expected, got) in enumerate(zip(episode.results, replay.results[episode.task_id], strict=True)):
            if expected != got:
                fields = [name for name, value in vars(expected).items() if value != getattr(got, name)]
                action = f"action {turn} ({episode.steps[turn - 1].action!r})" if turn else "the reset"
                return f"{episode.task_id}: {action} gave another {', '.join(fields)}"
    return ""


def _problems(experts: Sequence[ExpertCheck], determinism: Determinism, speed: Speed) -> list[str]:
    problems = []
    if lost := [expert.task_id for expert in experts if not expert.success]:
        problems.append(f"The expert does not solve {len(lost)} of {len(experts)} tasks: {', '.join(lost)}.")
    if determinism.declared and not determinism.found:
        problems.append(f"It is declared deterministic and is not: {determinism.difference}.")
    if speed.cached_equal is False:
        problems.append("The transition cache changes a result.")
    return problems
