from __future__ import annotations

import numpy as np

from agentcredit.policies.noise import generator, uniforms


def test_noise_is_a_function_of_its_key_and_a_longer_draw_begins_with_a_shorter():
    assert np.array_equal(uniforms((7, "train", 3, "task", 0, 2), 5), uniforms((7, "train", 3, "task", 0, 2), 9)[:5])


def test_neighbouring_keys_have_unrelated_noise():
    draws = [
        uniforms((7, "train", step, "task", sibling, turn), 64)
        for step in (1, 2)
        for sibling in (0, 1)
        for turn in (0, 1)
    ]
    correlations = np.corrcoef(draws)[np.triu_indices(len(draws), 1)]
    # 28 pairs of 64 independent numbers: |r| above 0.5 has probability below 1e-3 in all.
    assert np.abs(correlations).max() < 0.5


def test_the_parts_of_a_key_do_not_run_into_each_other():
    assert generator(("ab", "c")).random() != generator(("a", "bc")).random()
