"""What the pages name exists: linked files, settings, commands."""

import re

import pytest
from typer.main import get_command

from agentcredit.cli.main import app
from agentcredit.config_keys import is_known
from tests.docs.examples import DOCS

ROOT = DOCS.parent
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])
SECTIONS = r"env|policy|tiny|loss|optim|train|eval|track"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_exist(page):
    text = page.read_text(encoding="utf-8")
    keys = re.findall(rf"`((?:{SECTIONS})\.[a-z_]+)(?: = [^`]*)?`", text) + re.findall(r"--set ([a-z_.]+)=", text)
    assert [key for key in keys if not key.startswith("method.params.") and not is_known(key)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page):
    commands = get_command(app).commands
    words = re.findall(r"(?:`|^ {4})agentcredit ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [word for word in words if word not in commands] == []
