from __future__ import annotations

import pytest

from agentcredit.policies.actions import ActionTries, TrieNode, parse, response_text


def test_parse_reads_thought_and_action_and_folds_case_and_space():
    said = parse("<think> find\nthe apple </think> <action>Go  TO fridge 1 </action>")
    assert (said.thought, said.action, said.well_formed) == ("find\nthe apple", "go to fridge 1", True)


def test_parse_takes_the_last_action_but_calls_an_answer_without_thought_malformed():
    said = parse("<action>look</action> no, <action>open fridge 1</action>")
    assert (said.action, said.well_formed) == ("open fridge 1", False)


def test_parse_is_not_misled_by_a_tag_inside_the_thought():
    said = parse("<think>an <action>odd thought</think><action>look</action>")
    assert (said.action, said.well_formed) == ("look", True)


def test_parse_sends_the_tail_of_an_answer_without_action():
    said = parse("x" * 40 + " Open the Fridge")
    assert said == parse("x" * 40 + " open the fridge")
    assert said.action == "x" * 14 + " open the fridge"
    assert not said.well_formed


def test_response_text_is_what_parse_reads():
    said = parse(response_text("find apple", "go to fridge 1"))
    assert (said.thought, said.action, said.well_formed) == ("find apple", "go to fridge 1", True)


@pytest.fixture
def tries() -> ActionTries:
    return ActionTries(lambda text: [ord(letter) for letter in text], end_id=0)


def paths(node: TrieNode, before: tuple[int, ...] = ()) -> set[str]:
    if not node.allowed:
        return {"".join(map(chr, before))}
    return {path for token in node.allowed for path in paths(node.children[token], (*before, token))}


def test_trie_leads_to_each_action_closed_and_ended_and_to_nothing_else(tries: ActionTries):
    root = tries.actions(["go", "go on", "take"], before="<action>")
    assert paths(root) == {f"<action>{action}</action>\0" for action in ("go", "go on", "take")}
    assert root.depth == len("<action>go on</action>") + 1


def test_trie_offers_a_choice_only_where_actions_part(tries: ActionTries):
    node = tries.actions(["go", "give"])
    assert node.allowed == (ord("g"),)
    assert node.children[ord("g")].allowed == (ord("i"), ord("o"))


def test_equal_lists_share_one_trie(tries: ActionTries):
    assert tries.actions(["a", "b"]) is tries.actions(("a", "b"))
    assert tries.actions(["a", "b"]) is not tries.actions(["a"])
