"""What a run will do and what it lacks, before it starts."""

from pathlib import Path

import pytest

from agentcredit.config import RunConfig
from agentcredit.config_sources import resolve
from agentcredit.errors import UsageError
from agentcredit.plan import check_names, eval_steps, lacks, plan


def config(*sets: str) -> RunConfig:
    return resolve(sets=sets).config


@pytest.mark.parametrize(
    ("steps", "every", "expected"),
    [(10, 4, (0, 4, 8, 10)), (10, 5, (0, 5, 10)), (10, 0, (0, 10)), (0, 5, (0,)), (3, 7, (0, 3))],
)
def test_evaluations_are_at_the_start_every_so_often_and_at_the_end(steps: int, every: int, expected: tuple[int, ...]):
    assert eval_steps(config(f"train.steps={steps}", f"train.eval_every={every}").train) == expected


def test_bounds_are_products():
    made = plan(
        config(
            "train.steps=3",
            "train.tasks_per_step=2",
            "train.group_size=5",
            "train.eval_every=2",
            "train.eval_tasks=7",
            "env.max_turns=11",
            "policy.max_new_tokens=13",
            "tiny.games=17",
        )
    )
    assert made.episodes == 3 * 2 * 5
    assert made.tokens == 30 * 11 * 13
    assert made.eval_steps == (0, 2, 3)
    assert made.eval_episodes == 3 * 7
    assert made.eval_tokens == 21 * 11 * 13
    assert made.warm_start_episodes == 17


def test_the_whole_dev_split_has_no_known_size_yet():
    made = plan(config("train.eval_tasks=0"))
    assert made.eval_episodes is None
    assert made.eval_tokens is None


def test_the_label_names_every_choice():
    label = check_names(config("method.name=proas", "method.base=rloo", "method.params.kappa=0.25"))
    assert "rloo(" in label
    assert "kappa=0.25" in label


def test_a_plain_word_is_no_model():
    with pytest.raises(UsageError, match="is none of tiny, smollm2, a folder"):
        lacks(config("policy.model=llama"))


def test_a_model_of_the_hub_comes_later_or_is_cached(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    wanted = config("policy.model=Qwen/Qwen2.5-0.5B-Instruct")
    assert [lack.blocks for lack in lacks(wanted) if "Qwen" in lack.what] == [False]
    (tmp_path / "models--Qwen--Qwen2.5-0.5B-Instruct").mkdir()
    assert not [lack for lack in lacks(wanted) if "Qwen" in lack.what]


def test_a_model_in_a_folder(tmp_path: Path):
    wanted = config(f"policy.model={tmp_path}")
    assert [lack.blocks for lack in lacks(wanted) if str(tmp_path) in lack.what] == [True]
    (tmp_path / "config.json").write_text("{}")
    assert not [lack for lack in lacks(wanted) if str(tmp_path) in lack.what]
