"""Precedence, notation, and the sentences for what is wrong."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcredit.config import RunConfig
from agentcredit.config_sources import resolve
from agentcredit.config_toml import emit_value, to_toml
from agentcredit.errors import MissingError, UsageError


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_each_source_beats_the_ones_before_it(tmp_path: Path):
    a = write(tmp_path / "a.toml", "[train]\nsteps = 1\ngroup_size = 2\nepochs = 3\nminibatches = 4\n")
    b = write(tmp_path / "b.toml", "[train]\ngroup_size = 12\nepochs = 13\nminibatches = 14\n")
    resolved = resolve(
        files=[a, b],
        environ={"AGENTCREDIT_TRAIN__EPOCHS": "23", "AGENTCREDIT_TRAIN__MINIBATCHES": "24", "PATH": "/bin"},
        sets=["train.minibatches=34"],
        flags={"seed": (5, "--seed")},
    )
    train = resolved.config.train
    assert (train.steps, train.group_size, train.epochs, train.minibatches) == (1, 12, 23, 34)
    assert resolved.config.seed == 5
    assert resolved.origin("train.steps") == str(a)
    assert resolved.origin("train.group_size") == str(b)
    assert resolved.origin("train.epochs") == "AGENTCREDIT_TRAIN__EPOCHS"
    assert resolved.origin("train.minibatches") == "--set train.minibatches"
    assert resolved.origin("loss.kl") == "default"


def test_presets_follow_the_environment_wherever_it_is_named_and_yield_to_a_file(tmp_path: Path):
    assert resolve().config.env.max_turns == 24
    assert resolve(sets=["env.size=full"]).config.env.max_turns == 50
    assert resolve(sets=["env.official=true"]).config.env.max_turns == 50
    science = resolve(environ={"AGENTCREDIT_ENV__NAME": "scienceworld"})
    assert (science.config.env.max_turns, science.config.env.dev_split) == (30, "dev")
    assert science.origin("env.max_turns") == "default of scienceworld"
    file = write(tmp_path / "a.toml", "[env]\nmax_turns = 7\n")
    assert resolve([file], flags={"env.name": ("scienceworld", "--env")}).config.env.max_turns == 7


def test_a_large_model_gets_the_published_settings():
    config = resolve(sets=["policy.model=Qwen/Qwen2.5-7B-Instruct"]).config
    assert (config.policy.max_new_tokens, config.optim.lr, config.loss.kl) == (512, 1e-6, 0.01)
    assert not config.policy.restrict_actions


@pytest.mark.parametrize(
    ("item", "key", "value"),
    [
        ("env.name=scienceworld", "name", "scienceworld"),
        ('env.name="scienceworld"', "name", "scienceworld"),
        ("env.dev_split=123", "dev_split", "123"),
        ("env.dev_split=true", "dev_split", "true"),
        ("env.cache=false", "cache", False),
        ('env.task_types=["a b", "c"]', "task_types", ("a b", "c")),
        ("env.call_timeout=1e1", "call_timeout", 10.0),
        ("env.max_turns = 3", "max_turns", 3),
    ],
)
def test_the_notation_of_set(item: str, key: str, value):
    assert getattr(resolve(sets=[item]).config.env, key) == value


def test_parameters_of_methods_are_free_and_keep_their_case():
    resolved = resolve(sets=["method.params.K=[1, 2]", "method.params={lambda = 0.5}", "method.params.mode=edge"])
    assert resolved.config.method.params == {"K": [1, 2], "lambda": 0.5, "mode": "edge"}


WRONG = [
    ("env.nam=x", "There is no option 'env.nam' (--set env.nam). Did you mean 'env.name'?"),
    ("lr=1", "There is no option 'lr' (--set lr). Did you mean 'tiny.lr' or 'optim.lr'?"),
    ("env=x", "'env' (--set env) is a section and takes no value of its own; set its keys, e.g. env.name."),
    ("method.params=3", "method.params = 3 (--set method.params) is not allowed: it must be a table"),
    (
        "train.steps=many",
        'train.steps = "many" (--set train.steps) is not allowed: it must be a whole number at least 0',
    ),
    ("train.steps=true", "train.steps = true (--set train.steps) is not allowed: it must be a whole number"),
    ("train.steps=-1", "it must be a whole number at least 0. Training steps."),
    ("env.max_failure_share=2", "it must be a number at least 0 and at most 1"),
    ("env.size=big", 'env.size = "big" (--set env.size) is not allowed: it must be one of small, full'),
    ("optim.betas=[1]", "it must be a list of 2 numbers"),
    ("env.cache=3", "it must be true or false"),
    ("compare.seeds=[1.5]", "it must be a list of whole numbers"),
    (
        'compare.arms=[{method = "grpo", bas = "x"}]',
        "it must be a list of tables with the keys method, base, params (0.bas: Extra inputs are not permitted)",
    ),
    ("env.name", "--set env.name is not of the form key=value"),
    ("=3", "--set =3 is not of the form key=value"),
]


@pytest.mark.parametrize(("item", "sentence"), WRONG)
def test_wrong_values_are_one_sentence_with_their_source(item: str, sentence: str):
    with pytest.raises(UsageError) as caught:
        resolve(sets=[item])
    message = str(caught.value)
    assert sentence in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[envv]\nname = 'x'\n", "There is no section 'envv' in {path}. Did you mean 'env'?"),
        ("[env]\nnaem = 'x'\n", "There is no option 'env.naem' in {path}. Did you mean 'env.name'?"),
        ("[env.name]\nx = 1\n", "env.name = {{x = 1}} ({path}) is not allowed: it must be a text"),
        ("steps = 3\n", "There is no option 'steps' in {path}. Did you mean 'train.steps'?"),
        ("env = 3\n", "'env' in {path} is a section"),
        ("[env]\nmax_turns = 'x'\n", 'env.max_turns = "x" ({path}) is not allowed'),
        ("[env\n", "{path} is not valid TOML"),
    ],
)
def test_wrong_files_are_one_sentence_that_names_the_file(tmp_path: Path, text: str, sentence: str):
    path = write(tmp_path / "x.toml", text)
    with pytest.raises(UsageError) as caught:
        resolve([path])
    assert str(caught.value).startswith(sentence.format(path=path))


def test_a_missing_file_is_missing(tmp_path: Path):
    with pytest.raises(MissingError, match=r"none\.toml does not exist"):
        resolve([tmp_path / "none.toml"])
    with pytest.raises(MissingError, match="Cannot read the configuration file"):
        resolve([tmp_path])


def test_variables():
    reserved = {"AGENTCREDIT_HOME": "x", "AGENTCREDIT_DEBUG": "1", "AGENTCREDIT_ALFWORLD_PYTHON": "x"}
    assert resolve(environ=reserved) == resolve()
    assert resolve(environ={"AGENTCREDIT_SEED": "3"}).config.seed == 3
    with pytest.raises(UsageError, match=r"AGENTCREDIT_ENV__NAM sets no option\. Did you mean 'AGENTCREDIT_ENV__NAME'"):
        resolve(environ={"AGENTCREDIT_ENV__NAM": "x"})
    with pytest.raises(UsageError, match=r"seed = \"x\" \(AGENTCREDIT_SEED\)"):
        resolve(environ={"AGENTCREDIT_SEED": "x"})


def test_the_resolved_file_gives_the_same_configuration_again(tmp_path: Path):
    first = resolve(
        sets=[
            'method.params={kappa = 0.5, "odd key" = [1, {a = "b"}]}',
            'name=a "quoted" \\ name',
            "method.name=proas",
        ],
        flags={"env.name": ("scienceworld", "--env")},
    )
    text = to_toml(first.config, first.origins)
    assert 'name = "scienceworld"  # --env' in text
    assert "max_turns = 30  # default of scienceworld" in text
    assert "kl = 0.0\n" in text
    again = resolve([write(tmp_path / "resolved.toml", text)])
    assert again.config == first.config
    assert to_toml(RunConfig()).startswith("seed = 0\n")


PLAIN = st.recursive(
    st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(PLAIN)
def test_any_plain_value_survives_toml(value):
    assert tomllib.loads(f"x = {emit_value(value)}") == {"x": value}
