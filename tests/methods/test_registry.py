"""Names, composition from a configuration, routing of parameters, plug-ins, and the sentences for what is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import ClassVar

import pytest

from agentcredit.config import MethodConfig
from agentcredit.errors import MissingError, UsageError
from agentcredit.methods import registry
from agentcredit.methods.gigpo import Gigpo
from agentcredit.methods.proas import Proas
from agentcredit.methods.rloo import Rloo


def build(name, base="", **params):
    return registry.build(MethodConfig(name=name, base=base, params=params))


def test_names():
    assert {"grpo", "rloo", "gigpo", "proas"} <= set(registry.names())
    assert registry.get("gigpo") is Gigpo


def test_an_estimator_alone_and_a_shaper_on_its_base():
    assert isinstance(build("rloo").estimator, Rloo)
    composition = build("proas", base="gigpo", kappa=2.0, gamma=0.9)
    assert isinstance(composition.estimator, Gigpo)
    assert isinstance(composition.shapers[0], Proas)
    assert composition.shapers[0].params.kappa == 2.0
    assert composition.estimator.params.gamma == 0.9
    assert build("proas").estimator.name == "grpo"
    assert build("gigpo+proas").estimator.name == "gigpo"


def test_the_papers_symbols_are_accepted():
    assert build("proas", **{"κ": 0.5}).shapers[0].params.kappa == 0.5
    assert build("proas", progress_mode="edge").shapers[0].params.progress == "edge"


@pytest.mark.parametrize(
    ("name", "base", "params", "words"),
    [
        ("praos", "", {}, ["'praos'", "Did you mean 'proas'"]),
        ("proas", "gripo", {}, ["'gripo'", "Did you mean 'grpo'"]),
        ("proas", "proas", {}, ["'proas'", "not a group estimator", "rloo"]),
        ("grpo", "rloo", {}, ["'grpo'", "'rloo'", "leave out"]),
        ("grpo+rloo", "", {}, ["several group estimators", "grpo and rloo"]),
        ("proas+proas", "", {}, ["'proas' twice"]),
        ("proas+", "", {}, ["empty part"]),
        ("proas", "", {"kapa": 1}, ["'kapa'", "Did you mean 'kappa'"]),
        ("grpo", "", {"kappa": 1}, ["'kappa'", "method grpo", "baseline_over"]),
        ("proas", "", {"kappa": -1}, ["proas", "'kappa'", "-1"]),
        ("proas", "", {"graph": "whole"}, ["'graph'", "'whole'", "instance"]),
        ("proas", "", {"kappa": 1, "κ": 2}, ["'kappa'", "twice"]),
        ("proas", "", {"decay": 0.9}, ["decay 0.9", "min_count below 1"]),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(name, base, params, words):
    with pytest.raises(UsageError) as caught:
        build(name, base=base, **params)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        (("rlsd", "stepopsd"), ["counts twice", "keep one"]),
        (("rlsd", "alignopsd"), ["counts twice", "alignopsd+stepopsd"]),
        (("rlsd", "ahead"), ["neither band", "keep one"]),
        (("stepopsd", "ahead"), ["share one advantage", "keep one"]),
    ],
)
def test_meaningless_pairs_are_refused_in_either_order_on_any_base(pair, words):
    for one, other in (pair, pair[::-1]):
        for name, base in ((f"{one}+{other}", ""), (f"{one}+cope+{other}", "gigpo"), (f"rloo+{one}+{other}", "")):
            with pytest.raises(UsageError) as caught:
                build(name, base=base)
            sentence = str(caught.value)
            assert f"'{one}' and '{other}' do not go together" in sentence
            assert "\n" not in sentence
            for word in words:
                assert word in sentence


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("cope+proas", ""),
        ("alignopsd", "gigpo"),
        ("alignopsd", "graphgpo"),
        ("proas+alignopsd", ""),
        ("alignopsd+stepopsd", ""),
        ("alignopsd+sdar", ""),
        ("rlsd+sdar", ""),
        ("echo+cope", "dapo"),
        ("ahead+echo", "hgpo"),
    ],
)
def test_pairs_with_a_meaning_are_built(name, base):
    assert {part.name for part in build(name, base=base).parts()} == {*name.split("+"), base or "grpo"}


def test_what_clashes_is_known_and_says_why_and_what_to_do():
    declared = {name: getattr(registry.get(name), "clashes", {}) for name in registry.names()}
    assert any(declared.values())
    for name, reasons in declared.items():
        for other, reason in reasons.items():
            assert other in registry.names(), f"{name} clashes with '{other}', which is no method"
            assert name != other
            assert reason.endswith(".")
            assert "keep" in reason
            assert name not in declared[other], f"{name} and {other} are declared twice"


def test_a_plug_in_declares_what_it_does_not_go_with(monkeypatch):
    plug_in(monkeypatch, "tests.methods.test_registry:Mine")
    with pytest.raises(UsageError, match="'rloo' and 'mine' do not go together: rloo has no deviation; keep grpo"):
        build("mine", base="rloo")
    assert build("mine").shapers[0].name == "mine"


class Mine(Proas):
    """A shaper of another package."""

    name: ClassVar[str] = "mine"
    clashes: ClassVar[Mapping[str, str]] = {"rloo": "rloo has no deviation; keep grpo."}


def plug_in(monkeypatch, value):
    point = EntryPoint("mine", value, registry.ENTRY_POINT_GROUP)
    shadow = EntryPoint("grpo", "nowhere:Nothing", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [point, shadow])


def test_a_plug_in_is_found_and_cannot_replace_a_built_in(monkeypatch):
    plug_in(monkeypatch, "agentcredit.methods.rloo:Rloo")
    assert "mine" in registry.names()
    assert registry.get("mine") is Rloo
    assert registry.get("grpo").name == "grpo"


@pytest.mark.parametrize(
    ("value", "words"),
    [("no_such_module:X", "cannot be loaded"), ("agentcredit.methods.rloo:RlooParams", "lacks name")],
)
def test_a_broken_plug_in_is_named(monkeypatch, value, words):
    plug_in(monkeypatch, value)
    with pytest.raises(MissingError, match=f"'mine'.*{words}"):
        registry.get("mine")


def test_building_a_method_imports_nothing_heavy():
    code = (
        "import sys; from agentcredit.methods.registry import build; from agentcredit.config import MethodConfig; "
        "build(MethodConfig(name='proas')); "
        "print([m for m in ('torch', 'transformers', 'mlflow', 'pandas', 'optuna', 'scipy') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
