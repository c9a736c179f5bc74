"""The documentation of the configuration follows the model."""

from pathlib import Path

from agentcredit.config_docs import markdown
from agentcredit.config_keys import keys

DOCUMENT = Path(__file__).parents[1] / "docs" / "configuration.md"


def test_the_document_is_what_the_model_says():
    assert DOCUMENT.read_text() == markdown(), "run `make docs`"


def test_every_key_is_in_it_once():
    text = markdown()
    assert [key for key in keys() if text.count(f"| `{key}`") != 1] == []


def test_what_cannot_change_a_result_is_marked():
    marked = {key for key in keys() if f"| `{key}` ○ |" in markdown()}
    assert {"name", "out", "track.uri", "env.processes", "train.save_episodes"} <= marked
    assert marked.isdisjoint({"seed", "optim.lr", "method.params", "env.name", "train.steps"})
