"""T6, T10 and the invariants of docs/methods/proas.md."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentcredit.config import MethodConfig
from agentcredit.errors import UsageError
from agentcredit.methods.graph_sources import GraphStore, SelfSource
from agentcredit.methods.grpo import Grpo, GrpoParams
from agentcredit.methods.proas import Proas, ProasParams, penalty_weights
from agentcredit.methods.registry import build
from tests.methods.build import episode, group, random_groups, task, tools, turn, walk

SUCCESS = ["a", "b", "a", "c", "end"]
FAILURE = ["a", "x", "y", "a", "c", "z"]


def shape(groups, advantages=None, *, source=None, metrics=None, **params):
    method = Proas(ProasParams(**{"graph": "instance", "eta_novel": 0.0, "kappa": 1.0, **params}), source)
    if advantages is None:
        advantages = Grpo(GrpoParams(std=False)).advantages(groups, {})
    return method.shape(groups, advantages, tools(), metrics if metrics is not None else {})


def flat(advantages):
    return np.concatenate([a_T for a_ET in advantages for a_T in a_ET])


def test_by_hand():
    # Centred GRPO gives ±.5. Masks of the success: record [0,0,1,1]. Regrets of the failure [3,0,0,0,2], κ = 1:
    # raw [4,1,1,1,3], mean 2, so weights [2,.5,.5,.5,1.5].
    (won, lost), *_ = shape([group(walk(SUCCESS, True), walk(FAILURE, False))])
    np.testing.assert_allclose(won, [0, 0, 0.5, 0.5])
    np.testing.assert_allclose(lost, -0.5 * np.array([2, 0.5, 0.5, 0.5, 1.5]))


@pytest.mark.parametrize(
    ("params", "mask"),
    [
        ({"progress": "edge"}, [0, 1, 1, 1]),
        ({"progress": "loop_erased"}, [0, 0, 1, 1]),
        ({"eta_novel": 0.5}, [0.5, 0, 1, 1]),  # b is new, the return to a is not
        ({"eta_floor": 0.2}, [0.2, 0.2, 1, 1]),
        ({"eta_novel": 0.5, "eta_floor": 0.2}, [0.5, 0.2, 1, 1]),
        ({"mui": False}, [1, 1, 1, 1]),
        ({"renorm_positive": True}, [0, 0, 2, 2]),
        ({"renorm_positive": True, "w_max": 1.5}, [0, 0, 1.5, 1.5]),
    ],
)
def test_masks_by_hand(params, mask):
    (won, _), *_ = shape([group(walk(SUCCESS, True), walk(FAILURE, False))], **params)
    np.testing.assert_allclose(won, 0.5 * np.array(mask))


@pytest.mark.parametrize(
    ("params", "tokens", "weights"),
    [
        ({"kappa": 0.0}, [1] * 5, [3, 0, 0, 0, 2]),
        ({"w_max": 1.8}, [1] * 5, [1.8, 0.55, 0.55, 0.55, 1.55]),  # .2 over the cap, shared by four
        ({}, [2, 1, 1, 1, 1], np.array([4, 1, 1, 1, 3]) * 6 / 14),
        ({"budget": "turn"}, [2, 1, 1, 1, 1], [2, 0.5, 0.5, 0.5, 1.5]),
        ({"deviation": "remaining", "kappa": 0.0}, [1] * 5, np.array([2, 1.5, 1, 0.5, 1]) * 5 / 6),
        ({"apr": False}, [1] * 5, [1] * 5),
    ],
)
def test_blame_by_hand(params, tokens, weights):
    (_, lost), *_ = shape([group(walk(SUCCESS, True), walk(FAILURE, False, tokens=tokens))], **params)
    np.testing.assert_allclose(lost, -0.5 * np.asarray(weights))


def test_softmax_of_regret_is_scaled_to_mean_one():
    # exp(regret/1): e³, 1, 1, 1, e² ; scaled to sum 5, plus κ = 1, times 5/10
    soft = np.exp([3.0, 0, 0, 0, 2.0])
    want = (1 + soft * 5 / soft.sum()) / 2
    (_, lost), *_ = shape(
        [group(walk(SUCCESS, True), walk(FAILURE, False))], deviation="temp", temperature=1.0, w_max=10.0
    )
    np.testing.assert_allclose(lost, -0.5 * want)


def test_a_success_is_not_redistributed_and_a_failure_is_masked_where_positive():
    groups = [group(walk(SUCCESS, True), walk(FAILURE, False))]
    given_ = [[np.array([-1.0, -1, -1, -1]), np.array([1.0, 1, 1, 1, -1])]]
    (won, lost), *_ = shape(groups, given_)
    assert won.tolist() == [-1, -1, -1, -1]
    assert lost.tolist() == [0, 0, 0, 1, -1]
    assert given_[0][0].tolist() == [-1, -1, -1, -1]  # what was given is not changed


def test_unknown_steps_keep_what_they_had():
    groups = [group(walk(["a", None, "c", "end"], True), walk(["a", "x", None, "y"], False))]
    given_ = [[np.ones(3), -np.ones(3)]]
    graph_from = SelfSource(GraphStore(100, 1.0), "success", "before")
    graph_from.before([group(walk(SUCCESS, True))], tools())
    (won, lost), *_ = shape(groups, given_, source=graph_from)
    assert won.tolist() == [1, 1, 1]
    assert lost.tolist() == [-1, -1, -1]


def test_an_empty_graph_is_the_base():
    groups = random_groups(np.random.default_rng(3))
    base = Grpo(GrpoParams()).advantages(groups, {})
    got = shape(groups, base, update_order="after", graph="both")
    np.testing.assert_array_equal(flat(got), flat(base))


def test_an_episode_on_a_shortest_way_is_the_base():
    groups = [group(walk(["a", "c", "end"], True), walk(["a", "c", "end"], True), walk(["a", "c"], False))]
    base = Grpo(GrpoParams()).advantages(groups, {})
    np.testing.assert_array_equal(flat(shape(groups, base)), flat(base))


def test_a_large_kappa_is_the_base_on_negatives():
    groups = [group(walk(SUCCESS, True), walk(FAILURE, False))]
    (_, lost), *_ = shape(groups, kappa=1e9)
    np.testing.assert_allclose(lost, -0.5, rtol=1e-6)


def test_no_valid_step_at_all_is_the_base():
    groups = [group(walk(SUCCESS, True), walk(["a", "a", "a", "a"], False))]
    (_, lost), *_ = shape(groups)
    np.testing.assert_allclose(lost, -0.5)


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_a_loop_adds_only_masked_steps(cut):
    plain = ["a", "c", "d", "end"]
    looped = [*plain[: cut + 1], "loop", *plain[cut:]]
    way = [group(walk(plain, True), walk(["a", "x"], False))]
    detour = [group(walk(plain, True), walk(looped, True), walk(["a", "x"], False))]
    (want, _), *_ = shape(way, [[np.ones(3), -np.ones(1)]])
    (_, got, _), *_ = shape(detour, [[np.ones(3), np.ones(5), -np.ones(1)]])
    assert got[[cut, cut + 1]].tolist() == [0, 0]
    np.testing.assert_array_equal(np.delete(got, [cut, cut + 1]), want)


def test_searching_is_spared_by_the_role_level_only_where_it_may():
    # The episode looks at p and q (no milestone by role), then undoes a milestone. Both graphs know better ways.
    reference = walk(["a", "c", "end"], True, lifted=["seek", "hold", "end"])
    searching = walk(["a", "p", "q", "c", "q"], False, lifted=["seek", "seek", "seek", "hold", "seek"])
    groups = [group(reference, searching)]
    # instance: d̂ = 2, 3, 2, 1, 2 → regret 2, 0, 0, 2; lifted: d̂ = 2, 2, 2, 1, 2 → regret 1, 1, 0, 2; the smaller: 1, 0, 0, 2
    (_, lost), *_ = shape(groups, graph="both", kappa=0.0, w_max=10.0)
    np.testing.assert_allclose(lost, -0.5 * np.array([1, 0, 0, 2]) * 4 / 3)
    # with the role level alone, nothing is known of q → c
    (_, lost), *_ = shape(groups, graph="lifted", kappa=0.0, w_max=10.0)
    np.testing.assert_allclose(lost, -0.5 * np.array([1, 1, 0, 2]))


PARAMS = st.fixed_dictionaries(
    {
        "graph": st.sampled_from(["instance", "lifted", "both"]),
        "edge_scope": st.sampled_from(["success", "all"]),
        "update_order": st.sampled_from(["before", "after"]),
        "progress": st.sampled_from(["record", "edge", "loop_erased"]),
        "deviation": st.sampled_from(["regret", "remaining", "excess", "temp"]),
        "cost": st.sampled_from(["shortest", "expected"]),
        "slack": st.booleans(),
        "eta_novel": st.floats(0, 1),
        "eta_floor": st.floats(0, 1),
        "kappa": st.floats(0, 5),
        "w_max": st.floats(1, 6),
    }
)


@settings(max_examples=80, deadline=None)
@given(PARAMS, st.sampled_from(["grpo", "rloo", "gigpo"]), st.integers(0, 10**6), st.booleans())
def test_budgets_signs_and_bounds_on_random_episodes(params, base, seed, by_token):
    rng = np.random.default_rng(seed)
    method = Proas(ProasParams(**params, budget="token" if by_token else "turn"))
    estimator = build(MethodConfig(name=base)).estimator
    for _ in range(2):  # the second batch meets graphs of the first
        groups = random_groups(rng)
        advantages = estimator.advantages(groups, {})
        shaped = method.shape(groups, advantages, tools(max_turns=8), metrics := {})
        for g, a_ET, s_ET in zip(groups, advantages, shaped, strict=True):
            for e, a_T, s_T in zip(g.episodes, a_ET, s_ET, strict=True):
                positive, negative = a_T > 0, a_T < 0
                assert np.all((s_T[positive] >= 0) & (s_T[positive] <= a_T[positive]))
                assert np.all(s_T[a_T == 0] == 0)
                assert np.all(s_T[negative] <= 0)
                assert np.all(s_T[negative] >= a_T[negative] * method.params.w_max * (1 + 1e-9))
                n_T = np.array([t.n_tokens if by_token else 1 for t in e.turns])
                before, after = n_T[negative] @ a_T[negative], n_T[negative] @ s_T[negative]
                assert after == pytest.approx(before, rel=1e-6)
        assert metrics.get("proas/conservation_error", 0.0) < 1e-6
        assert all(np.isfinite(value) for value in metrics.values())


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([0.1, 0.3, 0.5, 1.0]), st.sampled_from(["shortest", "expected"]))
def test_corrupted_graphs_never_give_nan_and_still_conserve(seed, share, cost):
    groups = random_groups(np.random.default_rng(seed))
    spoilt = {f"corrupt_{what}": share for what in ("edges", "nodes", "spurious", "goal")}
    shaped = shape(groups, metrics=(metrics := {}), graph="both", cost=cost, corruption_seed=seed, **spoilt)
    assert np.all(np.isfinite(flat(shaped)))
    assert metrics.get("proas/conservation_error", 0.0) < 1e-6


def test_state_survives_json_and_gives_the_next_batch_the_same_advantages():
    rng = np.random.default_rng(7)
    first, second = random_groups(rng, n_groups=8), random_groups(rng, n_groups=8)
    config = MethodConfig(name="proas", base="gigpo", params={"update_order": "after"})
    composition, resumed, fresh = build(config), build(config), build(config)
    composition.credit(first, tools())
    resumed.load_state_dict(json.loads(json.dumps(composition.state_dict())))

    def credit(c):
        assignment = c.credit(second, tools())
        return np.concatenate([np.concatenate(e.advantage_TN) for g in assignment.credits for e in g])

    want, got = credit(composition), credit(resumed)
    np.testing.assert_array_equal(got, want)
    assert not np.array_equal(credit(fresh), want)  # without the state the batch is the first: so it does matter


def test_metrics_by_hand():
    metrics = {}
    shape([group(walk(SUCCESS, True), walk(FAILURE, False))], metrics=metrics)
    assert metrics["proas/tasks_with_goal"] == 1.0
    assert metrics["proas/arg_nodes_instance"] == 4.0  # a, b, c and the goal
    assert metrics["proas/arg_edges_instance"] == 4.0
    assert metrics["proas/coverage"] == pytest.approx((1.0 + 0.5) / 2)  # x, y, z of six are off the map
    assert metrics["proas/masked_positive_share"] == 0.5
    assert metrics["proas/novel_masked_share"] == 0.5  # b was new, the return to a was not
    assert metrics["proas/nonprogress_in_success"] == 0.25  # only a → b leads away
    assert metrics["proas/progress_in_fail"] == 3 / 5
    assert metrics["proas/distance_at_start"] == 2.0
    assert metrics["proas/unknown_share"] == 0.0
    assert metrics["proas/apr_weight_p95"] == pytest.approx(np.quantile([2, 0.5, 0.5, 0.5, 1.5], 0.95))
    assert metrics["proas/conservation_error"] < 1e-12
    assert metrics["proas/seconds"] > 0


def test_an_environment_without_keys_is_refused():
    keyless = [group(episode([turn(reward=1.0)], True), episode([turn()], False))]
    with pytest.raises(UsageError, match="'toy' gives no state_key or lifted_key"):
        shape(keyless, graph="both")
    with pytest.raises(UsageError, match="lifted_key"):
        shape([group(walk(SUCCESS, True))], graph="lifted")


def test_a_tiny_kappa_without_deviation_leaves_the_penalty_alone():
    weights = penalty_weights(-np.ones(3), np.ones(3), np.zeros(3), ProasParams(kappa=2.2e-313))
    assert weights.tolist() == [1.0, 1.0, 1.0]


def test_zero_penalty_mass_needs_no_weights():
    assert penalty_weights(np.zeros(3), np.ones(3), np.ones(3), ProasParams()).tolist() == [1, 1, 1]
    no_deviation = penalty_weights(-np.ones(3), np.ones(3), np.zeros(3), ProasParams(kappa=0.0))
    assert no_deviation.tolist() == [1, 1, 1]


def test_label_names_the_main_choices_and_what_was_changed():
    label = "proas(graph=both,source=self,progress=record,deviation=regret,kappa=0,eta_novel=0.5)"
    assert Proas(ProasParams()).label() == label
    assert (
        Proas(ProasParams(slack=True, kappa=2.0)).label() == label.replace("kappa=0", "kappa=2")[:-1] + ",slack=True)"
    )


def test_tasks_of_one_type_share_the_lifted_graph_over_time():
    method = Proas(ProasParams(graph="lifted", eta_novel=0.0))
    estimator = Grpo(GrpoParams(std=False))
    taught = [group(walk(["a", "b", "end"], True, of=task("t0"), lifted=["seek", "hold", "end"]))]
    method.shape(taught, estimator.advantages(taught, {}), tools(), {})
    # another game of the type, all failed but with graded advantages: its graph is known
    later = [group(walk(["k", "l", "m"], False, of=task("t1"), lifted=["seek", "seek", "hold"]))]
    (shaped,), *_ = method.shape(later, [[np.array([1.0, 1.0])]], tools(), {})
    assert shaped.tolist() == [0.0, 1.0]
