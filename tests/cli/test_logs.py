"""Messages go into the attempt's log; only warnings reach the terminal."""

import logging
from pathlib import Path

from agentcredit.cli.logs import logging_to


def test_where_messages_go(tmp_path: Path, capsys):
    path = tmp_path / "logs" / "attempt-1.log"
    logger = logging.getLogger("agentcredit.somewhere")
    with logging_to(path):
        logger.info("quiet %d", 1)
        logger.warning("loud")
        logging.getLogger("other").warning("not ours")
    logger.warning("afterwards")
    text = path.read_text()
    assert "INFO agentcredit.somewhere: quiet 1\n" in text
    assert "WARNING agentcredit.somewhere: loud\n" in text
    assert "afterwards" not in text
    captured = capsys.readouterr()
    assert captured.err.splitlines()[0] == "Warning: loud"
    assert "quiet" not in captured.err
    assert captured.out == ""


def test_an_attempt_that_is_continued_appends(tmp_path: Path):
    for number in (1, 2):
        with logging_to(tmp_path / "x.log"):
            logging.getLogger("agentcredit").info("message %d", number)
    assert len((tmp_path / "x.log").read_text().splitlines()) == 2
