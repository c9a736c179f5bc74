import json

from agentcredit.methods import registry
from tests.cli.command import agentcredit, refused


def test_the_list_names_every_method_with_its_kind(tmp_path):
    lines = agentcredit("methods", "list", cwd=tmp_path).stdout.splitlines()
    assert [line.split()[:2] for line in lines] == [[name, registry.get(name).kind] for name in registry.names()]
    assert all(line.endswith(".") for line in lines)


def test_a_method_is_shown_with_formula_parameters_published_numbers_and_card(tmp_path):
    shown = agentcredit("methods", "show", "gigpo", cwd=tmp_path).stdout
    assert "A     = A^E + ω A^S" in shown
    assert "--set method.params.omega=1.0 (also ω)" in shown
    assert "alfworld      86.7±1.7  Qwen2.5-1.5B-Instruct, n unknown; Group-in-Group" in shown
    assert "Deviations and readings\n\n- A state that only one turn visited" in shown
    assert shown.rstrip().endswith("docs/methods/gigpo.md")
    assert "``" not in shown


def test_as_json(tmp_path):
    card = json.loads(agentcredit("methods", "show", "proas", "--json", cwd=tmp_path).stdout)
    assert card["kind"] == "shaper"
    assert {(p["env"], p["text"]) for p in card["published"]} == {
        ("alfworld", "91.9"), ("webshop", "66.7"), ("alfworld", "94.3"), ("webshop", "70.8"),
    }  # fmt: skip
    assert "MUI   A_t > 0:" in card["explanation"]


def test_an_unknown_method_gets_the_nearest_name(tmp_path):
    assert "Did you mean 'gigpo'" in refused(agentcredit("methods", "show", "gipo", cwd=tmp_path), 2)


def test_published_numbers_have_an_interval_and_clashes_a_reason(tmp_path):
    shown = agentcredit("methods", "show", "cope", cwd=tmp_path).stdout
    assert "alfworld          95.5 [91.7, 97.6]  Qwen2.5-7B, n ≈ 200" in shown
    assert "Not together with" not in shown
    # declared by rlsd, and shown by both
    assert "Not together with\n\n  ahead: both hold" in agentcredit("methods", "show", "rlsd", cwd=tmp_path).stdout
    assert "  rlsd: alignopsd's weights" in agentcredit("methods", "show", "alignopsd", cwd=tmp_path).stdout
