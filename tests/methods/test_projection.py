"""The box projection: conserved, inside, nearest, and not the same as clipping."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcredit.methods.projection import project_to_box


def test_by_hand():
    # raw (3, 1, 0), mass 1 each, box [0, 2], budget 4: w = clip(raw − ν) with ν = −.5: (2, 1.5, .5)
    got = project_to_box(np.array([3.0, 1.0, 0.0]), np.ones(3), 0.0, 2.0)
    np.testing.assert_allclose(got, [2.0, 1.5, 0.5])


def test_clipping_would_lose_the_budget():
    raw, mass = np.array([5.0, 0.1, 0.1]), np.array([1.0, 2.0, 3.0])
    got = project_to_box(raw, mass, 0.0, 2.0)
    assert mass @ np.clip(raw, 0.0, 2.0) < mass @ raw
    assert mass @ got == pytest.approx(mass @ raw, rel=1e-12)


def test_what_lies_inside_is_returned_as_it_is():
    raw = np.array([0.3, 1.9, 0.8])
    np.testing.assert_array_equal(project_to_box(raw, np.array([3.0, 1.0, 2.0]), 0.0, 2.0), raw)


@pytest.mark.parametrize("budget", [-0.5, 6.5])
def test_a_budget_outside_the_box_is_an_error(budget):
    with pytest.raises(ValueError, match="budget"):
        project_to_box(np.ones(3), np.ones(3), 0.0, 2.0, budget)


@pytest.mark.parametrize("budget", [0.0, 6.0])
def test_a_budget_at_the_edge_of_the_box(budget):
    got = project_to_box(np.array([0.5, 1.0, 7.0]), np.ones(3), 0.0, 2.0, budget)
    np.testing.assert_allclose(got, np.full(3, budget / 3), atol=1e-12)


@given(
    st.lists(st.tuples(st.floats(0, 20), st.integers(1, 50)), min_size=1, max_size=12),
    st.floats(0.0, 1.0),
    st.integers(0, 10**6),
)
def test_conserved_inside_and_nearest(pairs, where, seed):
    raw = np.array([r for r, _ in pairs])
    mass = np.array([float(n) for _, n in pairs])
    lo, hi = 0.0, 4.0
    budget = where * hi * mass.sum()
    got = project_to_box(raw, mass, lo, hi, budget)
    assert np.all((got >= lo) & (got <= hi))
    assert mass @ got == pytest.approx(budget, rel=1e-9, abs=1e-9)
    # No other feasible point is nearer: mixtures with random feasible points stay inside and on budget.
    rng = np.random.default_rng(seed)
    other = project_to_box(rng.uniform(lo, hi, len(raw)), mass, lo, hi, budget)
    for share in (0.01, 0.5, 1.0):
        mixed = (1 - share) * got + share * other
        assert mass @ (got - raw) ** 2 <= mass @ (mixed - raw) ** 2 + 1e-7
