"""A world in which an object has to be found: seven places, a log-linear policy, no language model.

The object lies in one of six places (some likelier than others), has to be taken and put down in the seventh, within 14
turns. The policy does not see where the object is until it stands there; the state key knows (as a simulator's does), the
lifted key only says whether the object was found, is held, and has arrived. ``python -m tests.methods.search_world`` prints
how fast each method learns here.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from agentcredit.config import MethodConfig
from agentcredit.episodes import Episode, Group, StopReason, Task, Turn
from agentcredit.methods.base import Tools
from agentcredit.methods.registry import build

PLACES, TARGET, BUDGET = 7, 6, 14
PRIOR = np.array([0.3, 0.22, 0.18, 0.12, 0.1, 0.08, 0.0])
TAKE, PUT = PLACES, PLACES + 1
VISITED, HERE, SEEN, TAKE_ANY, TAKE_SEEN, PUT_ANY, PUT_TARGET, PUT_HELD = range(2 * PLACES, 2 * PLACES + 8)
N_FEATURES = 2 * PLACES + 8


@cache
def features(place: int, held: bool, seen: bool, visited: int) -> np.ndarray:
    """[actions, features]: go to each place, take, put."""
    table = np.zeros((PLACES + 2, N_FEATURES))
    for i in range(PLACES):
        table[i, (PLACES if held else 0) + i] = 1
        table[i, [VISITED, HERE, SEEN]] = [(visited >> i & 1) and not held, i == place, seen]
    table[TAKE, [TAKE_ANY, TAKE_SEEN]] = [1, seen]
    table[PUT, [PUT_ANY, PUT_TARGET, PUT_HELD]] = [1, held and place == TARGET, held]
    return table


def warm_start() -> np.ndarray:
    """A policy that knows the actions' uses and solves about one task in seven."""
    w = np.zeros(N_FEATURES)
    w[[VISITED, HERE]] = [-0.7, -1.5]
    w[[TAKE_ANY, TAKE_SEEN, PUT_ANY, PUT_TARGET, PUT_HELD]] = [-1.5, 3.0, -3.0, 3.5, 1.0]
    w[TARGET] = 1.0  # it likes to search where the object never is
    return w


def play(w: np.ndarray, task: Task, sibling: int, rng: np.random.Generator, hidden: int):
    """One episode, with (features, action, probabilities) of every turn."""
    place, held, lies, visited = -1, False, hidden, 0
    turns, choices, won = [], [], False
    for _ in range(BUDGET):
        seen = place == lies
        table = features(place, held, seen, visited)
        logits = table @ w
        pi = np.exp(logits - logits.max())
        pi /= pi.sum()
        action = min(int(np.searchsorted(np.cumsum(pi), rng.random())), PUT)
        key, lifted = keys(place, held, lies)
        if action < PLACES:
            place, visited = action, visited | 1 << action
        elif action == TAKE and seen:
            held, lies = True, -2
        elif action == PUT and held and place == TARGET:
            won = True
        elif action == PUT and held and place >= 0:
            held, lies = False, place
        after, lifted_after = keys(place, held, lies)
        one = np.zeros(1, dtype=np.float32)
        turns.append(
            Turn((1,), (1,), one, str(action), True, key, after, float(won), "", key, after, lifted, lifted_after)
        )
        choices.append((table, action, pi))
        if won:
            break
    reason = StopReason.SUCCESS if won else StopReason.MAX_TURNS
    return Episode(task, sibling, "dialogue", tuple(turns), float(won), won, reason), choices


def keys(place: int, held: bool, lies: int) -> tuple[str, str]:
    return f"{place},{held},{lies}", f"{held or place == lies},{held},{held and place == TARGET}"


def learn(config: MethodConfig, seed: int, steps: int = 24, tasks: int = 6, siblings: int = 8, rate: float = 1.5):
    """Share of successes at every step, [steps]."""
    composition, w, rng = build(config), warm_start(), np.random.default_rng(seed)
    curve = []
    for step in range(steps):
        groups, choices = [], []
        for k in range(tasks):
            task = Task("search", "train", f"{step}-{k}", "fetch", "", "0" * 16)
            hidden = int(rng.choice(PLACES, p=PRIOR))
            played = [play(w, task, g, rng, hidden) for g in range(siblings)]
            groups.append(Group(task, tuple(e for e, _ in played)))
            choices.append([c for _, c in played])
        assignment = composition.credit(groups, Tools(step=step, rng=rng, max_turns=BUDGET))
        gradient, n = np.zeros(N_FEATURES), 0
        for credits, made in zip(assignment.credits, choices, strict=True):
            for credit, turns in zip(credits, made, strict=True):
                for advantage, (table, action, pi) in zip(credit.advantage_TN, turns, strict=True):
                    gradient += advantage[0] * (table[action] - pi @ table)
                    n += 1
        w = w + rate * gradient / n
        curve.append(float(np.mean([e.success for g in groups for e in g.episodes])))
    return np.array(curve)


if __name__ == "__main__":
    runs = {"grpo": ("grpo", {}), "gigpo": ("gigpo", {})}
    for kappa in (0.0, 0.5, 1.0):
        runs[f"proas kappa={kappa}"] = ("proas", {"kappa": kappa})
    for graph, eta in (("instance", 0.5), ("lifted", 0.5), ("both", 0.0), ("both", 1.0)):
        runs[f"proas graph={graph} eta_novel={eta}"] = ("proas", {"graph": graph, "eta_novel": eta})
    for label, (name, params) in runs.items():
        curves = np.array([learn(MethodConfig(name=name, params=params, invalid_mode="off"), s) for s in range(5)])
        last = curves[:, -8:].mean(axis=1)
        print(
            f"{label:48s} {curves.mean():.3f}   last 8: {last.mean():.3f} ± {last.std(ddof=1) / 5**0.5:.3f}", flush=True
        )
