"""The published numbers of the method cards (``docs/methods``), written from ``published.toml``: ``make docs``.

A card ends with them. What a person has to say about them stands before, in the same section.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from agentcredit.files import atomic_write_text
from agentcredit.report.published import Published, published

HEADING = "## Published numbers"
NONE_KNOWN = "No figure of this method on an environment of this family was at hand."
_HEAD = "| environment | model | number, % | n | 95 % interval | protocol |\n| --- | --- | --- | --- | --- | --- |"


def table(method: str) -> str:
    """A method's published numbers as Markdown, and where they are from; a sentence where there are none."""
    numbers = [number for number in published() if number.method == method]
    if not numbers:
        return NONE_KNOWN + "\n"
    sources = dict.fromkeys(f"- {number.protocol}: {number.paper}; {number.note}." for number in numbers)
    return "\n".join([_HEAD, *map(_row, numbers), "", *sources, ""])


def with_table(card: str, method: str) -> str:
    """A card whose last section ends with the method's numbers as they are now.

    Raises:
        ValueError: the card has no section for them.
    """
    head, heading, section = card.partition(f"{HEADING}\n")
    if not heading:
        raise ValueError(f"the card of {method} has no section '{HEADING}'")
    return head + heading + "\n" + "".join(part + "\n\n" for part in _remarks(section)) + table(method)


def _remarks(section: str) -> Iterator[str]:
    """Paragraphs of a section that people wrote."""
    for part in section.strip().split("\n\n"):
        if part and not part.startswith((_HEAD[:20], "- ", NONE_KNOWN)):
            yield part


def _row(number: Published) -> str:
    where = number.env + (f", {number.subset}" if number.subset else "")
    what = number.text + ("" if number.metric == "success" else f" ({number.metric})")
    interval = number.interval
    shown = f"{100 * interval.low:.1f} – {100 * interval.high:.1f}" if interval else "–"
    n = f"{'≈ ' if number.n_inferred else ''}{number.n}" if number.n else "not stated"
    return f"| {where} | {number.model} | {what} | {n} | {shown} | {number.protocol} |"


def main(folder: Path) -> None:
    """Writes the numbers into every card of a folder."""
    for path in sorted(folder.glob("*.md")):
        atomic_write_text(path, with_table(path.read_text(encoding="utf-8"), path.stem))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
