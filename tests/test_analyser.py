"""Who reads failures: a model behind a real HTTP endpoint, and the run's own start model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcredit.analyser import Remembered, StartModel, analyser_of
from agentcredit.config import MethodConfig, RunConfig
from agentcredit.errors import UsageError
from agentcredit.methods.registry import build
from agentcredit.plan import lacks
from agentcredit.policies.chat import Chat
from agentcredit.rundir import RunDir
from agentcredit.training.checkpoint import load_latest
from tests.policies.endpoint import Endpoint
from tests.training.toy_run import config, register_toy, run_training


class Reader(Endpoint):
    """Finds the first step of every episode wrong, each time in other words."""

    def reply(self) -> None:
        self.say(f'[{{"step": 1, "wrong": "no", "instead": "look around {len(self.asked)}"}}]')


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.close()


@pytest.fixture
def toy(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTCREDIT_HOME", str(tmp_path_factory.getbasetemp() / "home-of-loop-tests"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    register_toy(monkeypatch)


def test_an_answer_is_paid_once_and_the_key_is_kept_nowhere(reader: Reader, tmp_path: Path, monkeypatch: Any):
    monkeypatch.setenv("READER_KEY", "very-secret")
    chat = Chat(reader.url, "m", "READER_KEY")
    first = Remembered(chat, tmp_path / "kept")(["one", "two", "one"])
    assert first[0] == first[2] != first[1]
    assert len(reader.asked) == 2
    assert {body["messages"][0]["content"] for *_, body in reader.asked} == {"one", "two"}
    assert all((body["temperature"], body["model"]) == (0, "m") for *_, body in reader.asked)
    assert [headers["Authorization"] for _, headers, _ in reader.asked] == ["Bearer very-secret"] * 2
    again = Remembered(chat, tmp_path / "kept")(["two", "one", "three"])
    assert again[:2] == [first[1], first[0]]
    assert len(reader.asked) == 3
    assert Remembered(Chat(reader.url, "other"), tmp_path / "kept")(["one"]) != first[:1]  # another model is asked anew
    assert not any(b"very-secret" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_run_with_a_reader_resumes_on_the_answers_it_got(reader: Reader, tmp_path: Path, toy: None):
    def ahead(name: str) -> RunConfig:
        return config(
            tmp_path / name,
            train__steps=2,
            method={
                "name": "ahead",
                "params": {"detectors": ["llm"]},
                "analyser": reader.url,
                "analyser_model": "m",
            },
        )

    whole = run_training(ahead("a"))
    numbers = [record for record in whole.metrics() if "ahead/analyser_calls" in record]
    asked = sum(record["ahead/analyser_calls"] for record in numbers)
    assert asked > 0
    assert sum(record["ahead/analyser_parse_fail"] for record in numbers) == 0
    assert {record["ahead/hint_coverage"] for record in numbers if record["ahead/analyser_calls"]} == {1.0}
    # The last step is lost and played again: the endpoint, which would say something else, is not asked.
    before, weights = len(reader.asked), _weights(whole)
    _forget_last_step(whole)
    again = run_training(ahead("a"))
    assert len(reader.asked) == before
    assert _weights(again) == weights


def test_the_tiny_start_model_is_asked_and_cannot_answer(tmp_path: Path, toy: None):
    method = {"name": "ahead", "params": {"detectors": ["llm"]}, "analyser": "start"}
    run = run_training(config(tmp_path, train__steps=1, method=method))
    (record,) = run.metrics()[1:]
    assert (
        record["ahead/analyser_calls"] == 2 * record["ahead/analyser_parse_fail"] > 0
    )  # each once more, then given up
    assert record["ahead/error_steps_per_failed"] == 0


def test_which_analyser(tmp_path: Path):
    def of(**method: str) -> Any:
        return analyser_of(RunConfig(method=MethodConfig(**method)), tmp_path, tmp_path)  # type: ignore[arg-type]

    assert of() is None
    assert isinstance(of(analyser="start"), StartModel)
    endpoint = of(analyser="http://127.0.0.1:1/v1", analyser_model="m", analyser_key_env="K")
    assert (endpoint.chat.base_url, endpoint.chat.model, endpoint.chat.key_env) == ("http://127.0.0.1:1/v1", "m", "K")


def test_a_wrong_analyser_is_told_before_anything_is_loaded(monkeypatch: pytest.MonkeyPatch):
    asks: dict[str, Any] = {"name": "ahead", "params": {"detectors": ["rules", "llm"]}}
    with pytest.raises(UsageError, match=r"method\.analyser is empty: set it"):
        build(MethodConfig(**asks))
    with pytest.raises(UsageError, match="'strat': write start, or the address"):
        build(MethodConfig(**asks, analyser="strat"))
    with pytest.raises(UsageError, match=r"name its model in method\.analyser_model"):
        build(MethodConfig(**asks, analyser="http://127.0.0.1:1/v1"))
    with pytest.raises(UsageError, match="not the address of an endpoint"):
        build(MethodConfig(**asks, analyser="ftp://somewhere"))
    build(MethodConfig(**asks, analyser="start"))
    build(MethodConfig(name="ahead", params={"detectors": ["llm"], "hints": False}))  # no hint, no question
    monkeypatch.delenv("READER_KEY", raising=False)
    keyed = RunConfig(method=MethodConfig(**asks, analyser="start", analyser_key_env="READER_KEY"))
    assert any("set READER_KEY" in lack.what and lack.blocks for lack in lacks(keyed))
    monkeypatch.setenv("READER_KEY", "k")
    assert not any("READER_KEY" in lack.what for lack in lacks(keyed))


def _weights(run: RunDir) -> dict[str, bytes]:
    checkpoint = load_latest(run.checkpoints)
    assert checkpoint is not None
    return {name: tensor.numpy().tobytes() for name, tensor in checkpoint.model_state.items()}


def _forget_last_step(run: RunDir) -> None:
    import shutil

    shutil.rmtree(run.checkpoints / "step-000002")
