from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentcredit.envs import panels
from agentcredit.envs.base import EnvSpec, TaskInfo
from agentcredit.envs.panels import Panel, build_panel, check_equal, role_of, sample, split_for
from agentcredit.errors import MissingError, UsageError

TASKS = [
    TaskInfo(f"{kind}/{n:02d}", kind, "", f"{kind[0]}{n:02d}")
    for kind, count in (("boil", 9), ("melt", 3), ("freeze", 1))
    for n in range(count)
]
SPEC = EnvSpec(
    name="lab", version="1", package="lab 1.0", deterministic=True, markov=False, default_max_turns=9,
    default_layout="dialogue", instructions="", success_rule="", splits={"dev": 13}, data_source="Made Up (v1)",
    official=False, task_types=("boil", "freeze", "melt"),
)  # fmt: skip


class Lab:
    """An environment's client, as far as panels need one."""

    def __init__(self, tasks: list[TaskInfo]) -> None:
        self._tasks = tasks

    def spec(self) -> EnvSpec:
        return SPEC

    def tasks(self, split: str) -> list[TaskInfo]:
        if split != "dev":
            raise UsageError(f"no split {split}")
        return list(self._tasks)


def build(tasks: list[TaskInfo], *arguments: Any) -> Panel:
    return build_panel(Lab(tasks), "dev", *arguments)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(panels, "committed_path", lambda env, source, split: tmp_path / env / f"{split}.txt")
    return tmp_path


def commit(root: Path, panel: Panel) -> None:
    (root / "lab").mkdir()
    (root / "lab" / "dev.txt").write_text(panel.text)


def test_the_hash_is_that_of_the_sorted_lines() -> None:
    panel = build(TASKS[:2][::-1])
    assert panel.text == "boil/00 b00\nboil/01 b01\n"
    assert panel.sha256 == hashlib.sha256(b"boil/00 b00\nboil/01 b01\n").hexdigest()
    assert (panel.name, panel.partial, panel.split) == ("dev", False, "dev")


@pytest.mark.parametrize(
    "other",
    [TASKS[1:], [replace(TASKS[0], content_hash="b99"), *TASKS[1:]], [replace(TASKS[0], id="boil/99"), *TASKS[1:]]],
)
def test_another_task_gives_another_hash(other: list[TaskInfo]) -> None:
    assert build(other).sha256 != build(TASKS).sha256


def test_names_say_what_was_left_out() -> None:
    assert build(TASKS, ("melt", "boil")).name == "dev{boil,melt}"
    assert build(TASKS, ("melt", "boil"), 5).name == "dev{boil,melt}[5]"
    assert build(TASKS, (), 5).name == "dev[5]"
    assert build(TASKS, (), 5).partial
    assert build(TASKS, (), 13) == build(TASKS)  # a limit that leaves nothing out is no limit
    assert build(TASKS, ("melt", "boil", "freeze")) == build(TASKS)


def test_an_unknown_type_or_split_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no task type 'biol'\. Did you mean 'boil'"):
        build(TASKS, ("biol",))
    with pytest.raises(UsageError):
        build_panel(Lab(TASKS), "test")  # pyright: ignore[reportArgumentType]


def test_a_sample_gives_types_equal_shares_as_far_as_they_reach() -> None:
    def shares(n: int) -> dict[str, int]:
        return dict(Counter(task.type for task in sample(TASKS, n)))

    assert shares(3) == {"boil": 1, "melt": 1, "freeze": 1}
    assert shares(5) == {"boil": 2, "melt": 2, "freeze": 1}
    assert shares(7) == {"boil": 3, "melt": 3, "freeze": 1}
    assert shares(10) == {"boil": 6, "melt": 3, "freeze": 1}
    assert sample(TASKS, 99) == sorted(TASKS, key=lambda task: task.id)


def test_samples_are_nested_sorted_and_do_not_depend_on_the_order() -> None:
    for n in range(1, 13):
        small, large = sample(TASKS, n), sample(TASKS, n + 1)
        assert len(small) == n
        assert set(small) < set(large)
        assert small == sorted(small, key=lambda task: task.id) == sample(TASKS[::-1], n)


def test_a_committed_panel_is_compared(root: Path) -> None:
    commit(root, build(TASKS))
    assert build(TASKS, (), 5).sha256 == build(TASKS, (), 5).sha256
    changed = [*TASKS[1:-1], replace(TASKS[-1], content_hash="new"), TaskInfo("boil/77", "boil", "", "b77")]
    with pytest.raises(MissingError) as caught:
        build(changed, (), 5)
    sentence = str(caught.value)
    assert "1 missing: boil/00; 1 changed: freeze/00; 1 unexpected: boil/77" in sentence
    assert "`agentcredit envs setup lab`" in sentence
    assert "Made Up (v1)" in sentence


def test_a_long_list_is_cut(root: Path) -> None:
    commit(root, build(TASKS))
    with pytest.raises(MissingError, match=r"11 missing: boil/00, .* and 3 more"):
        build(TASKS[-2:])


def test_a_damaged_committed_panel_is_named(root: Path) -> None:
    commit(root, build(TASKS))
    (root / "lab" / "dev.txt").write_text("boil/00\n")
    with pytest.raises(MissingError, match=r"dev.txt is damaged"):
        build(TASKS)


def test_select_gives_the_tasks_or_says_what_changed() -> None:
    panel = build(TASKS, (), 5)
    assert [task.id for task in panel.select(Lab(TASKS))] == [task_id for task_id, _ in panel.tasks]  # pyright: ignore[reportArgumentType]
    gone = [task for task in TASKS if task.id != "freeze/00"]
    with pytest.raises(MissingError, match="1 missing: freeze/00"):
        panel.select(Lab(gone))  # pyright: ignore[reportArgumentType]


def test_equal_tasks_pass() -> None:
    check_equal(build(TASKS), TASKS[::-1])


@pytest.mark.parametrize(
    ("env", "split", "role"),
    [
        ("alfworld", "train", "train"), ("alfworld", "valid_seen", "dev"), ("alfworld", "valid_unseen", "test"),
        ("scienceworld", "dev", "dev"), ("scienceworld", "test", "test"), ("other", "hidden", "test"),
    ],
)  # fmt: skip
def test_roles(env: str, split: str, role: str) -> None:
    assert role_of(env, split) == role


def test_the_split_of_a_role() -> None:
    assert [split_for("alfworld", role) for role in ("train", "dev", "test")] == ["train", "valid_seen", "valid_unseen"]
    assert [split_for("scienceworld", role) for role in ("train", "dev", "test")] == ["train", "dev", "test"]


def test_every_committed_panel_is_in_its_canonical_form() -> None:
    files = sorted(panels.COMMITTED.rglob("*.txt"))
    for path in files:
        pairs = tuple(tuple(line.split(" ")) for line in path.read_text().splitlines())
        panel = Panel(path.parts[-3], path.stem, "", path.stem, pairs)  # pyright: ignore[reportArgumentType]
        assert list(pairs) == sorted(set(pairs)), path
        assert panel.text == path.read_text(), path
    counts = {path.stem: len(path.read_text().splitlines()) for path in files if path.parts[-3] == "scienceworld"}
    assert counts == {"train": 3592, "dev": 1796, "test": 1819}
