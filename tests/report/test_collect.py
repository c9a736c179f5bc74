import pytest

from agentcredit.errors import ComparisonRefused, MissingError, UsageError
from agentcredit.report.collect import collect, select
from agentcredit.report.compare import compare
from tests.report.build import write_run


def names(selection) -> set[tuple[str, str, int]]:
    return {(e.header.run, e.header.split, e.header.step) for e in selection.evaluations}


def test_an_empty_folder_is_one_sentence(tmp_path):
    with pytest.raises(MissingError, match=r"no evaluations in .*agentcredit eval RUN --split test") as error:
        collect(tmp_path / "runs")
    assert error.value.exit_code == 3


def test_runs_are_found_by_name_and_by_path(tmp_path):
    write_run(tmp_path, "grpo", "10")
    path = write_run(tmp_path, "proas", "11")
    assert len(collect(tmp_path)) == 2
    assert [e.header.method for e in collect(tmp_path, ["alfworld__proas__tiny__s0"])] == ["proas"]
    assert [e.header.method for e in collect(tmp_path / "elsewhere", [str(path.parent.parent)])] == ["proas"]
    assert [e.header.method for e in collect(tmp_path, ["alfworld__proas"])] == ["proas"]
    assert len(collect(tmp_path, ["alfworld__proas__tiny__s0"] * 2)) == 1


def test_an_unknown_run_gets_the_nearest_name(tmp_path):
    write_run(tmp_path, "grpo", "10")
    with pytest.raises(UsageError, match="Did you mean 'alfworld__grpo__tiny__s0'"):
        collect(tmp_path, ["alfworld__grpo__tiny__s1"])


def test_a_run_without_evaluations_is_named(tmp_path):
    (tmp_path / "fresh").mkdir()
    (tmp_path / "fresh" / "config.toml").touch()
    with pytest.raises(MissingError, match=r"the runs named \(fresh\)"):
        collect(tmp_path, ["fresh"])


def test_the_last_checkpoint_and_the_warm_start_are_kept(tmp_path):
    for step in (-1, 10, 20, 9):
        write_run(tmp_path, "grpo", "10", step=step)
    write_run(tmp_path, "grpo", "10", policy="random")
    selection = select(collect(tmp_path))
    assert sorted((e.header.policy, e.header.step) for e in selection.evaluations) == [
        ("random", 30),
        ("transformers", -1),
        ("transformers", 20),
    ]
    assert selection.notes == ()


def test_test_is_shown_where_any_run_has_it_and_what_is_missing_is_said(tmp_path):
    write_run(tmp_path, "grpo", "10")
    write_run(tmp_path, "grpo", "10", split="valid_seen", role="dev")
    write_run(tmp_path, "proas", "10", split="valid_seen", role="dev")
    write_run(tmp_path, "proas", "10", run="sw", env="scienceworld", split="dev", role="dev")
    selection = select(collect(tmp_path))
    assert names(selection) == {("alfworld__grpo__tiny__s0", "valid_unseen", 30), ("sw", "dev", 30)}
    assert selection.notes == (
        "alfworld: without a test evaluation, so not shown: alfworld__proas__tiny__s0.",
        "scienceworld: no test evaluation yet, so these are dev results; `agentcredit eval RUN` adds test.",
    )


@pytest.mark.parametrize("asked", ["valid_seen", "dev"])
def test_a_split_is_asked_for_by_name_or_role(tmp_path, asked):
    write_run(tmp_path, "grpo", "10")
    write_run(tmp_path, "grpo", "10", split="valid_seen", role="dev")
    assert names(select(collect(tmp_path), asked)) == {("alfworld__grpo__tiny__s0", "valid_seen", 30)}


def test_an_unknown_split_gets_the_nearest_name(tmp_path):
    write_run(tmp_path, "grpo", "10")
    with pytest.raises(UsageError, match=r"'valid_unsen'.*Did you mean 'valid_unseen'"):
        select(collect(tmp_path), "valid_unsen")


def test_the_whole_panel_is_kept_where_a_part_was_played_too(tmp_path):
    part = {"panel_name": "dev[2]", "panel_size": 2, "partial": True}
    for method in ("grpo", "proas"):
        write_run(tmp_path / "part", method, "10", run=f"{method}-part", **part)
        write_run(tmp_path / "both", method, "10", run=f"{method}-part", **part)
    write_run(tmp_path / "both", "grpo", "10101010", step=20)
    # Training's own partial evaluations are all there is: they are compared.
    assert len(select(collect(tmp_path / "part")).evaluations) == 2
    selection = select(collect(tmp_path / "both"))
    assert names(selection) == {("alfworld__grpo__tiny__s0", "valid_unseen", 20)}
    assert selection.notes == (
        "alfworld valid_unseen: not evaluated on the whole panel, so not shown: grpo-part, proas-part.",
    )


def temperatures(selection) -> list[tuple[str, float]]:
    return sorted((e.header.method, e.header.temperature) for e in selection.evaluations)


def test_another_temperature_never_takes_the_place_of_the_runs_own(tmp_path):
    for method in ("grpo", "proas"):
        write_run(tmp_path, method, "10")
    write_run(tmp_path, "grpo", "11", temperature=0.0, own_temperature=False)
    write_run(tmp_path, "grpo", "11", step=40, temperature=1.0, own_temperature=False)
    selection = select(collect(tmp_path))
    assert temperatures(selection) == [("grpo", 0.4), ("proas", 0.4)]
    assert selection.notes == (
        "alfworld valid_unseen: also evaluated at other temperatures than the runs' own (0, 1), not shown; "
        "--temperature shows one of them.",
    )


def test_a_temperature_is_asked_for(tmp_path):
    write_run(tmp_path, "grpo", "10")
    write_run(tmp_path, "grpo", "10", policy="random", temperature=0.0)
    write_run(tmp_path, "grpo", "11", temperature=1.0, own_temperature=False)
    selection = select(collect(tmp_path), temperature=1.0)
    assert [(e.header.policy, e.header.temperature) for e in selection.evaluations] == [
        ("random", 0.0),
        ("transformers", 1.0),
    ]
    with pytest.raises(UsageError, match=r"at temperature 0\.7 \(--temperature\)\. There are: 0\.4, 1\."):
        select(collect(tmp_path), temperature=0.7)


def test_two_temperatures_without_the_runs_own_are_both_kept_and_refused(tmp_path):
    for temperature in (0.0, 1.0):
        write_run(tmp_path, "grpo", "10", temperature=temperature, own_temperature=False)
    selection = select(collect(tmp_path))
    assert temperatures(selection) == [("grpo", 0.0), ("grpo", 1.0)]
    with pytest.raises(
        ComparisonRefused, match=r"sampling temperature \(report --temperature shows one\) is 0\.0 .* and 1\.0"
    ):
        compare(selection.evaluations)
