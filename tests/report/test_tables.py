import csv
import io
import json

import pytest

from agentcredit.report.compare import compare
from agentcredit.report.render import as_csv, as_json, markdown
from agentcredit.report.tables import report_tables
from agentcredit.stats.intervals import wilson
from tests.report.build import evaluation

TWO = [evaluation("grpo", "11000000"), evaluation("proas", "11111100")]


def cells(table, label):
    row = next(row for row in table.rows if row[0] == label)
    return dict(zip(table.columns, row, strict=True))


def test_a_section_shows_rates_intervals_and_differences():
    (table,) = report_tables(compare(TWO))
    row = cells(table, "proas(default)")
    interval = wilson(6, 8)
    assert row["Success %"] == "75.0"
    assert row["95 % interval"] == f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}]"
    assert row["k/n"] == "6/8"
    assert row["Per seed"] == "s0:75.0"
    assert row["Δ points"].startswith("+50.0 [")
    assert row["p (Holm)"] == "0.125"
    assert cells(table, "grpo(default)")["Δ points"] == "–"


def test_every_table_says_what_it_was_measured_on():
    (table,) = report_tables(compare(TWO))
    text = "\n".join((table.title, *table.notes))
    for said in (
        "alfworld valid_unseen (test), model tiny: generated games (small, v1), not the official games",
        "Panel small-v1, 8 tasks, SHA-256 abababababababab",
        "temperature 0.4, 1 episode per task, at most 20 turns",
        "Checkpoint: the last one, step 30; none was selected.",
        "1 seed: the interval covers tasks only",
        "exact McNemar test (1 seed), Holm-adjusted over 1 comparison.",
    ):
        assert said in text
    assert "Several seeds" not in text
    assert "PARTIAL" not in text


def test_several_seeds_are_said():
    (table,) = report_tables(compare([*TWO, evaluation("grpo", "11100000", 1), evaluation("proas", "11100000", 1)]))
    text = "\n".join(table.notes)
    assert "Several seeds: hierarchical bootstrap" in text
    assert "1 seed:" not in text
    assert "paired by task and seed; p by paired hierarchical bootstrap" in text
    assert cells(table, "proas(default)")["Per seed"] == "s0:75.0 s1:37.5"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"partial": True}, "PARTIAL"),
        ({"temperature": 0.0}, "greedy"),
        ({"official": True, "data_source": "official games"}, "official games"),
        ({"repeats": 2}, "2 episodes per task"),
        ({"harness_failures": 3}, "Episodes ended by the harness, in no rate: grpo(default) 3."),
        ({"step": -1}, "none trained"),
    ],
)
def test_marks(changes, said):
    (table,) = report_tables(compare([evaluation("grpo", "1100", **changes)]))
    assert said in "\n".join((table.title, *table.notes))
    assert ("not the official games" in table.title) == ("official" not in changes)


def test_unequal_training_is_cried_out():
    (table,) = report_tables(compare([TWO[0], evaluation("proas", "11111100", step=12)]))
    assert any("NOT TRAINED EQUALLY LONG (steps grpo(default): 30; proas(default): 12)" in note for note in table.notes)


def test_published_numbers_stand_apart_with_their_source():
    (table,) = report_tables(compare(TWO))
    assert cells(table, "proas(default)")["Published"].startswith("91.9 [")
    assert any("so not comparable" in note for note in table.notes)
    assert any(note.startswith("[1] Qwen2.5-7B; n ≈ 200; Co-Evolving") or "n ≈ 200" in note for note in table.notes)


def test_graded_environments_show_scores():
    (table,) = report_tables(compare([evaluation("grpo", "100", scores={1: 0.5})]))
    assert cells(table, "grpo(default)")["Score %"].startswith("50.0 [")


def test_several_sections_get_an_overview():
    other = [evaluation("proas", "10", env="scienceworld", run="sw")]
    overview, *sections = report_tables(compare([*TWO, *other]))
    assert len(sections) == 2
    assert overview.columns == ("Method", "alfworld valid_unseen (tiny)", "scienceworld valid_unseen (tiny)")
    assert cells(overview, "grpo(default)")["scienceworld valid_unseen (tiny)"] == "–"
    assert cells(overview, "proas(default)")["alfworld valid_unseen (tiny)"].endswith("6/8 Δ +50.0")


def test_task_types_are_rows():
    _, table = report_tables(compare(TWO), by_type=True)
    assert table.columns == ("Task type", "grpo(default)", "proas(default)")
    assert cells(table, "heat")["proas(default)"].endswith(" 3/4")


def test_markdown_keeps_its_columns():
    text = markdown(report_tables(compare([evaluation("grpo", "10", label="grpo(a|b)")])))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in lines} == {lines[0].count("|")}
    assert "grpo(a\\|b)" in text


def test_json_holds_the_numbers_themselves():
    document = json.loads(as_json(compare(TWO), ["a note"], by_type=True))
    (section,) = document["sections"]
    _, proas = section["rows"]
    assert document["notes"] == ["a note"]
    assert (section["panel_sha256"], section["baseline"], section["official"]) == ("ab" * 32, "grpo(default)", False)
    assert (proas["k"], proas["n"], proas["rate"]) == (6, 8, 0.75)
    assert proas["interval"] == [wilson(6, 8).low, wilson(6, 8).high]
    assert proas["difference"] | {"low": 0, "high": 0} == {
        **{"value": 0.5, "low": 0, "high": 0, "p": 0.125, "p_holm": 0.125},
        **{"pairs": 8, "wins": 4, "losses": 0, "test": "mcnemar"},
    }
    assert proas["by_type"]["heat"]["n"] == 4
    assert proas["published"][0]["protocol"] == "proas"


def test_csv_is_tidy():
    records = list(csv.DictReader(io.StringIO(as_csv(compare(TWO), by_type=True))))
    assert [(r["label"], r["task_type"], r["k"], r["n"]) for r in records] == [
        ("grpo(default)", "", "2", "8"),
        ("grpo(default)", "heat", "1", "4"),
        ("grpo(default)", "pick", "1", "4"),
        ("proas(default)", "", "6", "8"),
        ("proas(default)", "heat", "3", "4"),
        ("proas(default)", "pick", "3", "4"),
    ]
    assert records[3]["difference_value"] == "0.5"
    assert records[0]["difference_value"] == ""
    assert as_csv([]) == "\n"
