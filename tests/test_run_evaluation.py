"""Evaluating a run from its folder: which file, and what is not played again. On the toy corridor, with everything real."""

import pytest

from agentcredit import outcomes
from agentcredit.errors import MissingError
from agentcredit.progress import Silent
from agentcredit.run_evaluation import evaluate_run
from agentcredit.rundir import RunDir
from tests.training.toy_run import config, register_toy


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTCREDIT_HOME", str(tmp_path / "home"))
    register_toy(monkeypatch)
    with RunDir.open(config(tmp_path / "runs", tiny__updates=5, tiny__games=2, env__max_turns=3)) as opened:
        return RunDir.load(opened.path)


def test_another_temperature_has_a_file_of_its_own_and_nothing_is_played_twice(run):
    own = evaluate_run(run, "dev", progress=Silent())
    before = own.read_bytes()
    greedy = evaluate_run(run, "dev", temperature=0.0, progress=Silent())
    assert (own.name, greedy.name) == ("dev-start.jsonl", "dev-start-t0.jsonl")
    assert own.read_bytes() == before
    headers = [outcomes.read(path).header for path in (own, greedy)]
    assert [(h.temperature, h.own_temperature, h.step) for h in headers] == [(0.4, True, -1), (0.0, False, -1)]
    written = [path.stat().st_mtime_ns for path in (own, greedy)]
    # The run's own temperature, however it is said, is the run's own.
    assert evaluate_run(run, "dev", temperature=0.4, progress=Silent()) == own
    assert evaluate_run(run, "dev", temperature=0.0, progress=Silent()) == greedy
    assert [path.stat().st_mtime_ns for path in (own, greedy)] == written


def test_scripted_policies_stand_beside_the_model(run):
    expert = outcomes.read(evaluate_run(run, "dev", policy="expert", progress=Silent()))
    assert (expert.header.policy, expert.header.temperature, expert.header.own_temperature) == ("expert", 0.0, True)
    assert expert.path is not None
    assert expert.path.name == "dev-expert.jsonl"
    # The way to the chest has six steps at least; the run allows three turns.
    assert not any(outcome.success for outcome in expert.outcomes)


def test_a_checkpoint_that_is_not_there(run):
    with pytest.raises(MissingError, match=r"no checkpoint of step 7 \(--checkpoint\)\. There are: none\."):
        evaluate_run(run, "dev", checkpoint=7, progress=Silent())
