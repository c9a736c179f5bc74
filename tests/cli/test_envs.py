"""``agentcredit envs`` on the toy environment, in real workers."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from agentcredit.cli.envs import app
from agentcredit.envs import registry
from agentcredit.envs.registry import EnvEntry
from agentcredit.errors import AgentCreditError, RunFailed, UsageError
from tests.envs.corridor import TOY


@pytest.fixture(autouse=True)
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTCREDIT_HOME", str(tmp_path))
    monkeypatch.setenv("AGENTCREDIT_TOY_PYTHON", sys.executable)
    monkeypatch.delenv("AGENTCREDIT_BARE_PYTHON", raising=False)
    entries = (
        EnvEntry("bare", "not set up", "bare:make", ("bare==1",)),
        EnvEntry("toy", "a corridor", f"{TOY}:make", ()),
    )
    monkeypatch.setattr(registry, "_BUILT_IN", entries)


def run(*arguments: str, stdin: str = "") -> Result:
    result = CliRunner().invoke(app, list(arguments), input=stdin)
    if isinstance(result.exception, AgentCreditError):
        raise result.exception
    assert result.exception is None, result.exception
    return result


def test_list() -> None:
    assert [line.split() for line in run("list").stdout.splitlines()] == [
        ["bare", "not", "set", "up", "not", "set", "up"],
        ["toy", "ready", "a", "corridor"],
    ]
    assert [(row["name"], row["ready"]) for row in json.loads(run("list", "--json").stdout)] == [
        ("bare", False),
        ("toy", True),
    ]


def test_show() -> None:
    shown = run("show", "toy").stdout
    assert "splits: train 6 (train), dev 3 (dev)" in shown
    assert shown.rstrip().endswith("Open the chest.")
    assert json.loads(run("show", "toy", "--json").stdout)["splits"] == {"train": 6, "dev": 3}


def test_check_prints_json_alone_on_stdout_and_a_report_for_people() -> None:
    result = run("check", "toy", "--json", "--episodes", "2", "--workers", "1")
    assert json.loads(result.stdout)["expert_successes"] == 2
    assert "expert episodes" in result.stderr
    report = run("check", "toy", "--episodes", "2", "--workers", "1").stdout
    assert "expert: 2 of 2 solved" in report
    assert "deterministic: declared yes, found yes" in report


def test_a_failed_check_ends_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "options_for", lambda env: {"random": True})
    with pytest.raises(RunFailed, match=r"'toy' is not as declared\. It is declared deterministic and is not"):
        run("check", "toy", "--episodes", "2", "--workers", "1")


def test_a_panel_is_the_text_that_is_hashed() -> None:
    result = run("panel", "toy", "--split", "dev")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["dev/0", "dev/1", "dev/2"]
    assert hashlib.sha256(result.stdout.encode()).hexdigest() in result.stderr


def test_a_person_plays() -> None:
    # train/0 starts beside the key; the chest is four places to the right.
    moves = ["", "jump", "take", "right", "right", "right", "right", "open"]
    shown = run("play", "toy", "--task", "train/0", stdin="\n".join(moves) + "\n").stdout
    assert "> right\ntake\n" in shown  # the admissible actions, asked for by the empty line
    assert "> jump  [not valid]" in shown
    assert "(reward +1.00, score 1.00)" in shown
    assert shown.endswith("Success, score 1.00.\n")


@pytest.mark.parametrize("stdin", ["take\nquit\n", "take\n"])
def test_a_person_stops(stdin: str) -> None:
    assert run("play", "toy", "--task", "train/0", stdin=stdin).stdout.endswith("No success, score 0.00.\n")


def test_policies_play() -> None:
    expert = run("play", "toy", "--task", "train/3", "--policy", "expert").stdout
    assert "<think> I take </think>" in expert
    assert expert.endswith("Success, score 1.00.\n")
    once = run("play", "toy", "--policy", "random", "--turns", "3", "--seed", "5").stdout
    assert once.count("\n[") == 3
    assert once == run("play", "toy", "--policy", "random", "--turns", "3", "--seed", "5").stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["show", "toi"], "There is no environment 'toi'. Did you mean 'toy'?"),
        (["setup", "toy", "toi"], "There is no environment 'toi'"),
        (["play", "toy", "--task", "train/77"], "'toy' has no task 'train/77' in split 'train'"),
        (["play", "toy", "--split", "trian"], "no split 'trian'. Did you mean 'train'?"),
        (["play", "toy", "--policy", "experts"], "Did you mean 'expert'?"),
        (["check", "toy", "--type", "kye"], "'toy' has no task type 'kye'. Did you mean 'key'?"),
        (["check", "toy", "--size", "big"], "--size 'big' is not known"),
    ],
)
def test_wrong_use_is_one_sentence(arguments: list[str], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        run(*arguments)
    assert sentence in str(caught.value)
