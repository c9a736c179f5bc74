"""The estimators give the figures of the public implementations, with the options that reproduce those (T11)."""

from __future__ import annotations

import numpy as np
import pytest

from agentcredit.methods.compose import invalid_residual
from agentcredit.methods.gigpo import Gigpo, GigpoParams, discounted_returns, step_advantages, step_groups
from agentcredit.methods.graphgpo import Graphgpo, GraphgpoParams, distance_returns, group_distances
from agentcredit.methods.grpo import Grpo, GrpoParams
from agentcredit.methods.hgpo import hierarchical, history_labels
from agentcredit.methods.projection import project_to_box
from agentcredit.methods.reference_graph import GOAL
from agentcredit.methods.rloo import Rloo, RlooParams
from tests.methods.vectors import Rows, cases, close, outcome_rewards


def by_name(name):
    return pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in cases(name)])


@by_name("va_grpo")
def test_grpo_of_verl_agent(case):
    given = case["in"]
    rows = Rows(given["uid"], given["traj"])
    reward, invalid, penalty = outcome_rewards(rows, given["row_score"])
    over = "step" if given["compute_mean_std_cross_steps"] else "trajectory"
    method = Grpo(GrpoParams(baseline_over=over, std=given["norm_adv_by_std_in_grpo"], degenerate="public"))
    got = rows.scatter(method.advantages(rows.groups(reward, invalid), {}, penalty))
    close(got, case["out"]["adv_row"], case, 1e-5, 1e-5)


@by_name("va_rloo")
def test_rloo_of_verl_agent(case):
    given = case["in"]
    rows = Rows(given["uid"], given["traj"])
    reward, invalid, penalty = outcome_rewards(rows, given["row_score"])
    over = "step" if given["compute_mean_std_cross_steps"] else "trajectory"
    method = Rloo(RlooParams(baseline_over=over, degenerate="public"))
    got = rows.scatter(method.advantages(rows.groups(reward, invalid), {}, penalty))
    close(got, case["out"]["adv_row"], case, 1e-5, 1e-5)


@by_name("va_gigpo")
def test_gigpo_of_verl_agent(case):
    given, want = case["in"], case["out"]
    rows = Rows(given["uid"], given["traj"])
    std = given["mode"] == "mean_std_norm"
    similarity = given["similarity_thresh"] if given["similarity"] else 0.0
    groups = rows.groups(given["step_reward"], given["invalid"], given["n_tokens"], given["anchor"])

    # Rows of an interleaved batch come in another order than ours, on which similarity clusters depend: so the parts are
    # checked in the batch's own order first.
    uid = np.array(given["uid"])
    discounted = np.zeros(rows.n)
    for episodes in rows.positions.values():
        for places in episodes.values():
            discounted[places] = discounted_returns([given["step_reward"][row] for row in places], given["gamma"])
    close(discounted, want["discounted_return"], case, 1e-5, 2e-5)
    step = np.zeros(rows.n)
    labels = np.zeros(rows.n, dtype=int)
    for u in np.unique(uid):
        own = np.flatnonzero(uid == u)
        labels[own] = 1000 * u + step_groups([given["anchor"][row] for row in own], similarity)
        penalised = discounted[own] - given["c_inv"] * np.array(given["invalid"])[own]
        step[own] = step_advantages(penalised, labels[own], std)
    assert_same_partition(labels, want["step_group"])
    close(step, want["adv_step"], case, 1e-5, 2e-5)

    method = Gigpo(
        GigpoParams(
            gamma=given["gamma"],
            omega=given["omega"],
            std=std,
            baseline_over="step",
            anchor="obs",
            similarity=similarity,
            degenerate="public",
        )
    )
    got = rows.scatter(method.advantages(groups, {}, given["c_inv"]))
    close(got, want["adv"], case, 1e-5, 2e-5)


@by_name("va_hgpo")
def test_hgpo_of_verl_agent(case):
    given = case["in"]
    rows = Rows(given["uid"], given["traj"])
    std = given["mode"] == "mean_std_norm"
    reward, invalid, penalty = outcome_rewards(rows, given["row_score"])
    base = Grpo(GrpoParams(baseline_over="step", std=std, degenerate="public"))
    base_EN = base.advantages(rows.groups(reward, invalid), {}, penalty)
    got = []
    for episodes, base_N in zip(rows.positions.values(), base_EN, strict=True):
        places = [row for own in episodes.values() for row in own]
        levels = [
            history_labels([[given["anchor"][row] for row in own] for own in episodes.values()], k)
            for k in range(1, given["history_length"] + 2)
        ]
        values_N = hierarchical(
            np.array(given["step_return"], dtype=float)[places],
            levels,
            np.concatenate(base_N) if given["base_group"] else None,
            given["length_weight_alpha"],
            std,
        )
        got.append(np.split(values_N, np.cumsum([len(own) for own in episodes.values()])[:-1]))
    values, want = rows.scatter(got), np.array(case["out"]["adv"])
    if given["base_group"] and "atol" in case:
        # Equal scores whose float32 mean is inexact: the noise counts there as an item and takes a share of the weights.
        score, uid = np.array(given["row_score"]), np.array(given["uid"])
        exact = [len(set(score[uid == u])) > 1 for u in uid]
        assert not all(exact)
        values, want = values[exact], want[exact]
    close(values, want, case, 1e-4, 1e-4)


