"""``agentcredit methods distill`` against a real HTTP server, with ALFWorld's own experts as demonstrations."""

import json
from pathlib import Path

import pytest

from agentcredit.methods.distilled import DistilledSource
from tests.cli.command import agentcredit, refused
from tests.policies.endpoint import Endpoint

KIND = "pick_and_place_simple"
WRITTEN = json.loads((Path(__file__).parents[2] / "experiments/cpu/alfworld-distilled.json").read_text())["graphs"]


@pytest.mark.alfworld
def test_a_graph_is_asked_for_checked_and_written_once(tmp_path: Path):
    from agentcredit.envs import registry
    from agentcredit.envs.setup import is_ready

    if not is_ready("alfworld"):
        pytest.skip("ALFWorld is not set up")
    endpoint = Endpoint()
    endpoint.say(json.dumps({"milestones": [], "edges": []}))
    endpoint.say(json.dumps(WRITTEN[KIND]))
    words = f"methods distill --env alfworld --out g.json --url {endpoint.url} --model m --key-env K --type {KIND} --demos 1".split()
    variables = {"K": "sk-secret", "AGENTCREDIT_ALFWORLD_PYTHON": str(registry.interpreter("alfworld"))}
    try:
        done = agentcredit(*words, cwd=tmp_path, **variables)
        assert done.returncode == 0, done.stderr
        again = agentcredit(*words, cwd=tmp_path, **variables)
    finally:
        endpoint.close()
    assert done.stdout == "g.json\n"
    assert f"{KIND}: already in g.json" in again.stderr
    assert len(endpoint.asked) == 2  # once, once more with the complaint, and not at all by the repeated command
    assert {headers["Authorization"] for _, headers, _ in endpoint.asked} == {"Bearer sk-secret"}
    question = endpoint.asked[0][2]["messages"][0]["content"]
    assert "Demonstration 1: " in question
    assert "state: seen = " in question
    assert "cannot be used" in endpoint.asked[1][2]["messages"][2]["content"]
    assert DistilledSource.read(tmp_path / "g.json").document.model_dump(mode="json")["graphs"] == {KIND: WRITTEN[KIND]}
    assert "sk-secret" not in (tmp_path / "g.json").read_text() + done.stdout + done.stderr


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        ({"--env": "alfwrld"}, 2, "Did you mean 'alfworld'"),
        ({"--url": "here"}, 2, "'here' is not the address of an endpoint"),
        ({"--out": "other.json"}, 2, "other.json has graphs of 'scienceworld', not of 'alfworld'"),
    ],
)
def test_what_is_refused(tmp_path: Path, changed: dict[str, str], code: int, words: str):
    (tmp_path / "other.json").write_text(json.dumps({"format": 1, "env": "scienceworld", "graphs": {}}))
    options = {"--env": "alfworld", "--out": "g.json", "--url": "http://127.0.0.1:1/v1", "--model": "m"} | changed
    line = [word for pair in options.items() for word in pair]
    assert words in refused(agentcredit("methods", "distill", *line, cwd=tmp_path), code)
