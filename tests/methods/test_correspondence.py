"""AlignOPSD's parts give the figures of the public code (T11), and its worked example (T7)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agentcredit.methods.correspondence import (
    corrected,
    cosines,
    profile_distance,
    profiles,
    same_action,
    select_sources,
    structural_mask,
    turn_distances,
    weigh_sources,
)
from agentcredit.methods.segments import bounded_densities, segment, threshold_of, turn_densities
from tests.methods.vectors import cases


def by_name(name: str) -> Any:
    return pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in cases(name)])


def blocks(given: dict[str, Any]) -> list[np.ndarray]:
    """Turns of each task: what one call of our functions sees."""
    task = np.array(given["task"])
    return [np.flatnonzero(task == number) for number in np.unique(task)]


def test_equal_thoughts_have_a_cosine_of_one_whatever_the_last_bits():
    v = np.random.default_rng(0).normal(size=(200, 384)).astype(np.float32)
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    raw = (v @ v.T).diagonal()
    assert raw.min() < 1.0 < raw.max()  # what a gamma of 1 would decide by
    assert (cosines(v, v).diagonal() == 1.0).all()
    np.testing.assert_allclose(cosines(v, v), v @ v.T, atol=1e-6)
    # Turns 0 and 1 of two rollouts thought the same; turn 2 did not.
    thought = v[[0, 0, 1]]
    structural = structural_mask([0, 1, 1], [True] * 3, [True] * 3)
    assert select_sources(cosines(thought, thought), structural, [0, 1, 1], 1.0, 3) == [[1], [0], []]


def structure(given: dict[str, Any], own: np.ndarray) -> np.ndarray:
    def of(name: str) -> Any:
        return [given[name][i] for i in own]

    protocol = of("protocol") if given.get("protocol") else None
    return structural_mask(of("rollout"), of("teacher_thinking_valid"), of("student_thinking_valid"), protocol)


@by_name("align_opsd_sources")
def test_sources(case: dict[str, Any]):
    given, want = case["in"], case["out"]
    cross_of = {(s, t): np.array(lp) for s, t, lp in given["cross_logp"]}
    whole = np.zeros((len(given["task"]),) * 2, dtype=bool)
    for own in blocks(given):
        near = np.array(given["H"])[np.ix_(own, own)]
        mask = structure(given, own)
        whole[np.ix_(own, own)] = mask
        rollout = [given["rollout"][i] for i in own]
        selected = select_sources(near, mask, rollout, given["gamma"], given["top_k"])
        for t, sources in enumerate(selected):
            i = own[t]
            assert [int(own[s]) for s in sources] == want["selected"][i]
            made = weigh_sources(sources, near[:, t], given["gamma"], given["tau_a"], given["alpha_max"])
            np.testing.assert_allclose(made.weight_K, want["omega"][i], rtol=1e-5, atol=1e-6)
            assert made.confidence == pytest.approx(want["rho"][i], rel=1e-5, abs=1e-6)
            assert made.alpha == pytest.approx(want["alpha"][i], rel=1e-5, abs=1e-6)
            crossed = [cross_of[int(own[s]), int(i)] for s in sources]
            got = corrected(np.array(given["teacher_logp_own"][i]), crossed, made, given["aggregation"])
            np.testing.assert_allclose(got, want["corrected"][i], rtol=1e-5, atol=1e-6)
    assert whole.astype(int).tolist() == want["structural"]


@by_name("align_opsd_action_filter")
def test_action_filter(case: dict[str, Any]):
    given = case["in"]
    got = [
        [
            int(
                bool(given["candidates"][s][t])
                and same_action(
                    given["similarity"][s][t],
                    given["threshold"],
                    given["teacher_actions"][s],
                    given["student_actions"][t],
                    bool(given["teacher_valid"][s] and given["student_valid"][t]),
                    given["webshop"],
                )
            )
            for t in range(len(given["student_actions"]))
        ]
        for s in range(len(given["teacher_actions"]))
    ]
    assert got == case["out"]["accepted"]


@by_name("align_opsd_segmentation")
def test_segmentation(case: dict[str, Any]):
    given, want = case["in"], case["out"]
    threshold = float("inf") if given["threshold"] is None else given["threshold"]
    got = segment(
        # As the public code stores them: a float32 0.1 lies above a threshold of 0.1.
        np.array(given["J"], dtype=np.float32).astype(float),
        np.array(given["valid"]),
        threshold,
        given["L_min"],
        given["L_max"],
        given["fallback_min"],
    )
    for name in ("semantic", "guided", "forced"):
        assert list(getattr(got, name)) == want[name]
    assert [list(part) for part in got.segments] == want["segments"]


def test_the_worked_example_of_twelve_turns():
    # J_3 = .9 and J_7 = .4, θ = .5: 3 is a semantic cut. [3, 12) has 9 turns, more than 4: guided by J_7 ≥ .1. [7, 12) has
    # 5: nothing guides, and of 9 and 10, which leave two turns on both sides, 9 is nearer to the middle 9.5 by the tie.
    distance, valid = np.zeros(12), np.ones(12, dtype=bool)
    distance[3], distance[7] = 0.9, 0.4
    got = segment(distance, valid, 0.5, 2, 4, 0.1)
    assert (got.semantic, got.guided, got.forced) == ((3,), (7,), (9,))
    assert got.segments == ((0, 3), (3, 7), (7, 9), (9, 12))


@by_name("align_opsd_credit")
def test_credit(case: dict[str, Any]):
    given, want, config = case["in"], case["out"], case["in"]["config"]
    n = np.array(given["n_tokens"], dtype=float)
    rollout = np.array(given["rollout"])
    if config["segmentation_mode"] == "token":
        assert_token_credit(given, want, config)
        return
    gap = np.array([np.mean(row[: int(k)]) for row, k in zip(given["gap"], n, strict=True)])
    score = np.sign(given["advantage"]) * gap
    np.testing.assert_allclose(score, want["aligned_score"], rtol=2e-4, atol=2e-5)
    flat = config["segmentation_mode"] == "turn"
    distance, counts = np.zeros(len(n)), np.zeros(len(n), dtype=bool)
    episodes = [np.flatnonzero(rollout == number) for number in np.unique(rollout)]
    if not flat:
        for own in blocks(given):
            near, mask = np.array(given["H"])[np.ix_(own, own)], structure(given, own)
            profile, valid = profiles(near, mask, given["gamma"], config["profile_temperature"])
            np.testing.assert_array_equal(valid, np.array(want["profile_valid"], dtype=bool)[own])
            if config["profile_distance"] == "entropy":
                # There the profile has one place per turn of the batch, and its length is the unit of the entropy.
                profile = np.pad(profile, ((0, 0), (0, len(n) - len(own))))
            for number in np.unique(rollout[own]):
                turns = np.flatnonzero(rollout[own] == number)
                d, c = turn_distances(profile, valid, mask, turns.tolist(), config["profile_distance"])
                distance[own[turns]], counts[own[turns]] = d, c
        np.testing.assert_allclose(distance, want["J"], rtol=2e-4, atol=2e-5)
    threshold = threshold_of(
        distance[counts],
        config["segmentation_quantile"],
        config["segmentation_threshold_min"],
        config["segmentation_threshold_max"],
    )
    if not flat:
        assert threshold == pytest.approx(float("inf") if want["threshold"] is None else want["threshold"], rel=1e-4)
    weight = np.zeros(len(n))
    for own in episodes:
        parts = (
            [(t, t + 1) for t in range(len(own))]
            if flat
            else segment(
                distance[own],
                counts[own],
                threshold,
                config["min_segment_turns"],
                config["max_segment_turns"],
                config["segmentation_threshold_min"],
            ).segments
        )
        raw = turn_densities(score[own], n[own], parts, config["credit_temperature"])
        np.testing.assert_allclose(raw, np.array(want["raw_density"])[own], rtol=2e-4, atol=2e-5)
        mode = "bounded" if config["weighting_mode"] == "bounded" else "capped"
        density = bounded_densities(raw, n[own], mode, config["density_upper_bound"], config["multiplier_band"])
        assert n[own] @ density == pytest.approx(n[own].sum(), rel=1e-9)
        weight[own] = (1 - config["mixing_coefficient"]) + config["mixing_coefficient"] * density
    np.testing.assert_allclose(weight, want["turn_weight"], rtol=2e-4, atol=2e-5)


def assert_token_credit(given: dict[str, Any], want: dict[str, Any], config: dict[str, Any]) -> None:
    """The ablation without turns: every token is a turn of its own, and nothing is mixed."""
    rollout = np.array(given["rollout"])
    for number in np.unique(rollout):
        own = np.flatnonzero(rollout == number)
        lengths = [given["n_tokens"][i] for i in own]
        advantage = given["advantage"][own[0]]
        score = np.sign(advantage) * np.concatenate([given["gap"][i][:k] for i, k in zip(own, lengths, strict=True)])
        ones = np.ones(len(score))
        raw = turn_densities(score, ones, [(0, len(score))], config["credit_temperature"])
        mode = "bounded" if config["weighting_mode"] == "bounded" else "capped"
        density = bounded_densities(raw, ones, mode, config["density_upper_bound"], config["multiplier_band"])
        flat = np.concatenate([want["token_advantage"][i][:k] for i, k in zip(own, lengths, strict=True)])
        np.testing.assert_allclose(advantage * density, flat, rtol=2e-4, atol=2e-5)


def test_distances_between_profiles():
    one, other = np.array([1.0, 0.0]), np.array([0.0, 1.0])
    assert profile_distance(one, other) == pytest.approx(1.0)
    assert profile_distance(one, one) == 0.0
    assert profile_distance(one, np.array([0.5, 0.5])) == profile_distance(np.array([0.5, 0.5]), one)


def test_equal_scores_leave_every_token_alike_whatever_the_lengths():
    tokens = np.array([1.0, 7.0, 3.0, 2.0])
    for parts in ([(0, 4)], [(0, 1), (1, 4)], [(0, 2), (2, 4)]):
        np.testing.assert_allclose(turn_densities(np.full(4, 0.3), tokens, parts, 0.5), np.ones(4))


def test_the_projection_is_not_clipping():
    raw, tokens = np.array([3.0, 0.5, 0.5]), np.array([1.0, 2.0, 2.0])  # token mean 1
    got = bounded_densities(raw, tokens, "capped", 2.0, 0.2)
    np.testing.assert_allclose(got, [2.0, 0.75, 0.75])  # clipping would lose one of the five tokens' mass
    np.testing.assert_allclose(bounded_densities(raw, tokens, "bounded", 2.0, 0.2), [1.2, 0.95, 0.95])
