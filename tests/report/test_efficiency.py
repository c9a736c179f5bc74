from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentcredit.errors import ComparisonRefused, MissingError, UsageError
from agentcredit.report.collect import collect
from agentcredit.report.efficiency import efficiency, tables
from tests.report.build import evaluation, write_run

SLOW = {-1: "10000000", 10: "11000000", 20: "11000000", 30: "11111000"}
FAST = {-1: "10000000", 10: "11110000", 20: "11111000", 30: "11111000"}


def curve(method, ends, seed=0, **changes):
    return [
        evaluation(method, outcome, seed, **{"role": "dev", "split": "valid_seen", "step": step, **changes})
        for step, outcome in ends.items()
    ]


def test_curves_and_speed_ups():
    found = efficiency(
        [*curve("grpo", SLOW), *curve("proas", FAST), *curve("grpo", SLOW, 1), *curve("proas", FAST, 1)], [0.5]
    )
    grpo = found.curves[0]
    assert (grpo.label, grpo.seeds, grpo.steps) == ("grpo(default)", (0, 1), (0, 10, 20, 30))
    assert grpo.success_SKT.mean(axis=2).tolist() == [[0.125, 0.25, 0.25, 0.625]] * 2
    assert found.baseline == "grpo(default)"
    speed = found.speed_ups[0.5]["proas(default)"]
    # grpo crosses .5 between 20 (.25) and 30 (.625); proas is there at 10 (.5).
    assert speed.reached_S == pytest.approx((10, 10))
    assert speed.baseline_S == pytest.approx((20 + 10 * 0.25 / 0.375,) * 2)
    assert speed.ratio == pytest.approx((20 + 10 * 0.25 / 0.375) / 10)
    curves, threshold = tables(found)
    assert curves.rows[1] == ("proas(default)", "0, 1", "12.5", "50.0", "62.5", "62.5")
    assert threshold.rows[1][:4] == ("proas(default)", "10  10", "10", "× 2.67")
    assert threshold.rows[0][1] == "26.7  26.7"


def test_what_is_not_reached_is_shown_as_beyond_the_end():
    found = efficiency([*curve("grpo", SLOW), *curve("proas", FAST)], [0.6, 0.9])
    grpo, proas = tables(found)[2].rows
    assert grpo[1:3] == proas[1:3] == ("> 30", "> 30")
    assert proas[3] == "not reached by both"


def test_only_seeds_that_both_have_are_paired():
    found = efficiency([*curve("grpo", SLOW, 1), *curve("proas", FAST, 0), *curve("proas", SLOW, 1)], [0.5])
    assert found.speed_ups[0.5]["proas(default)"].ratio == 1.0
    with pytest.raises(UsageError, match="no seed in common"):
        efficiency([*curve("grpo", SLOW, 1), *curve("proas", FAST, 0)], [0.5])


def test_a_seed_that_is_still_training_ends_the_curves_of_its_method():
    shorter = {step: ends for step, ends in FAST.items() if step <= 10}
    found = efficiency([*curve("grpo", SLOW), *curve("proas", FAST), *curve("proas", shorter, 1)], [0.5])
    assert found.curves[1].steps == (0, 10)
    assert found.notes == ("proas(default): a seed has come to step 10 only, so the curves of all of them end there.",)


def test_other_roles_and_temperatures_do_not_enter():
    others = [*curve("grpo", FAST, role="test"), *curve("grpo", FAST, own_temperature=False, temperature=0.0)]
    found = efficiency([*curve("grpo", SLOW), *others], [])
    assert found.curves[0].success_SKT.mean(axis=2).tolist() == [[0.125, 0.25, 0.25, 0.625]]


@pytest.mark.parametrize(
    ("evaluations", "error", "said"),
    [
        (curve("grpo", SLOW, role="test"), MissingError, "eval_every"),
        (curve("grpo", {-1: "1"}), MissingError, "two evaluations"),
        (curve("proas", SLOW), UsageError, "baseline 'grpo' has no curve"),
        ([*curve("grpo", SLOW), *curve("grpo", SLOW, env="scienceworld")], UsageError, "Curves of several"),
        ([*curve("grpo", SLOW), *curve("proas", FAST, panel_sha256="cd" * 32)], ComparisonRefused, "panel"),
    ],
)
def test_what_cannot_be_drawn(evaluations, error, said):
    with pytest.raises(error, match=said):
        efficiency(evaluations, [0.5])


def test_the_axis_is_what_the_run_had_spent(tmp_path: Path):
    for method, tokens in (("grpo", 100), ("proas", 300)):
        for step, ends in FAST.items():
            path = write_run(tmp_path, method, ends, role="dev", split="valid_seen", step=step)
        records = [{"step": step, "total/tokens": tokens * step} for step in (0, 10, 20, 30)]
        (path.parents[1] / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    found = efficiency(collect(tmp_path), [0.5], axis="tokens")
    speed = found.speed_ups[0.5]["proas(default)"]
    assert (speed.baseline_S, speed.reached_S) == ((1000.0,), (3000.0,))
    assert speed.ratio == pytest.approx(1 / 3)
