"""Every built-in method has a card that says all that a reader needs to judge it."""

import re

import pytest

from agentcredit.cli.methods import CHOICES
from agentcredit.methods import registry
from agentcredit.report.cards import HEADING, NONE_KNOWN, main, table, with_table
from tests.docs.examples import DOCS

CARDS = DOCS / "methods"
NAMES = sorted(registry._BUILT_IN)
READINGS_IN_PARAMETERS = {"cope"}
"""Its table of parameters is the list of readings: each row says what the others are."""


def card(name: str) -> str:
    return (CARDS / f"{name}.md").read_text(encoding="utf-8")


def test_there_is_one_card_for_every_method():
    assert sorted(path.stem for path in CARDS.glob("*.md")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_card_has_every_section(name):
    text = card(name)
    title, sentence, *_ = text.split("\n\n")
    assert title == f"# {name}"
    assert sentence.rstrip().endswith(".")
    assert re.search(r"^ {4}\S", text, re.MULTILINE), "no formula"
    assert "\nSource: *" in text, "no source"
    assert "\n| parameter | default |" in text
    sections = set(re.findall(r"^## (.+)$", text, re.MULTILINE))
    assert HEADING.removeprefix("## ") in sections
    assert sections & set(CHOICES) or name in READINGS_IN_PARAMETERS, "deviations and readings are not declared"


@pytest.mark.parametrize("name", NAMES)
def test_a_card_names_every_parameter(name):
    missing = [field for field in registry.get(name).Params.model_fields if f"`{field.rstrip('_')}`" not in card(name)]
    assert missing == []


@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_are_those_of_the_report(name):
    """`make docs` writes them."""
    assert card(name).endswith(table(name))
    assert with_table(card(name), name) == card(name)


def test_intervals_stand_beside_what_n_allows():
    # Wilson, 95 %: 191 and 129 of 200; 362 of 384; computed apart for the statistics' specification.
    assert "| alfworld | Qwen2.5-7B | 95.5 | ≈ 200 | 91.7 – 97.6 | cope |" in table("cope")
    assert "| webshop | Qwen2.5-7B | 64.5 | ≈ 200 | 57.7 – 70.8 | cope |" in table("grpo")
    assert "| alfworld | Qwen2.5-7B-Instruct | 94.3 | ≈ 384 | 91.5 – 96.2 | proas |" in table("proas")
    assert "| webshop | Qwen2.5-7B | 89.4 (score) | ≈ 200 | – | cope |" in table("cope")
    assert "| alfworld | 7B | +13.3 | not stated | – | ahead |" in table("ahead")


def test_remarks_stay_and_numbers_are_replaced(tmp_path):
    path = tmp_path / "rloo.md"
    path.write_text(f"# rloo\n\n{HEADING}\n\nA remark.\n\n{NONE_KNOWN}\n")
    main(tmp_path)
    assert path.read_text() == f"# rloo\n\n{HEADING}\n\nA remark.\n\n{table('rloo')}"
    with pytest.raises(ValueError, match="no section"):
        with_table("# rloo\n", "rloo")
