"""Where messages go: everything into the attempt's log, warnings to stderr as well."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import typer

from agentcredit.files import naming

_PACKAGE = "agentcredit"


@contextlib.contextmanager
def logging_to(path: Path | None) -> Iterator[None]:
    """Sends the package's messages (from INFO) to ``path`` and its warnings to stderr, for the time of the block."""
    logger = logging.getLogger(_PACKAGE)
    handlers: list[logging.Handler] = [_Stderr(level=logging.WARNING)]
    if path is not None:
        with naming(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = logging.FileHandler(path, encoding="utf-8")
        file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        handlers.append(file)
    before = logger.level
    logger.setLevel(logging.INFO)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.setLevel(before)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


class _Stderr(logging.Handler):
    """Writes through typer, so that a live panel on stderr is not torn."""

    def emit(self, record: logging.LogRecord) -> None:
        typer.echo(f"{record.levelname.capitalize()}: {record.getMessage()}", err=True)
