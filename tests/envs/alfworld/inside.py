"""What the tests do in the environment's interpreter: ``inside.py FUNCTION JSON-ARGUMENTS`` prints JSON."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from agentcredit.envs import alfworld_official
from agentcredit.envs.alfworld import Alfworld, make
from agentcredit.envs.alfworld_engine import engine_class
from agentcredit.envs.alfworld_generator import TASK_TYPES, build_game
from agentcredit.envs.alfworld_model import expert_turns
from agentcredit.envs.alfworld_rooms import room, rooms_for
from agentcredit.envs.base import to_plain

HOME = Path(os.environ["TEST_HOME"])


def hashes(names: list[list[Any]]) -> list[str]:
    return [build_game(*name).content_hash for name in names]


def listings(size: str) -> dict[str, Any]:
    """Rows of the validation splits: as made, and as then read from disk."""
    games = make({"size": size, "home": str(HOME)})
    made, read = ({split: games.tasks(split) for split in ("valid_seen", "valid_unseen")} for _ in range(2))
    return {
        "equal": made == read,
        "rows": {split: [[task.id, task.type, task.content_hash] for task in tasks] for split, tasks in made.items()},
    }


def refused(names: list[list[Any]]) -> list[bool]:
    """Whether each name is a KeyError."""
    answers = []
    for name in names:
        try:
            build_game(*name)
            answers.append(False)
        except KeyError:
            answers.append(True)
    return answers


def problems(names: list[list[Any]]) -> list[str]:
    """The games' problems without their goals."""
    return [build_game(*name).problem.split("(:goal")[0] for name in names]


def rooms() -> dict[str, Any]:
    seen = {task: rooms_for(task, unseen=False) for task in TASK_TYPES}
    unseen = {task: rooms_for(task, unseen=True) for task in TASK_TYPES}
    receptacles = {number: [name for name, _, _ in room(number).receptacles] for number in sum(unseen.values(), ())}
    return {"seen": seen, "unseen": unseen, "receptacles": receptacles}


def experts(names: list[list[Any]]) -> list[Any]:
    """Episodes in the engine, with the turns that the generator's model foresaw."""
    played = []
    for size, split, index in names:
        foreseen: list[int] = []

        def spy(game: Any, model: Any, foreseen: list[int] = foreseen) -> int:
            foreseen.append(expert_turns(game, model))
            return foreseen[-1]

        sys.modules["agentcredit.envs.alfworld_generator"].expert_turns = spy  # type: ignore[attr-defined]
        game = build_game(size, split, index)
        episode = make({"size": size, "home": str(HOME)}).expert(game.id)
        played.append({"type": game.type, "foreseen": foreseen[-1], "episode": episode and to_plain(episode)})
    return played


def walks(names: list[list[Any]], length: int, stock: bool) -> list[Any]:
    """What seeded random walks meet, in the package's own classes or in ours."""
    return [_walk(build_game(*name), length, stock) for name in names]


def _walk(game: Any, length: int, stock: bool) -> list[Any]:
    if stock:
        import textworld
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld.envs import PddlEnv

        env = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)), shuffle=False)
        env.load({"pddl_domain": game.domain, "grammar": game.grammar, "pddl_problem": game.problem})
    else:
        env = engine_class(HOME / "cache" / "alfworld" / "translations")()
        env.load(game)
    rng, state = random.Random(game.id), env.reset()
    met = [[state.feedback.split("Your task")[0], state["admissible_commands"], state["won"]]]
    for _ in range(length):
        command = rng.choice(state["admissible_commands"]) if rng.random() < 0.95 else "dance"
        state, reward, done = env.step(command)
        met.append([command, state.feedback, state["admissible_commands"], state["won"], reward, done])
    return met


def together_and_alone(size: str, count: int, length: int) -> list[bool]:
    """Whether episodes that take turns in one process equal the same episodes played one after the other."""
    slots = [make({"size": size, "home": str(HOME)}) for _ in range(count)]
    names = [build_game(size, "train", index).id for index in range(count)]
    rngs = [random.Random(index) for index in range(count)]
    together = [[slot.reset(name)] for slot, name in zip(slots, names, strict=True)]
    for _ in range(length):
        for slot, rng, results in zip(slots, rngs, together, strict=True):
            results.append(slot.step(rng.choice(results[-1].admissible or [])))
    equal = []
    for slot in slots:
        slot.close()
    for index, name in enumerate(names):
        alone = make({"size": size, "home": str(HOME)})
        rng, results = random.Random(index), [alone.reset(name)]
        for _ in range(length):
            results.append(alone.step(rng.choice(results[-1].admissible or [])))
        alone.close()
        equal.append(results == together[index])
    return equal


def transitions(size: str, games: int, walks: int, length: int) -> dict[str, int]:
    """Random walks: how often a (full state, action) came again, and how often it then led elsewhere."""
    slot = make({"size": size, "home": str(HOME)})
    known: dict[Any, Any] = {}
    counts = {"steps": 0, "repeats": 0, "different": 0}
    for number in range(walks):
        rng, name = random.Random(number), build_game(size, "valid_seen", number % games).id
        now = slot.reset(name)
        for _ in range(length):
            action = rng.choice([*(now.admissible or []), "dance"])
            key, after = (name, now.full_state, action), slot.step(action)
            counts["steps"] += 1
            counts["repeats"] += key in known
            counts["different"] += known.setdefault(key, after) != after
            if (now := after).done:
                break
    return counts


def translations(name: list[Any]) -> dict[str, Any]:
    """Plays a little; how many translations were made, how many lie on disk, and what was met."""
    import fast_downward

    met = walks([name], 10, stock=False)
    files = list((HOME / "cache" / "alfworld" / "translations").glob("*/*.sas"))
    return {"made": fast_downward.pddl2sas.translated, "kept": len(files), "met": met}


def official(problem: str, record: str, commands: list[str]) -> dict[str, Any]:
    """The shared game in the release's layout, won by its walkthrough and by the searching expert."""
    from agentcredit.envs.alfworld_package import package

    folder = HOME / "official" / "json_2.1.1" / "train" / "pick_heat_then_place_in_recep-Potato-None-SinkBasin-14" / "t"
    for path in (folder, folder.parents[2] / "valid_seen", folder.parents[2] / "valid_unseen"):
        path.mkdir(parents=True, exist_ok=True)
    grammar = package().grammar.replace("UNKNOWN GOAL", "put a hot potato in sinkbasin")
    data = {"pddl_domain": package().domain, "grammar": grammar, "pddl_problem": Path(problem).read_text()}
    (folder / "game.tw-pddl").write_text(json.dumps(data | {"solvable": True, "walkthrough": commands}))
    (folder / "traj_data.json").write_bytes(Path(record).read_bytes())
    alfworld_official.COUNTS.update(train=1, valid_seen=0, valid_unseen=0)
    slot: Alfworld = make({"official": True, "data": str(HOME / "official"), "home": str(HOME)})
    (task,) = slot.tasks("train")
    results = [slot.reset(task.id), *(slot.step(command) for command in commands)]
    expert = slot.expert(task.id)
    return {
        "task": to_plain(task),
        "again": [to_plain(task) for task in slot.tasks("train")],
        "source": slot.spec().data_source,
        "won": results[-1].success,
        "valid": all(result.valid for result in results),
        "observations": [result.observation for result in results[1:]],
        "expert": expert and to_plain(expert),
    }


if __name__ == "__main__":
    answer = globals()[sys.argv[1]](*json.loads(sys.argv[2]))
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
