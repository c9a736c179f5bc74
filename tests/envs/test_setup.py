"""Setting an environment up, for real: a venv, pip, and a small wheel that the test writes."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from agentcredit.envs import registry, setup
from agentcredit.envs.registry import EnvEntry
from agentcredit.errors import MissingError, UsageError

DOWNLOAD = """
import os, pathlib, sys
if len(sys.argv) > 1:
    sys.exit("no route to " + sys.argv[1])
pathlib.Path(os.environ["LAB_DATA"], "games.txt").write_text("42")
"""


def wheel(folder: Path, version: str) -> str:
    """A wheel of a package `lab` with a console script `lab-download`; a local path that pip installs."""
    path = folder / f"lab-{version}-py3-none-any.whl"
    info = f"lab-{version}.dist-info"
    files = {
        "lab.py": f"VERSION = {version!r}\ndef main():\n    exec({DOWNLOAD!r})\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: lab\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nlab-download = lab:main\n",
    }
    record = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in [*files.items(), (f"{info}/RECORD", record)]:
            archive.writestr(name, text)
    return str(path)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EnvEntry:
    """A registered environment whose only requirement is a wheel on this disk."""
    monkeypatch.setenv("AGENTCREDIT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AGENTCREDIT_LAB_PYTHON", raising=False)
    monkeypatch.delenv("LAB_DATA", raising=False)
    entry = EnvEntry("lab", "a test", "lab:make", (wheel(tmp_path, "1.0"),), "LAB_DATA", ("lab-download",))
    register(monkeypatch, entry)
    return entry


def register(monkeypatch: pytest.MonkeyPatch, entry: EnvEntry) -> None:
    monkeypatch.setattr(registry, "_BUILT_IN", (entry,))


def installed(python: Path) -> str:
    """The version of `lab` that an interpreter finds, started as a worker is."""
    command = [python, "-P", "-s", "-c", "import lab; print(lab.VERSION)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_set_up_once_then_quick_then_anew_for_another_pin(
    lab: EnvEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    assert not setup.is_ready("lab")
    with pytest.raises(MissingError, match="envs setup lab"):
        registry.interpreter("lab")

    python = setup.ensure("lab", said.append)
    assert python == tmp_path / "home" / "envs" / "lab" / "bin" / "python" == registry.interpreter("lab")
    assert installed(python) == "1.0"
    assert setup.is_ready("lab")
    assert "Setting up 'lab' once" in said[0]
    marker = json.loads((python.parent.parent / setup.MARKER).read_text())
    assert marker["requirements"] == list(lab.requirements)
    log = tmp_path / "home" / "logs" / "setup-lab.log"
    size = log.stat().st_size

    said.clear()
    start = time.monotonic()
    assert setup.setup("lab", say=said.append) == python == setup.ensure("lab", said.append)
    assert time.monotonic() - start < 1.0
    assert (said, log.stat().st_size) == ([], size)

    register(monkeypatch, replace(lab, requirements=(wheel(tmp_path, "2.0"),)))
    assert not setup.is_ready("lab")
    assert installed(setup.ensure("lab")) == "2.0"
    # A failed rebuild leaves what there was, and no half of the new one under its name.
    register(monkeypatch, replace(lab, requirements=(str(tmp_path / "lab-3.0-py3-none-any.whl"),)))
    with pytest.raises(MissingError) as caught:
        setup.setup("lab")
    assert "pip cannot install" in str(caught.value)
    assert "lab-3.0" in str(caught.value)
    assert str(log) in str(caught.value)
    assert installed(python) == "2.0"
    assert not setup.is_ready("lab")


def test_what_a_killed_set_up_left_is_not_taken_for_whole(lab: EnvEntry, tmp_path: Path) -> None:
    half = tmp_path / "home" / "envs" / ".lab.new" / "bin"
    half.mkdir(parents=True)
    (half / "python").write_text("#!/bin/false\n")
    assert not setup.is_ready("lab")
    assert installed(setup.setup("lab")) == "1.0"
    assert sorted(path.name for path in (tmp_path / "home" / "envs").iterdir()) == [".lab.lock", "lab"]


def _set_up(home: str, entry: EnvEntry, lines: multiprocessing.SimpleQueue[list[str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTCREDIT_HOME", home)
        register(patch, entry)
        said: list[str] = []
        setup.setup("lab", say=said.append)
        lines.put(said)


def test_two_processes_build_once(lab: EnvEntry, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    lines = context.SimpleQueue()
    both = [context.Process(target=_set_up, args=(str(tmp_path / "home"), lab, lines)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
        assert process.exitcode == 0
    said = [lines.get(), lines.get()]
    assert sum("Setting up 'lab' once" in line for part in said for line in part) == 1
    assert installed(registry.interpreter("lab")) == "1.0"


def test_official_data(lab: EnvEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.setup("lab", official=True)
    folder = tmp_path / "home" / "data" / "lab" / "official"
    assert setup.official_folder("lab") == folder
    assert (folder / "games.txt").read_text() == "42"

    monkeypatch.setenv("LAB_DATA", str(tmp_path / "elsewhere"))
    setup.setup("lab", official=True)
    assert (tmp_path / "elsewhere" / "games.txt").read_text() == "42"

    register(monkeypatch, replace(lab, official_command=("lab-download", "mars")))
    with pytest.raises(MissingError) as caught:
        setup.setup("lab", official=True)
    sentence = str(caught.value)
    assert "The official data of 'lab' cannot be downloaded by lab-download" in sentence
    assert "no route to mars" in sentence
    assert "set LAB_DATA" in sentence

    register(monkeypatch, replace(lab, official_command=()))
    with pytest.raises(UsageError, match="no official data to download"):
        setup.setup("lab", official=True)


def test_an_interpreter_of_ones_own_is_left_alone(
    lab: EnvEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setenv("AGENTCREDIT_LAB_PYTHON", sys.executable)
    assert setup.ensure("lab") == Path(sys.executable)
    assert not (tmp_path / "home" / "envs").exists()


def test_an_unknown_name(lab: EnvEntry) -> None:
    with pytest.raises(UsageError, match="no environment 'lap'"):
        setup.setup("lap")
