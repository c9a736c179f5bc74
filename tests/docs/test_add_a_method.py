"""The example of docs/add-a-method.md, installed as a package, does what the page says."""

import inspect

import pytest

from agentcredit.config import MethodConfig
from agentcredit.methods import registry
from tests.conformance import test_methods as conformance
from tests.docs.examples import files, install
from tests.methods.build import group, tools, walk

PAGE = "add-a-method.md"
CHECKS = [check for name, check in inspect.getmembers(conformance, inspect.isfunction) if name.startswith("test_")]


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    install(PAGE, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def test_the_files_are_short():
    lengths = {name: len(code.splitlines()) for name, code in files(PAGE).items()}
    assert set(lengths) == {"my_methods/median.py", "my_methods/late.py"}
    assert all(length <= 40 for length in lengths.values()), lengths


def test_they_are_listed_beside_the_built_in_ones():
    assert {"median", "late", "grpo", "proas"} <= set(registry.names())
    assert (registry.get("median").kind, registry.get("late").kind) == ("estimator", "shaper")


@pytest.mark.parametrize("name", ["median", "late"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_they_pass_the_conformance_suite(name, check):
    values = {"seed": (0, 1), "mode": ("residual", "before_norm", "off")}
    extra = next((key for key in values if key in inspect.signature(check).parameters), None)
    for value in values[extra] if extra else [None]:
        check(name, **({extra: value} if extra else {}))


def test_the_median_and_the_discount_by_hand():
    """Returns 1, 0, 0 have the median 0; the winner's three turns get γ², γ, 1 of its 1, the losers nothing."""
    config = MethodConfig(name="late", base="median", params={"γ": 0.5, "scale": 2.0}, invalid_mode="off")
    composition = registry.build(config)
    siblings = group(walk("abcd", True), walk("ab", False), walk("ac", False))
    won, *lost = composition.credit([siblings], tools()).credits[0]
    assert [float(a[0]) for a in won.advantage_TN] == [0.5, 1.0, 2.0]
    assert all(float(a[0]) == 0 for credit in lost for a in credit.advantage_TN)
    assert composition.label() == "median(scale=2)+late(gamma=0.5)+invalid(off)"
