"""What CoPE logs of a step that needs no model: what its targets are, and whether they drift to doing nothing.

Where the tasks that succeed are those that need nothing done, imitating successes teaches doing nothing (the paper's τ²-bench
Airline). The signs: no-ops and endings take a larger share of the targets than of the rollouts, and success grows on the tasks
that need no change of state while it falls on the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentcredit.episodes import Episode, Group, StopReason, Turn
from agentcredit.methods.forecasts import Forecast, by_episode

OWN_ENDS = frozenset({StopReason.SUCCESS, StopReason.FAILURE})
"""Ends that the agent's last action brought about; the others are budgets, or the harness."""


def target_metrics(forecasts: Sequence[Forecast], groups: Sequence[Group]) -> dict[str, float]:
    """Sizes, and the shares of no-ops and of terminating actions in targets and in rollouts.

    A target counts by the action that is next when it is asked for, so that an episode's actions count once each, as they do
    in the rollouts. Shares are left out where there is no action to take them of.
    """
    if not groups:
        return {}
    won = [[episode.success for episode in group.episodes] for group in groups]
    metrics = {
        "cope/rows": float(len(forecasts)),
        "cope/episodes": float(len(by_episode(forecasts))),
        "cope/groups_with_success": sum(any(w) for w in won) / len(won),
        "cope/all_success_share": sum(all(w) for w in won) / len(won),
        "cope/weight_sum": sum(forecast.weight for forecast in forecasts),
    }
    played = [(episode, t) for group in groups for episode in group.episodes for t in range(len(episode.turns))]
    said = [(groups[f.group].episodes[f.episode], f.turn) for f in forecasts]
    for place, actions in (("target", said), ("rollout", played)):
        if said:
            metrics[f"cope/{place}_noop_share"] = _share(is_noop(episode.turns[t]) for episode, t in actions)
            metrics[f"cope/{place}_end_share"] = _share(ends(episode, t) for episode, t in actions)
    return metrics


def is_noop(turn: Turn) -> bool:
    """Whether the action is known to have left the abstract state as it was."""
    return turn.state_key is not None and turn.state_key == turn.next_state_key


def ends(episode: Episode, t: int) -> bool:
    """Whether the environment ended the episode on the action of turn ``t``, won or lost; budgets are no such end."""
    return t == len(episode.turns) - 1 and episode.stop_reason in OWN_ENDS


def idle_split(groups: Sequence[Group]) -> dict[str, float]:
    """Success on tasks that need a change of state and on those that do not, and the latter's share of the tasks.

    A task needs none if a successful sibling ended in the abstract state that it began in; one that no sibling solved counts
    as one that needs a change (an expert would know better, and can take minutes to say so). Tasks without state keys are
    left out, and a success rate whose kind of task is missing is too.
    """
    idle, change = list[Group](), list[Group]()
    for group in groups:
        verdicts = [(e.success, returns) for e in group.episodes if (returns := _returns(e)) is not None]
        if not verdicts:
            continue
        (idle if any(success and returns for success, returns in verdicts) else change).append(group)
    if not idle and not change:
        return {}
    metrics = {"cope/idle_task_share": len(idle) / (len(idle) + len(change))}
    for name, kind in (("idle", idle), ("change", change)):
        if kind:
            metrics[f"cope/success_{name}_tasks"] = _share(e.success for group in kind for e in group.episodes)
    return metrics


def _returns(episode: Episode) -> bool | None:
    """Whether it ended in the state it began in; None where a key is not known."""
    if not episode.turns:
        return None
    first, last = episode.turns[0].state_key, episode.turns[-1].next_state_key
    return None if first is None or last is None else first == last


def _share(flags: Iterable[bool]) -> float:
    listed = list(flags)
    return sum(listed) / len(listed)
