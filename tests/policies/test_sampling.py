from __future__ import annotations

import numpy as np
import pytest
import torch

from agentcredit.policies.sampling import draw

LOGITS = torch.log(torch.tensor([[0.1, 0.2, 0.3, 0.4]]))


def one(uniform: float, allowed: tuple[int, ...] | None = None, temperature: float = 1.0) -> tuple[int, float]:
    ids, logprobs = draw(LOGITS, [allowed], np.array([uniform]), np.array([temperature]))
    return int(ids[0]), float(logprobs[0])


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 0), (0.05, 0), (0.15, 1), (0.31, 2), (0.61, 3), (0.999999, 3)])
def test_inverts_the_cumulative_distribution(uniform: float, token: int):
    assert one(uniform) == (token, pytest.approx(np.log([0.1, 0.2, 0.3, 0.4][token]), abs=1e-6))


def test_restricted_draw_renormalises_over_the_allowed_ids():
    # 0.1 and 0.3 become 1/4 and 3/4.
    assert one(0.2, (0, 2)) == (0, pytest.approx(np.log(0.25), abs=1e-6))
    assert one(0.3, (0, 2)) == (2, pytest.approx(np.log(0.75), abs=1e-6))


def test_temperature_sharpens_before_the_draw():
    # At temperature 1/2 the probabilities are squared: 1, 4, 9, 16 of 30.
    assert one(0.5, temperature=0.5) == (3, pytest.approx(np.log(16 / 30), abs=1e-6))
    assert one(0.4, temperature=0.5) == (2, pytest.approx(np.log(9 / 30), abs=1e-6))


def test_temperature_zero_takes_the_likeliest_allowed_token():
    assert one(0.0, temperature=0.0) == (3, 0.0)
    assert one(0.99, (0, 1), temperature=0.0) == (1, 0.0)


def test_rows_of_a_batch_do_not_influence_each_other():
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    allowed = [None, (3, 4, 5), None, (1,), (0, 49), None]
    uniform, temperature = np.linspace(0.05, 0.95, 6), np.array([1.0, 0.7, 0.0, 1.0, 1.3, 0.4])
    ids, logprobs = draw(logits, allowed, uniform, temperature)
    for row in range(6):
        alone = draw(logits[[row]], [allowed[row]], uniform[[row]], temperature[[row]])
        assert (ids[row], logprobs[row]) == (alone[0][0], pytest.approx(alone[1][0], abs=1e-6))


def test_frequencies_follow_the_distribution():
    n = 20000
    ids, _ = draw(LOGITS.expand(n, 4), [None] * n, np.random.default_rng(0).random(n), np.ones(n))
    # Standard deviation of a share is at most 0.0035 here; five of them.
    assert np.bincount(ids, minlength=4) / n == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.0175)
