from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from agentcredit.errors import AgentCreditError, MissingError, RunFailed, UsageError
from agentcredit.policies.chat import Chat
from tests.policies.endpoint import Endpoint

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.close()


def chat(endpoint: Endpoint, waited: list[float] | None = None, **options: Any) -> Chat:
    return Chat(endpoint.url, "m", sleep=(waited if waited is not None else []).append, **options)


def test_asks_in_the_standard_form(endpoint: Endpoint) -> None:
    endpoint.say("good day")
    assert chat(endpoint).ask(HELLO) == "good day"
    path, headers, body = endpoint.asked[0]
    assert path == "/v1/chat/completions"
    assert body == {"model": "m", "messages": HELLO, "temperature": 0}
    assert "Authorization" not in headers


def test_an_address_with_the_whole_path_is_the_same(endpoint: Endpoint) -> None:
    endpoint.say("yes")
    assert Chat(endpoint.url + "/chat/completions/", "m").ask(HELLO, temperature=0.5, max_tokens=7) == "yes"
    path, _, body = endpoint.asked[0]
    assert path == "/v1/chat/completions"
    assert (body["temperature"], body["max_tokens"]) == (0.5, 7)


def test_the_key_comes_from_the_environment_and_is_never_shown(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-secret")
    endpoint.fail(401, "Incorrect API key provided: sk-secret")
    client = chat(endpoint, key_env="SOME_KEY")
    with pytest.raises(MissingError, match=r"refused the key .*check the key in SOME_KEY") as failure:
        client.ask(HELLO)
    assert endpoint.asked[0][1]["Authorization"] == "Bearer sk-secret"
    assert "sk-secret" not in str(failure.value)
    assert "sk-secret" not in repr(client)


def test_a_key_that_is_not_set_is_not_asked_for(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(MissingError, match="SOME_KEY"):
        chat(endpoint, key_env="SOME_KEY").ask(HELLO)
    assert endpoint.asked == []


def test_a_busy_endpoint_is_asked_again(endpoint: Endpoint) -> None:
    endpoint.fail(429, "slow down", **{"Retry-After": "7"})
    endpoint.fail(503, "loading")
    endpoint.fail(500, "oops", **{"Retry-After": "9999"})
    endpoint.say("here")
    waited: list[float] = []
    assert chat(endpoint, waited).ask(HELLO) == "here"
    # As long as it was asked to; then doubled from one second; then no longer than a minute.
    assert waited == [7.0, 2.0, 60.0]


def test_it_gives_up_with_the_last_reason(endpoint: Endpoint) -> None:
    for _ in range(3):
        endpoint.fail(503, "model is loading.")
    waited: list[float] = []
    with pytest.raises(RunFailed, match=r"no answer in 3 attempts; the last one: model is loading\."):
        chat(endpoint, waited, attempts=3).ask(HELLO)
    assert waited == [1.0, 2.0]
    assert len(endpoint.asked) == 3


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [(404, MissingError, "often ends in /v1"), (400, RunFailed, "refused the question"), (403, MissingError, "key")],
)
def test_a_refusal_is_not_asked_again(endpoint: Endpoint, code: int, kind: type[AgentCreditError], words: str) -> None:
    endpoint.fail(code, "no")
    with pytest.raises(kind, match=words):
        chat(endpoint).ask(HELLO)
    assert len(endpoint.asked) == 1


def test_a_redirect_is_not_followed(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-secret")
    endpoint.raw(302, b"", Location=endpoint.url + "/elsewhere")
    with pytest.raises(RunFailed, match="302"):
        chat(endpoint, key_env="SOME_KEY").ask(HELLO)
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize("answer", [b"<html>sign in</html>", b"{}", b'{"choices": []}', b"[1]"])
def test_another_form_of_answer_is_told(endpoint: Endpoint, answer: bytes) -> None:
    endpoint.raw(200, answer)
    with pytest.raises(RunFailed, match="another form"):
        chat(endpoint).ask(HELLO)


@pytest.mark.parametrize("nothing", [None, "", " \n"])
def test_an_empty_answer_is_told(endpoint: Endpoint, nothing: str | None) -> None:
    endpoint.say(nothing)
    with pytest.raises(RunFailed, match="empty answer"):
        chat(endpoint).ask(HELLO)


def test_nobody_there(endpoint: Endpoint) -> None:
    endpoint.close()
    waited: list[float] = []
    with pytest.raises(RunFailed, match="no answer in 2 attempts"):
        chat(endpoint, waited, attempts=2).ask(HELLO)
    assert waited == [1.0]


def test_an_attempt_has_a_time_limit() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = Chat(f"http://127.0.0.1:{silent.getsockname()[1]}/v1", "m", timeout=0.1, attempts=1)
        with pytest.raises(RunFailed, match="timed out"):
            client.ask(HELLO)


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "file:///etc/passwd", "", "http:///v1"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(UsageError, match="not the address of an endpoint"):
        Chat(url, "m")


@pytest.mark.parametrize("url", ["https://user:hunter2@host/v1", "https://host/v1?key=hunter2"])
def test_a_secret_in_the_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="may not hold a password") as failure:
        Chat(url, "m")
    assert "hunter2" not in str(failure.value)
