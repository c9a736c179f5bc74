"""A method with its neutral parameters trains exactly as its base: the same bits in every weight after one update."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentcredit.assembly import open_stage
from agentcredit.config import MethodConfig
from agentcredit.episodes import Group
from agentcredit.methods.registry import build, get, names
from agentcredit.progress import Silent
from agentcredit.rundir import RunDir
from agentcredit.training.loop import Trainer, assemble
from agentcredit.training.rows import build_rows
from tests.training import toy_run

NEUTRAL = {name: dict(neutral) for name in names() if (neutral := getattr(get(name), "neutral", {}))}


@dataclass
class Scene:
    """One step's episodes of the toy corridor, and the weights that played them."""

    trainer: Trainer
    groups: list[Group]
    start: dict[str, Any]

    def weights_after(self, **method: Any) -> list[bytes]:
        """Every weight after one update from the start."""
        self.trainer.method = build(MethodConfig(**method))
        self.trainer.learner.load_state_dict(self.start)
        assignment = self.trainer.credit(self.groups, 1)
        self.trainer.learner.update(build_rows(self.groups, assignment), 0)
        return [tensor.numpy().tobytes() for tensor in self.trainer.learner.state_dict()["model"].values()]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with pytest.MonkeyPatch.context() as patch:
        toy_run.register_toy(patch)
        patch.setenv("AGENTCREDIT_HOME", str(tmp_path_factory.getbasetemp() / "home-of-loop-tests"))  # one warm start
        folder: Path = tmp_path_factory.mktemp("runs")
        config = toy_run.config(folder, method__name="grpo", train__tasks_per_step=4, train__minibatches=2)
        with RunDir.open(config) as run:
            stage = open_stage(config, None)
            try:
                trainer = assemble(config, run, stage, build(config.method), Silent())
                groups, _ = trainer.collect(1)
                outcomes = [{episode.success for episode in group.episodes} for group in groups]
                assert {True, False} in outcomes, "no group with both outcomes: every method would be neutral here"
                yield Scene(trainer, groups, copy.deepcopy(trainer.learner.state_dict()))
            finally:
                stage.client.close()


def test_the_update_moves_the_weights_and_repeats(scene: Scene):
    base = scene.weights_after(name="grpo")
    assert base == scene.weights_after(name="grpo")
    assert base != [tensor.numpy().tobytes() for tensor in scene.start["model"].values()]


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_with_its_neutral_parameters_it_is_the_base(scene: Scene, name: str):
    assert scene.weights_after(name=name, params=NEUTRAL[name]) == scene.weights_after(name="grpo")


def test_on_another_base(scene: Scene):
    neutral = scene.weights_after(name="cope+proas", base="gigpo", params=NEUTRAL["cope"] | NEUTRAL["proas"])
    assert neutral == scene.weights_after(name="gigpo")


@pytest.mark.parametrize("name", sorted(NEUTRAL))
def test_without_its_neutral_parameters_it_is_not_the_base(scene: Scene, name: str):
    assert scene.weights_after(name=name) != scene.weights_after(name="grpo")


def test_proas_without_any_known_way_is_its_base(scene: Scene):
    """Its graphs are empty before the first success is learned, which ``after`` leaves to the end of the step."""
    ignorant = scene.weights_after(name="proas", params={"update_order": "after"})
    assert ignorant == scene.weights_after(name="grpo")
    assert scene.weights_after(name="proas") != ignorant
