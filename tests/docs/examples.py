"""The documentation's code as an installed package: what a reader would have after following it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"

_FILE = re.compile(r"<!-- (\S+\.py) -->\n```python\n(.*?)```\n", re.DOTALL)
_TOML = re.compile(r"```toml\n(.*?)```\n", re.DOTALL)


def files(page: str) -> dict[str, str]:
    """Code blocks that have a file's name above them."""
    return dict(_FILE.findall((DOCS / page).read_text(encoding="utf-8")))


def install(page: str, folder: Path) -> None:
    """Writes a page's files into ``folder``, with the entry points of its TOML blocks as pip would announce them."""
    for name, code in files(page).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(code, encoding="utf-8")
    points = ""
    for block in _TOML.findall((DOCS / page).read_text(encoding="utf-8")):
        for group, entries in tomllib.loads(block)["project"]["entry-points"].items():
            points += f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
    info = folder / "documented_example-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: documented-example\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(points)
