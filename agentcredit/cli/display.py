"""Progress in a terminal: one live panel, or plain lines where stderr is not a terminal. Always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from agentcredit.progress import StepReport

if TYPE_CHECKING:
    from rich.console import Group


def display() -> Lines:
    """What shows the progress of a long command: the live panel on a terminal, else plain lines."""
    return Panel() if sys.stderr.isatty() else Lines()


class Lines:
    """One line for each event; what counts on is said at every tenth."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._remaining = _Remaining(clock)

    def phase(self, text: str, done: int = 0, total: int = 0) -> None:
        """Says what is going on; a training step says so itself when it is over."""
        if total:
            if done in (1, total) or done % max(1, total // 10) == 0:
                self._say(f"{text} {done}/{total}")
        elif not text.startswith("step "):
            self._say(text)

    def step(self, report: StepReport) -> None:
        """Says a step's figures."""
        self._say("  ".join([*_figures(report), *self._remaining(report)]))

    def evaluated(self, split: str, step: int, successes: int, episodes: int) -> None:
        """Says an evaluation's result."""
        self._say(f"{split} at step {step}: {rate(successes, episodes)}")

    def close(self) -> None:
        """Nothing to undo."""

    def _say(self, text: str) -> None:
        typer.echo(text, err=True)


class Panel(Lines):
    """One live panel: what is going on, the last step's figures, the evaluations (whose lines stay above it)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(clock)
        self._phase = self._last_step = ""
        self._live = Live(console=Console(stderr=True), refresh_per_second=4, get_renderable=self._render)
        self._live.start()

    def phase(self, text: str, done: int = 0, total: int = 0) -> None:
        """Shows what is going on."""
        self._phase = f"{text} {done}/{total}" if total else text

    def step(self, report: StepReport) -> None:
        """Shows a step's figures."""
        self._last_step = "  ".join([*_figures(report), *self._remaining(report)])

    def close(self) -> None:
        """Leaves the panel's last state on the screen; safe to call twice."""
        self._live.stop()

    def _say(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def _render(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        return Group(*[Text(line) for line in (self._phase, self._last_step) if line])


class _Remaining:
    """Time left, from the pace of this attempt's steps; what came before the first one is not counted."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._first: tuple[float, int] | None = None

    def __call__(self, report: StepReport) -> list[str]:
        now = self._clock()
        if self._first is None:
            self._first = (now, report.step)
        since, first = self._first
        if report.step <= first:
            return []
        return [f"{duration((now - since) / (report.step - first) * (report.steps - report.step))} left"]


def _figures(report: StepReport) -> list[str]:
    figures = [
        f"step {report.step}/{report.steps}",
        f"reward {report.reward:.3f}",
        f"success {report.success:.0%}",
        f"groups without signal {report.no_signal:.0%}",
        f"{report.tokens_per_second:.0f} tokens/s",
    ]
    if report.cache_hits is not None:
        figures.append(f"cache hits {report.cache_hits:.0%}")
    if report.harness_failures:
        figures.append(f"harness failures {report.harness_failures}")
    return figures


def rate(successes: int, episodes: int) -> str:
    """k/n with its 95 % Wilson interval."""
    from agentcredit.stats.intervals import wilson

    if not episodes:
        return "no episode counted"
    interval = wilson(successes, episodes)
    return f"{successes}/{episodes} = {successes / episodes:.1%} [{interval.low:.1%}, {interval.high:.1%}]"


def duration(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
