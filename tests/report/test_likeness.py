import pytest

from agentcredit.config import RunConfig
from agentcredit.config_toml import to_toml
from agentcredit.errors import ComparisonRefused
from agentcredit.report.collect import collect
from agentcredit.report.likeness import OF_MODELS, OF_TASKS, check_alike
from tests.report.build import evaluation, write_run

OTHER = {
    "panel_sha256": "cd" * 32,
    "partial": True,
    "data_source": "official games",
    "official": True,
    "env_version": "2",
    "package": "alfworld 0.5.0",
    "max_turns": 30,
    "policy": "vllm",
    "temperature": 0.0,
    "repeats": 2,
    "comparison": "c1",
    "warm_start": "w1",
}


@pytest.mark.parametrize("field", [*OF_TASKS, *OF_MODELS])
def test_each_field_is_refused_with_both_runs_named(field):
    one, other = evaluation("grpo", "10"), evaluation("proas", "11", **{field: OTHER[field]})
    with pytest.raises(ComparisonRefused) as error:
        check_alike([one, other])
    sentence = str(error.value)
    assert error.value.exit_code == 5
    assert (OF_TASKS | OF_MODELS)[field] in sentence
    assert one.header.run in sentence
    assert other.header.run in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("field", OF_MODELS)
def test_a_random_policy_need_not_share_what_only_models_have(field):
    changes = {**{field: OTHER[field]}, "policy": "random"}
    check_alike([evaluation("grpo", "10"), evaluation("grpo", "01", **changes)])


def test_method_and_seed_may_differ():
    check_alike([evaluation("grpo", "10"), evaluation("proas", "11", seed=1)])


def test_the_setting_that_differs_is_named_from_the_runs_configurations(tmp_path):
    for method, steps in (("grpo", 30), ("proas", 60)):
        config = RunConfig.model_validate(
            {"method": {"name": method}, "train": {"steps": steps}, "env": {"processes": steps}}
        )
        path = write_run(tmp_path, method, "10", comparison=config.comparison())
        (path.parent.parent / "config.toml").write_text(to_toml(config))
    with pytest.raises(ComparisonRefused, match=r"train\.steps = 30 in run .*grpo.* and train\.steps = 60 in run"):
        check_alike(collect(tmp_path))