@by_name("graphgpo")
def test_graphgpo_of_its_recipe(case):
    given, want = case["in"], case["out"]
    rows = Rows(given["uid"], given["traj"])
    similarity = given["similarity_thresh"] if given["similarity"] else 0.0
    following = [GOAL if state == "success" else state for state in given["next"]]
    returns = []
    for u, episodes in rows.positions.items():
        states = [[*(given["anchor"][row] for row in own), following[own[-1]]] for own in episodes.values()]
        for own, states_T in zip(episodes.values(), states, strict=True):
            assert [following[row] for row in own] == states_T[1:]  # the input is a walk
        distances = group_distances(states, similarity)
        for states_T, d_T in zip(states, distances, strict=True):
            known = {GOAL if state == "success" else state: d for state, d in want["distance"][str(u)].items()}
            assert d_T.tolist() == [known[state] for state in states_T]
        returns.append([distance_returns(d_T, given["gamma"], given["normalize_distance"], 10.0) for d_T in distances])
    close(rows.scatter(returns), want["step_return"], case, 1e-5, 2e-5)

    reward, _, _ = outcome_rewards(rows, given["row_score"])
    groups = rows.groups(reward, given["invalid"], given["n_tokens"], given["anchor"], given["next"])
    method = Graphgpo(
        GraphgpoParams(
            gamma=given["gamma"],
            normalize_distance=given["normalize_distance"],
            omega=given["step_advantage_w"],
            episode_weight=given["episode_advantage_w"],
            scale=10.0,
            std=given["mode"] == "mean_std_norm",
            baseline_over="step",
            similarity=similarity,
            degenerate="public",
        )
    )
    close(rows.scatter(method.advantages(groups, {}, given["c_inv"])), want["adv"], case, 1e-5, 2e-5)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case["name"])
        for case in cases("verl_advantage")
        if case["in"]["estimator"] in ("grpo", "dr_grpo", "rloo")
    ],
)
def test_estimators_of_verl(case):
    given = case["in"]
    mask = np.array(given["mask"], dtype=float)
    scores = np.array(given["token_level_rewards"]).sum(axis=1)
    rows = Rows(given["uid"], range(len(scores)))
    kind = given["estimator"]
    method = (
        Rloo(RlooParams(degenerate="public"))
        if kind == "rloo"
        else Grpo(GrpoParams(std=kind == "grpo", degenerate="public"))
    )
    got = rows.scatter(method.advantages(rows.groups(list(scores), [0] * len(scores)), {}))
    close(got[:, None] * mask, case["out"]["advantage"], case, 2e-5, 1e-5)


@by_name("align_opsd_advantage")
def test_advantage_and_residual_of_align_opsd(case):
    given, want = case["in"], case["out"]
    traj = [1000 * t + r for t, r in zip(given["task"], given["rollout"], strict=True)]
    rows = Rows(given["task"], traj)
    reward, _, _ = outcome_rewards(rows, given["outcome"])
    groups = rows.groups(reward, given["invalid"])
    over = "step" if given["scope"] == "turn" else "trajectory"
    method = Grpo(GrpoParams(baseline_over=over, std=given["normalize_by_std"]))
    close(rows.scatter(method.advantages(groups, {})), want["advantage"], case, 1e-5, 1e-5)
    residual = [invalid_residual(g, method, given["c_inv"]) for g in groups]
    close(rows.scatter(residual), want["invalid_residual"], case, 1e-5, 1e-5)


@by_name("align_opsd_projection")
def test_projection_of_align_opsd(case):
    given = case["in"]
    raw, tokens = np.array(given["raw"]), np.array(given["n_tokens"], dtype=float)
    got = project_to_box(raw, tokens, given["lo"], given["hi"])
    close(got, case["out"]["projected"], case, 1e-4, 1e-5)
    assert tokens @ got == pytest.approx(tokens @ raw, rel=1e-12)


def assert_same_partition(got, want):
    """Labels differ, what belongs together does not."""
    pairs = set(zip(np.asarray(got).tolist(), want, strict=True))
    assert len(pairs) == len(set(want)) == len(set(np.asarray(got).tolist()))
