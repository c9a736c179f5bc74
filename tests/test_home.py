from __future__ import annotations

from pathlib import Path

import pytest

from agentcredit.home import home


def test_the_variable_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AGENTCREDIT_HOME", str(tmp_path / "here"))
    assert home() == tmp_path / "here"
    assert not home().exists()


def test_a_relative_folder_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENTCREDIT_HOME", "data")
    assert home() == tmp_path / "data"
    monkeypatch.setenv("AGENTCREDIT_HOME", "~/data")
    assert home() == Path.home() / "data"


def test_else_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AGENTCREDIT_HOME", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert home() == tmp_path / "agentcredit"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert home() == Path.home() / ".cache" / "agentcredit"
    monkeypatch.setattr("sys.platform", "darwin")
    assert home() == Path.home() / "Library" / "Caches" / "agentcredit"
