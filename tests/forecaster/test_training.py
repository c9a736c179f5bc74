"""A forecaster beside a run, end to end on the toy corridor: trained once, kept, and acted by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentcredit import outcomes
from agentcredit.cli.main import run as main
from agentcredit.errors import MissingError, UsageError
from agentcredit.forecaster import training
from agentcredit.forecaster.ensemble import Ensemble
from agentcredit.forecaster.training import split_by_task
from agentcredit.progress import Silent
from agentcredit.report.collect import collect, select
from agentcredit.report.compare import compare
from agentcredit.run_evaluation import evaluate_run
from agentcredit.rundir import RunDir
from tests.methods.build import task, walk
from tests.training.toy_run import config, register_toy, run_training


def test_no_task_is_learned_from_and_held_out():
    episodes = [walk(["A", "G"], True, of=task(f"t{n % 5}")) for n in range(12)]
    learned, held_out = split_by_task(episodes, 0.2, seed=0)
    assert len({e.task.id for e in held_out}) == 1
    assert len(learned) + len(held_out) == 12
    assert not {e.task.id for e in learned} & {e.task.id for e in held_out}
    assert split_by_task(episodes, 0.2, seed=0) == (learned, held_out)
    assert split_by_task(episodes[:1], 0.2, seed=0) == (episodes[:1], [])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    pytest.importorskip("peft")
    with pytest.MonkeyPatch.context() as patch:
        register_toy(patch)
        patch.setenv("AGENTCREDIT_HOME", str(tmp_path_factory.getbasetemp() / "home-of-loop-tests"))
        patch.setattr(training.Recipe, "__init__", _short(training.Recipe.__init__))
        yield run_training(config(tmp_path_factory.mktemp("forecaster"), method__name="grpo", train__steps=2))


def _short(init: Any) -> Any:
    def made(self: Any, **given: Any) -> None:
        init(self, **{"updates": 30, **given})

    return made


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_run_is_played_by_its_forecaster_beside_the_plain_evaluation(run: RunDir):
    before = files(run.checkpoints)
    plain = evaluate_run(run, "dev", temperature=1.0, progress=Silent())
    own = plain.read_bytes()
    ranked = evaluate_run(run, "dev", temperature=1.0, rerank=Ensemble(candidates=4), progress=Silent())
    assert ranked.name == "dev-000002-t1-rerank-forecaster-n-4-K-2.jsonl"
    assert plain.read_bytes() == own
    assert files(run.checkpoints) == before  # the policy is what it was
    headers = [outcomes.read(path).header for path in (plain, ranked)]
    assert [h.rerank for h in headers] == ["", "rerank(forecaster,n=4,K=2)"]
    assert headers[1].method == "grpo+rerank"
    assert headers[1].label == f"{headers[0].label}+rerank(forecaster,n=4,K=2)"
    assert headers[1].comparison == headers[0].comparison

    # A report has a row for each, and takes the difference to the plain one.
    (section,) = compare(select(collect(run.path.parent), "dev", 1.0).evaluations, "")
    rows = {row.label: row for row in section.rows if row.is_method}
    assert rows.keys() == {h.label for h in headers}
    assert section.baseline == headers[0].label

    # The forecaster is kept whole, and learned something of tasks that it was not trained on.
    (folder,) = (run.path / "forecaster").iterdir()
    kept = files(folder)
    assert kept.keys() == {"adapter.safetensors", "forecaster.json"}
    facts = training.facts_of(folder)
    assert facts["loss"][-1] < facts["loss"][0]
    assert {"nll", "nll_lag0", "nll_lag1", "nll_lag2", "top1_acc_lag0"} <= facts["held_out"].keys()

    # Again: nothing is trained or played; without the outcomes they come out the same from what is kept.
    outcome = ranked.read_bytes()
    ranked.unlink()
    assert evaluate_run(run, "dev", temperature=1.0, rerank=Ensemble(candidates=4), progress=Silent()) == ranked
    assert ranked.read_bytes() == outcome
    assert files(folder) == kept


def test_one_candidate_is_the_plain_policy(run: RunDir):
    plain = evaluate_run(run, "dev", temperature=1.0, progress=Silent())
    alone = evaluate_run(run, "dev", temperature=1.0, rerank=Ensemble(candidates=1), progress=Silent())
    assert outcomes.read(alone).outcomes == outcomes.read(plain).outcomes


def test_what_cannot_be_reranked_is_said(run: RunDir):
    with pytest.raises(UsageError, match="--temperature above 0"):
        evaluate_run(run, "dev", temperature=0.0, rerank=Ensemble(), progress=Silent())
    with pytest.raises(UsageError, match="--checkpoint -1"):
        evaluate_run(run, "dev", checkpoint=-1, rerank=Ensemble(), progress=Silent())
    for step in run.episode_steps():
        run.episodes_path(step).rename(run.path / f"away-{step}")
    try:
        with pytest.raises(MissingError, match="no stored success"):
            evaluate_run(run, "dev", temperature=1.0, rerank=Ensemble(candidates=2), progress=Silent())
    finally:
        for step in (1, 2):
            (run.path / f"away-{step}").rename(run.episodes_path(step))


def test_the_command_says_how_well_it_forecasts(run: RunDir, capsys: pytest.CaptureFixture[str]):
    assert main(["forecaster", str(run.path), "--horizon", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("learned from ")
    assert [line.split()[0] for line in lines[1:]] == ["lag", "0", "1"]
    assert main(["eval", str(run.path), "--rerank", "forcaster"]) == 2
    assert "'forecaster'" in capsys.readouterr().err
    assert main(["eval", str(run.path), "--rerank", "forecaster", "--policy", "random"]) == 2
    assert "--policy random" in capsys.readouterr().err
