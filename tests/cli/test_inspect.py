"""``agentcredit inspect`` on runs as training leaves them."""

import json
from pathlib import Path

import pytest

from agentcredit.config import RunConfig
from agentcredit.episodes import episode_to_json
from agentcredit.methods.registry import build
from agentcredit.rundir import RunDir
from tests.cli.command import agentcredit, refused
from tests.methods.build import group, task, tools, walk

WON = walk(["a | b", "c", "end"], True, of=task("games/t0"), lifted=["r0", "r1", "r2"])
OTHER = walk(["a | b", "end"], True, of=task("games/t1"), lifted=["r0", "r1"])


def make(folder: Path, method: str = "proas", checkpoint: bool = True, episodes: bool = False, **params) -> RunDir:
    import torch

    from agentcredit.training.checkpoint import save

    config = RunConfig.model_validate(
        {"name": "x", "out": str(folder / "runs"), "method": {"name": method, "params": params}}
    )
    groups = [group(WON), group(OTHER)]
    with RunDir.open(config) as run:
        composition = build(config.method)
        composition.credit(groups, tools())
        if episodes:
            run.write_episodes(1, [episode_to_json(each) for g in groups for each in g.episodes])
        if checkpoint:
            extra = {"method": composition.state_dict()}
            save(run.checkpoints, 7, {"w": torch.zeros(1)}, {"m": torch.zeros(1)}, extra)
        run.finish("finished")
    return run


def test_which_graphs_there_are(tmp_path: Path):
    make(tmp_path)
    shown = agentcredit("inspect", "x", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.splitlines() == [
        "instance  2 graphs, 2 with a way to the goal, 5 nodes; largest: toy/train/games/t0 (3 nodes)",
        "lifted    1 graphs, 1 with a way to the goal, 3 nodes; largest: toy/fetch (3 nodes)",
    ]
    assert "checkpoint of step 7" in shown.stderr
    only = json.loads(agentcredit("inspect", "x", "--level", "lifted", "--json", cwd=tmp_path).stdout)
    assert [row["level"] for row in only["levels"]] == ["lifted"]


@pytest.mark.parametrize("name", ["games/t0", "toy/train/games/t0"])
def test_one_graph_as_text(tmp_path: Path, name: str):
    make(tmp_path)
    shown = agentcredit("inspect", "x", "--graph", name, cwd=tmp_path).stdout
    assert shown.startswith("instance toy/train/games/t0: 3 nodes, 2 edges\n")
    assert "[2] distance 2\n    a\n    b\n  * -> [1]  a | b>c ×1" in shown


def test_one_graph_for_other_tools(tmp_path: Path):
    make(tmp_path)
    dot = agentcredit("inspect", "x", "--graph", "fetch", "--format", "dot", cwd=tmp_path).stdout
    assert dot.startswith('digraph "lifted toy/fetch" {')
    assert "doublecircle" in dot
    plain = json.loads(agentcredit("inspect", "x", "--graph", "fetch", "--format", "json", cwd=tmp_path).stdout)
    assert [node["distance"] for node in plain["nodes"]] == [0, 1, 1]


def test_without_a_checkpoint_the_stored_episodes_serve(tmp_path: Path):
    make(tmp_path, checkpoint=False, episodes=True)
    shown = agentcredit("inspect", "x", cwd=tmp_path)
    assert "stored episodes of steps 1 to 1" in shown.stderr
    assert "instance  2 graphs" in shown.stdout


def test_a_spoilt_graph_is_shown_as_the_method_used_it(tmp_path: Path):
    make(tmp_path, corrupt_edges=1.0)
    shown = agentcredit("inspect", "x", cwd=tmp_path).stdout
    assert "instance  2 graphs, 0 with a way to the goal" in shown


def test_what_is_refused(tmp_path: Path):
    make(tmp_path)
    wrong = refused(agentcredit("inspect", "x", "--graph", "fetsh", cwd=tmp_path), 2)
    assert "There is no graph of 'fetsh' among the run's 3. Nearest: fetch" in wrong
    several = refused(agentcredit("inspect", "x", "--graph", "games", cwd=tmp_path), 2)
    assert "Several graphs go by 'games': instance toy/train/games/t0, instance toy/train/games/t1" in several
    at = refused(agentcredit("inspect", "x", "--graph", "fetch", "--level", "instance", cwd=tmp_path), 2)
    assert "no graph of 'fetch' at level instance" in at
    assert "'lifted'" in refused(agentcredit("inspect", "x", "--level", "lifed", cwd=tmp_path), 2)
    assert "name it with --graph" in refused(agentcredit("inspect", "x", "--format", "dot", cwd=tmp_path), 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "grpo"}, "Run x has no reference graph: its method is grpo"),
        ({"checkpoint": False}, "no checkpoint yet, and no stored episodes"),
    ],
)
def test_runs_without_graphs(tmp_path: Path, options: dict, words: str):
    make(tmp_path, **options)
    assert words in refused(agentcredit("inspect", "x", cwd=tmp_path), 3)
