"""Questions to a language model behind any OpenAI-compatible endpoint (``POST {base_url}/chat/completions``).

For what a run asks another model about, such as an analyser of failures or the author of a reference graph. The key comes
from an environment variable at the moment of the call; it is kept nowhere, and an answer that repeats it is blacked out.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from agentcredit.errors import AgentCreditError, MissingError, RunFailed, UsageError

_LONGEST_PAUSE = 60.0
_LARGEST_ANSWER = 16 << 20  # bytes; more than any model writes


@dataclass(frozen=True)
class Chat:
    """A model behind an endpoint.

    Args:
        base_url: up to and without ``/chat/completions``, e.g. ``http://127.0.0.1:8000/v1``.
        model: the name that the endpoint knows.
        key_env: the environment variable that holds the key; empty: the endpoint needs none.
        timeout: seconds that one attempt may take.
        attempts: tries in all, when the endpoint is busy (429), broken (5xx) or does not answer.
        pause: seconds before the second try, doubled before each further one unless the endpoint says how long.
        sleep: waits; tests count instead.

    Raises:
        UsageError: the address is not one of the form above.
    """

    base_url: str
    model: str
    key_env: str = ""
    timeout: float = 120.0
    attempts: int = 5
    pause: float = 1.0
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        parts = urlsplit(self.base_url)
        if "@" in parts.netloc or parts.query:  # not repeated in the message: it may be a secret
            raise UsageError(
                "The address of an endpoint may not hold a password or a query; name a variable with the key."
            )
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.fragment:
            raise UsageError(
                f"'{self.base_url}' is not the address of an endpoint; give one such as http://127.0.0.1:8000/v1."
            )

    def ask(self, messages: Sequence[Mapping[str, str]], temperature: float = 0, max_tokens: int | None = None) -> str:
        """The model's answer to ``messages`` of roles and contents.

        Raises:
            MissingError: the key is not set or not accepted, or there is no such model or endpoint.
            RunFailed: no answer after all attempts, or one that cannot be read.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [dict(m) for m in messages],
            "temperature": temperature,
        }
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        key, said = self._key(), ""
        for attempt in range(1, self.attempts + 1):
            wait = self.pause * 2 ** (attempt - 1)
            try:
                return _content(self._post(body, key), self._place)
            except urllib.error.HTTPError as error:
                said = _hidden(_message(error), key)
                if error.code != 429 and error.code < 500:
                    raise self._refused(error.code, said) from None
                wait = _asked_to_wait(error, wait)
            except (OSError, http.client.HTTPException) as error:  # refused, reset, timed out, cut short
                said = str(getattr(error, "reason", error)) or type(error).__name__
            if attempt < self.attempts:
                self.sleep(min(wait, _LONGEST_PAUSE))
        raise RunFailed(f"{self._place} gave no answer in {self.attempts} attempts; the last one: {said}.")

    @property
    def _place(self) -> str:
        return f"The endpoint {self.base_url} (model '{self.model}')"

    def _key(self) -> str:
        key = os.environ.get(self.key_env, "").strip() if self.key_env else ""
        if self.key_env and not key:
            raise MissingError(f"The environment variable {self.key_env}, which names the endpoint's key, is not set.")
        return key

    def _post(self, body: Mapping[str, Any], key: str) -> bytes:
        url = self.base_url.rstrip("/").removesuffix("/chat/completions") + "/chat/completions"
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=self.timeout) as response:
            return response.read(_LARGEST_ANSWER)

    def _refused(self, code: int, said: str) -> AgentCreditError:
        if code in (401, 403):
            way_out = (
                f"the key in {self.key_env}" if self.key_env else "that the endpoint needs no key, or name its variable"
            )
            return MissingError(f"{self._place} refused the key ({code}: {said}); check {way_out}.")
        if code == 404:
            return MissingError(f"{self._place} was not found ({said}); check the address, which often ends in /v1.")
        return RunFailed(f"{self._place} refused the question ({code}: {said}).")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Another host must not get the key, and a redirected question would lose its body."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _content(answer: bytes, place: str) -> str:
    try:
        content = json.loads(answer)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError) as error:
        start = answer[:80].decode(errors="replace")
        raise RunFailed(f"{place} answered in another form than chat completions, beginning with {start!r}.") from error
    if not isinstance(content, str) or not content.strip():
        raise RunFailed(f"{place} gave an empty answer.")
    return content


def _message(error: urllib.error.HTTPError) -> str:
    """What the endpoint said, in one short line."""
    try:
        text = error.read(1 << 16).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        text = ""
    try:
        told = json.loads(text)["error"]
        text = told["message"] if isinstance(told, dict) else str(told)
    except (ValueError, LookupError, TypeError):
        pass
    line = " ".join(str(text).split())
    return line[:200].rstrip(".") or error.reason or "no reason given"


def _hidden(text: str, key: str) -> str:
    return text.replace(key, "<key>") if key else text


def _asked_to_wait(error: urllib.error.HTTPError, otherwise: float) -> float:
    try:
        return max(0.0, float(error.headers.get("Retry-After", otherwise)))
    except ValueError:  # a date
        return otherwise
