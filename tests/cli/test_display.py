"""Progress as lines and as a panel."""

import io

import pytest
from rich.console import Console

from agentcredit.cli.display import Lines, Panel, duration, rate
from agentcredit.progress import Progress, StepReport


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def report(step: int, **changes: float) -> StepReport:
    values = {"reward": 0.25, "success": 0.5, "no_signal": 0.125, "tokens_per_second": 1234.4, "cache_hits": 0.75}
    return StepReport(step=step, steps=10, **{**values, **changes})  # pyright: ignore[reportArgumentType]


def test_lines(capsys):
    clock = Clock()
    shown: Progress = Lines(clock)
    shown.phase("connecting to alfworld")
    for done in range(1, 101):
        shown.phase("cloning", done, 100)
    shown.phase("step 1 of 10")
    shown.step(report(1))
    clock.now += 20.0
    shown.step(report(3, harness_failures=2))
    shown.evaluated("valid_seen", 3, 5, 10)
    shown.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert lines[0] == "connecting to alfworld"
    assert lines[1:12] == [f"cloning {n}/100" for n in (1, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)]
    figures = "reward 0.250  success 50%  groups without signal 12%  1234 tokens/s  cache hits 75%"
    assert lines[12] == f"step 1/10  {figures}"
    # two steps took 20 seconds, seven remain
    assert lines[13] == f"step 3/10  {figures}  harness failures 2  1:10 left"
    assert lines[14] == "valid_seen at step 3: 5/10 = 50.0% [23.7%, 76.3%]"
    assert len(lines) == 15


def test_the_panel_shows_the_same(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr("rich.console.Console", lambda **_: Console(file=screen, force_terminal=True, width=120))
    shown = Panel(Clock())
    shown.phase("cloning", 3, 100)
    shown.step(report(1))
    shown.evaluated("valid_seen", 3, 5, 10)
    shown.close()
    shown.close()
    text = screen.getvalue()
    for part in ("cloning 3/100", "step 1/10", "1234 tokens/s", "valid_seen at step 3: 5/10"):
        assert part in text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (61, "1:01"), (3723, "1:02:03")])
def test_durations(seconds: float, text: str):
    assert duration(seconds) == text


def test_rates():
    assert rate(0, 0) == "no episode counted"
    assert rate(0, 10) == "0/10 = 0.0% [0.0%, 27.8%]"
