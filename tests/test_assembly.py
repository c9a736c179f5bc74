"""What a run's parts are made of, whoever puts them together."""

from __future__ import annotations

import numpy as np
import pytest

from agentcredit.assembly import method_tools, prompt_style
from agentcredit.config import RunConfig
from agentcredit.methods.rehearsal import rehearsal_tools
from agentcredit.policies.base import Response


@pytest.mark.parametrize(
    ("model", "prompt", "style"),
    [("tiny", "auto", "terse"), ("smollm2", "auto", "full"), ("tiny", "full", "full"), ("smollm2", "terse", "terse")],
)
def test_only_the_tiny_model_is_told_no_format_unless_asked(model: str, prompt: str, style: str):
    config = RunConfig.model_validate({"policy": {"model": model, "prompt": prompt}})
    assert prompt_style(config) == style


def test_methods_draw_from_the_seed_and_the_step_and_open_the_model_when_they_first_ask():
    class Engine:
        asked: list[object]

        def generate(self, config, prompts, keys, temperature, max_new_tokens) -> list[Response]:
            self.asked.append((prompts, keys, temperature, max_new_tokens))
            return []

    made = list[Engine]()

    def engine():
        made.append(Engine())
        made[-1].asked = []
        return made[-1]

    def tools(seed: int, step: int):
        template = rehearsal_tools().template
        assert template is not None
        return method_tools(
            RunConfig(seed=seed),
            step,
            engine,  # pyright: ignore[reportArgumentType]  # it only generates
            max_turns=9,
            logprobs=lambda rows: [],
            analyse=None,
            embed=lambda texts: np.zeros((len(texts), 1)),
            expert=lambda task_id: None,
            template=template,
        )

    draws = {key: tools(*key).rng.random() for key in [(0, 1), (0, 2), (1, 1)]}
    assert len(set(draws.values())) == 3
    assert tools(0, 1).rng.random() == draws[0, 1]
    assert made == []
    ask = tools(7, 3).generate
    assert ask is not None
    ask([[1, 2]], [("rwml", 0)], temperature=0.5)
    assert [one.asked for one in made] == [[([[1, 2]], [(7, "method", 3, "rwml", 0)], 0.5, None)]]
