from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from agentcredit.config import EnvConfig
from agentcredit.envs import registry
from agentcredit.envs.registry import EnvEntry
from agentcredit.errors import MissingError, UsageError
from tests.envs.corridor import TOY, play

ENTRY = EnvEntry("toy", "a corridor", f"{TOY}:make", ("toy==1.0",), data_variable="TOY_DATA")
NOT_AN_ENTRY = 7


@pytest.fixture
def plug_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints(
        EntryPoint(name, value, registry.GROUP)
        for name, value in [
            ("toy", "tests.envs.test_registry:ENTRY"),
            ("seven", "tests.envs.test_registry:NOT_AN_ENTRY"),
            ("gone", "tests.envs.nowhere:ENTRY"),
        ]
    )
    monkeypatch.setattr(registry.metadata, "entry_points", lambda **which: points.select(**which))


@pytest.fixture(autouse=True)
def nothing_set_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTCREDIT_HOME", str(tmp_path))
    for name in ("ALFWORLD", "SCIENCEWORLD", "TOY"):
        monkeypatch.delenv(f"AGENTCREDIT_{name}_PYTHON", raising=False)


def test_built_in_and_plugged_in(plug_ins: None) -> None:
    assert registry.names() == ["alfworld", "gone", "scienceworld", "seven", "toy"]
    assert registry.entry("alfworld").requirements == ("alfworld==0.4.2",)
    assert registry.entry("toy").summary == "a corridor"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("alfwrold", "There is no environment 'alfwrold'. Did you mean 'alfworld'?"),
        ("seven", "is not an EnvEntry but 7"),
        ("gone", "cannot be loaded: No module named"),
    ],
)
def test_wrong_names_and_broken_plug_ins(plug_ins: None, name: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        registry.entry(name)
    assert sentence in str(caught.value)


def test_what_is_not_set_up_says_how_to(tmp_path: Path) -> None:
    with pytest.raises(MissingError) as caught:
        registry.connect(EnvConfig(name="alfworld"))
    assert "`agentcredit envs setup alfworld`" in str(caught.value)
    assert str(tmp_path / "envs" / "alfworld" / "bin" / "python") in str(caught.value)


def test_the_variable_names_another_interpreter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTCREDIT_ALFWORLD_PYTHON", sys.executable)
    assert registry.interpreter("alfworld") == Path(sys.executable)
    monkeypatch.setenv("AGENTCREDIT_ALFWORLD_PYTHON", str(tmp_path / "no" / "python"))
    with pytest.raises(MissingError, match=r"AGENTCREDIT_ALFWORLD_PYTHON names .*not an executable"):
        registry.interpreter("alfworld")
    assert registry.interpreter_variable("tau2-bench") == "AGENTCREDIT_TAU2_BENCH_PYTHON"


def test_options_are_plain_values(plug_ins: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOY_DATA", "/data")
    env = EnvConfig(name="toy", size="full", official=True, show_admissible=True)
    assert registry.options_for(env) == {
        "size": "full",
        "official": True,
        "show_admissible": True,
        "data": "/data",
        "home": str(tmp_path),
    }


@pytest.mark.parametrize("cache", [True, False])
def test_a_plug_in_is_played_and_its_cache_lies_at_home(
    plug_ins: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: bool
) -> None:
    monkeypatch.setenv("AGENTCREDIT_TOY_PYTHON", sys.executable)
    client = registry.connect(
        EnvConfig(name="toy", processes=1, instances=1, cache=cache), log_path=tmp_path / "run" / "workers.log"
    )
    assert client.capacity == 1
    client.tasks("train")
    for _ in range(2):
        assert play(client, "train/1", ["left"])[-1].observation == "You are at place 0. Step 1, seed 0."
    assert client.stats()["cache_hits"] == (2 if cache else 0)
    client.close()
    assert (tmp_path / "cache" / "transitions" / "toy.sqlite").exists() is cache
    assert "[toy-0]" in (tmp_path / "run" / "workers.log").read_text()


def test_importing_the_environments_needs_the_standard_library_alone() -> None:
    code = (
        "import sys\nbefore = set(sys.modules)\n"
        "from agentcredit.envs import registry\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(name for name in new - set(sys.stdlib_module_names) if not name.startswith('_')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=TOY.parents[2])
    assert done.stdout.strip() == "['agentcredit']"
