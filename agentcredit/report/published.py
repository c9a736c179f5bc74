"""Published numbers (``published.toml``): a column of their own, never mixed with what was measured."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal

from agentcredit.stats.intervals import Interval, wilson


@dataclass(frozen=True, slots=True)
class Published:
    """One number of a paper, in percent.

    ``kind`` is ``gain`` for points above the paper's own GRPO where the value itself is not known. ``n`` episodes, 0
    where unknown, ``n_inferred`` where read off the percentage; ``sd`` between seeds. ``note`` says how its protocol differs.
    """

    protocol: str
    paper: str
    note: str
    method: str
    env: str
    model: str
    value: float
    subset: str = ""
    metric: Literal["success", "score"] = "success"
    kind: Literal["value", "gain"] = "value"
    sd: float | None = None
    n: int = 0
    n_inferred: bool = False
    seeds: int = 0

    @property
    def text(self) -> str:
        """The number alone: ``90.5``, ``77.6±5.2``, or ``+13.3`` for a gain."""
        spread = f"±{self.sd:g}" if self.sd is not None else ""
        return f"+{self.value:g}" if self.kind == "gain" else f"{self.value:.1f}{spread}"

    @property
    def interval(self) -> Interval | None:
        """Wilson's 95 % interval of a success rate whose n is known; None otherwise. It leaves out what differs between seeds."""
        if not self.n or self.metric != "success" or self.kind != "value":
            return None
        return wilson(round(self.value / 100 * self.n), self.n)

    @property
    def provenance(self) -> str:
        """Model, episodes, paper, and how its protocol differs."""
        parts = [self.model]
        if self.subset:
            parts.append(self.subset)
        parts.append(f"n {'≈' if self.n_inferred else '='} {self.n}" if self.n else "n unknown")
        return f"{', '.join(parts)}; {self.paper}; {self.note}"


@cache
def published() -> tuple[Published, ...]:
    """All published numbers, in the order of the file."""
    document = tomllib.loads((files("agentcredit.report") / "published.toml").read_text(encoding="utf-8"))
    protocols = document["protocol"]
    return tuple(
        Published(paper=protocols[r["protocol"]]["paper"], note=protocols[r["protocol"]]["note"], **r)
        for r in document["result"]
    )


def published_for(method: str, env: str) -> tuple[Published, ...]:
    """Success rates that papers give for this method on this environment."""
    return tuple(p for p in published() if (p.method, p.env, p.metric) == (method, env, "success"))
