import dataclasses
import json
import subprocess
import sys

import pytest

from agentcredit import outcomes
from agentcredit.episodes import StopReason
from agentcredit.errors import MissingError
from agentcredit.outcomes import EvalHeader, Outcome, by_type, summarise


def header(**changes) -> EvalHeader:
    values = {
        "run": "alfworld__proas__tiny__s0__0a1b2c3d",
        "env": "alfworld",
        "env_version": "1",
        "package": "alfworld 0.4.2",
        "data_source": "generated games (small, v1)",
        "official": False,
        "split": "valid_unseen",
        "role": "test",
        "step": 30,
        "panel_name": "alfworld-small-v1-valid_unseen",
        "panel_sha256": "ab" * 32,
        "panel_size": 4,
        "max_turns": 20,
        "method": "proas",
        "label": "proas(mui,apr)",
        "model": "tiny",
        "seed": 0,
    }
    return EvalHeader(**{**values, **changes})


OUTCOMES = [
    Outcome("t2", "heat", 0, True, 1.0, 5, StopReason.SUCCESS, tokens=50, env_steps=5),
    Outcome("t1", "pick", 0, True, 1.0, 10, StopReason.SUCCESS, tokens=90, env_steps=10),
    Outcome("t3", "heat", 0, False, 0.25, 20, StopReason.MAX_TURNS, tokens=200, env_steps=20),
    Outcome("t4", "pick", 0, False, 0.0, 3, StopReason.ENV_TIMEOUT, tokens=30, env_steps=3),
]


def test_written_outcomes_come_back_in_order(tmp_path):
    path = tmp_path / "eval" / "valid_unseen-30.jsonl"
    outcomes.write(path, header(), OUTCOMES)
    evaluation = outcomes.read(path)
    assert evaluation.header == header()
    assert evaluation.outcomes == tuple(sorted(OUTCOMES, key=lambda outcome: outcome.task_id))
    assert isinstance(evaluation.outcomes[0].stop_reason, StopReason)
    assert evaluation.path == path
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_name_with_an_odd_line_separator_survives(tmp_path):
    odd = [dataclasses.replace(OUTCOMES[0], task_id="a\u2028b\x85c")]
    outcomes.write(tmp_path / "odd.jsonl", header(), odd)
    assert outcomes.read(tmp_path / "odd.jsonl").outcomes == tuple(odd)


def test_a_task_listed_twice_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'t1', repeat 0 is listed twice"):
        outcomes.write(tmp_path / "x.jsonl", header(), [*OUTCOMES, OUTCOMES[1]])
    assert not list(tmp_path.iterdir())


def test_summary_counts_agents_failures_and_not_the_harness():
    summary = summarise(OUTCOMES, max_turns=20)
    assert (summary.k, summary.n, summary.rate) == (2, 3, 2 / 3)
    assert summary.harness_failures == 1
    assert summary.mean_score == pytest.approx(2.25 / 3)
    assert summary.mean_turns == 7.5
    # A success in exactly a quarter of the budget is within it.
    assert summary.within == {0.25: 1, 0.5: 2, 1.0: 2}
    assert summary.stop_reasons == {"env_timeout": 1, "max_turns": 1, "success": 2}
    assert (summary.tokens, summary.env_steps) == (340, 35)


def test_outcomes_by_type_are_sorted_and_add_up():
    summaries = {name: summarise(group, max_turns=20) for name, group in by_type(OUTCOMES).items()}
    assert list(summaries) == ["heat", "pick"]
    assert [(s.k, s.n) for s in summaries.values()] == [(1, 2), (1, 1)]
    assert summaries["pick"].harness_failures == 1


def test_summary_of_nothing_has_no_rate():
    for nothing in ([], [OUTCOMES[3]]):
        summary = summarise(nothing, max_turns=20)
        assert (summary.n, summary.k, summary.rate, summary.mean_score, summary.mean_turns) == (0, 0, None, None, None)


def test_harness_failures_are_those_of_the_header_or_those_listed():
    assert outcomes.Evaluation(header(harness_failures=3), tuple(OUTCOMES)).harness_failures == 3
    assert outcomes.Evaluation(header(), tuple(OUTCOMES)).harness_failures == 1
    assert len(outcomes.Evaluation(header(), tuple(OUTCOMES)).counted) == 3


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: [], "is empty"),
        (lambda lines: [lines[0], lines[1][:20]], "not a file of outcomes"),
        (lambda lines: [lines[0].replace('"format": 1', '"format": 9'), *lines[1:]], "says format 9"),
        (lambda lines: [lines[0], lines[1].replace("success", "triumph")], "not a file of outcomes"),
        (lambda lines: ["[]"], "not a file of outcomes"),
    ],
)
def test_a_damaged_file_is_one_sentence_that_names_it(tmp_path, damage, message):
    path = tmp_path / "valid-0.jsonl"
    outcomes.write(path, header(), OUTCOMES)
    path.write_text("\n".join(damage(path.read_text().splitlines())))
    with pytest.raises(MissingError, match=message) as error:
        outcomes.read(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingError, match=r"absent\.jsonl cannot be read"):
        outcomes.read(tmp_path / "absent.jsonl")


def test_a_header_is_plain_json():
    assert json.loads(json.dumps(dataclasses.asdict(header())))["format"] == outcomes.OUTCOME_FORMAT


def test_reading_outcomes_needs_no_heavy_import():
    code = "import sys, agentcredit.outcomes; print([m for m in ('torch', 'pandas', 'mlflow') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
