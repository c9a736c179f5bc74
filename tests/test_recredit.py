"""Credit for stored episodes: a run's own method gives its own credit back, another one stands beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agentcredit import recredit as module
from agentcredit.config import MethodConfig
from agentcredit.errors import MissingError, UsageError
from agentcredit.methods.base import Credit
from agentcredit.methods.registry import build
from agentcredit.offline import Offline
from agentcredit.recredit import Recredited, Step, Totals, credit_path, find_episode, recredit, store
from agentcredit.rundir import RunDir
from tests.methods.build import walk
from tests.training import toy_run


@pytest.fixture(scope="module", autouse=True)
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        toy_run.register_toy(patch)
        patch.setenv("AGENTCREDIT_HOME", str(tmp_path_factory.getbasetemp() / "home-of-loop-tests"))
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def trained(runs: Path, name: str, **changes: object) -> RunDir:
    if (runs / name).exists():
        return RunDir.load(runs / name)
    changes = {"train__steps": 3, "train__eval_every": 0, "train__keep_checkpoints": 9, **changes}
    return toy_run.run_training(toy_run.config(runs, name=name, method__name=name.split("-")[0], **changes))


def steps_of(
    run: RunDir, method: MethodConfig | None = None, only: int | None = None
) -> tuple[list[Step], dict[int, str]]:
    with Offline(run) as offline:
        return list(recredit(run, build(method or run.config.method), offline, only)), offline.weights_of


@pytest.mark.parametrize("name", ["grpo", "proas", "gigpo"])
def test_a_runs_own_method_gives_its_own_credit_without_a_model(runs: Path, name: str):
    run = trained(runs, name)
    steps, weights = steps_of(run)
    assert [step.step for step in steps] == [1, 2, 3]
    assert not weights
    originals = [one.original_T for step in steps for one in step.episodes]
    assert any(np.any(original) for original in originals)
    for step in steps:
        for one in step.episodes:
            assert one.advantage_T.tolist() == one.original_T.tolist()


@pytest.mark.parametrize("name", ["rlsd", "alignopsd"])
def test_a_method_that_asks_the_model_gets_the_weights_that_played_the_step(runs: Path, name: str):
    run = trained(runs, name)
    steps, weights = steps_of(run)
    assert {step: name for step, name in weights.items() if not name.startswith("=")} == {}
    assert any(step.weights == f"= step {step.step - 1}" for step in steps[1:])
    for step in steps:
        for one in step.episodes:
            assert one.advantage_T.tolist() == one.original_T.tolist()


def test_weights_that_are_gone_are_said_to_be_others(runs: Path):
    run = trained(runs, "rlsd-thin", train__keep_checkpoints=1, train__checkpoint_every=3)
    _, weights = steps_of(run)
    # Kept are the start (0) and step 3; step n was played by the weights of n − 1.
    assert weights == {step: {1: "= start", 2: "start", 3: "step 3"}[step] for step in weights}
    assert {name for name in weights.values() if not name.startswith("=")}


def test_a_method_with_a_memory_goes_through_the_earlier_steps(runs: Path):
    run = trained(runs, "proas")
    (whole,) = [step for step in steps_of(run)[0] if step.step == 3]
    (alone,) = steps_of(run, only=3)[0]
    assert [one.advantage_T.tolist() for one in alone.episodes] == [one.advantage_T.tolist() for one in whole.episodes]


def test_another_method_is_stored_by_token_beside_the_original(runs: Path):
    run = trained(runs, "grpo")
    method = build(MethodConfig(name="cope+proas"))
    path = credit_path(run, method)
    with Offline(run) as offline:
        totals = store(path, run, method, recredit(run, method, offline))
    header, *records = module.read(path)
    assert (header["run"], header["label"], header["format"]) == ("grpo", method.label(), 1)
    assert header["original"] == build(run.config.method).label()
    assert header["fingerprint"] == run.config.fingerprint()
    episodes = [record for record in records if record["kind"] == "episode"]
    assert len(episodes) == totals.episodes == sum(1 for step in (1, 2, 3) for _ in run.read_episodes(step))
    for record in episodes:
        assert len(record["advantage_T"]) == len(record["original_T"]) == len(record["advantage_TN"])
        for mean, tokens in zip(record["advantage_T"], record["advantage_TN"], strict=True):
            assert mean == pytest.approx(np.mean(tokens))
    logged = [record for record in records if record["kind"] == "step"]
    assert any(record["metrics"].get("cope/rows", 0) > 0 and record["extra_rows"] > 0 for record in logged)


def test_the_summary_says_how_far_the_two_agree():
    episode = walk(["s0", "s1", "s2", "s3", "s0"], True)
    n = [turn.n_tokens for turn in episode.turns]
    new = [0.5, 0.0, 1.0, -2.0]  # as it was; silenced; doubled; turned round
    credit = Credit(tuple(np.full(k, value) for k, value in zip(n, new, strict=True)))
    totals = Totals()
    totals.add(Step(1, [Recredited(1, episode, np.array([0.5, 0.5, 0.5, 0.5]), credit)], {}))
    assert totals.summary() == pytest.approx(
        {
            "episodes": 1,
            "turns": 4,
            "abs_advantage_original": 0.5,
            "abs_advantage": 0.875,
            "share_equal": 0.25,
            "share_silenced": 0.25,
            "share_turned": 0.25,
        }
    )


def test_episodes_by_name(runs: Path):
    run = trained(runs, "grpo")
    record = next(iter(run.read_episodes(2)))
    name = f"2/{record['task']['id']}/{record['sibling']}"
    assert find_episode(run, name) == (2, name)
    with pytest.raises(UsageError, match="is the beginning of"):
        find_episode(run, "2/")
    with pytest.raises(UsageError, match=r"no stored episode '7/x'.*steps 1 to 3\)\.$"):
        find_episode(run, "7/x")
    with pytest.raises(UsageError) as caught:
        find_episode(run, name + "9")
    assert f"Nearest: {name}, " in str(caught.value)
    assert str(caught.value).partition("Nearest: ")[2].count(", ") == 2  # three, of all the step's episodes


def test_weights_are_proved_once_a_step_and_not_read_for_a_template(runs: Path, monkeypatch: pytest.MonkeyPatch):
    from agentcredit import offline

    run = trained(runs, "grpo")
    proved: list[Path] = []
    real = offline.problem_of
    monkeypatch.setattr(offline, "problem_of", lambda path: proved.append(path) or real(path))
    _, weights = steps_of(run, MethodConfig(name="echo"))
    assert (weights, proved) == ({}, [])  # the tokenizer of the start
    _, weights = steps_of(run, MethodConfig(name="rlsd"))
    assert weights
    assert sorted(proved) == sorted(set(proved))


def test_a_checkpoint_without_a_tokenizer_gives_its_own_weights(tmp_path: Path):
    """As of a model from a hub: the tokenizer comes from there, the weights from the checkpoint."""
    import shutil

    import torch

    from agentcredit.policies.models import load, tokenizer_of

    run = trained(tmp_path, "grpo", train__steps=1)
    start, other = run.checkpoints / "step-000001", tmp_path / "other"
    shutil.copytree(start, other)
    for path in other.glob("*token*"):
        path.unlink()
    (other / "warmstart.json").unlink()
    policy = run.config.policy.model_copy(update={"model": str(start)})
    assert (tokenizer_of(policy, start), tokenizer_of(policy, other)) == (start, str(start))
    model, tokenizer = load(policy, other, tokenizer_of(policy, other))
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    model.save_pretrained(other)
    again, _ = load(policy, other, tokenizer_of(policy, other))
    assert torch.equal(next(again.parameters()), next(model.parameters()))
    assert tokenizer.chat_template


def test_what_is_not_there(runs: Path):
    run = trained(runs, "grpo")
    with pytest.raises(UsageError, match=r"no stored episodes of step 8 .*1 to 3"):
        steps_of(run, only=8)
    bare = trained(runs, "grpo-bare", train__save_episodes=False, train__steps=1)
    with pytest.raises(MissingError, match=r"train\.save_episodes"):
        steps_of(bare)


def test_the_command(runs: Path, capsys: pytest.CaptureFixture[str]):
    from agentcredit.cli.main import run as command

    run = trained(runs, "grpo")
    record = next(iter(run.read_episodes(1)))
    name = f"1/{record['task']['id']}/{record['sibling']}"
    out = ["--out", str(runs)]
    assert command(["credit", "grpo", "--method", "proas", *out]) == 0
    said = capsys.readouterr()
    assert "as they were" in said.out
    assert "Stored in" in said.err
    assert command(["credit", "grpo", "--method", "proas", "--episode", name, *out]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{name}: ")
    assert len(lines) == 3 + len(record["turns"])
    assert command(["credit", "grpo", "--set", "method.params.std=false", "--step", "2", "--json", *out]) == 0
    assert json.loads(capsys.readouterr().out)["label"].startswith("grpo(over=trajectory,no-std)")
    file = ["--out-file", str(runs / "two.jsonl.zst")]
    assert command(["credit", "grpo", "--method", "gigpo", "--step", "2", *file, *out]) == 0
    assert "gigpo/singleton_share" in capsys.readouterr().out
    assert [each["step"] for each in module.read(runs / "two.jsonl.zst") if each["kind"] == "step"] == [2]
    assert command(["credit", "grpo", "--episode", name, *file, *out]) == 2
    assert "stores nothing" in capsys.readouterr().err
    assert command(["credit", "grpo", "--set", "optim.lr=1", *out]) == 2
    assert "method.* alone" in capsys.readouterr().err
    assert command(["credit", "grpo", "--method", "prosa", *out]) == 2
