"""A real HTTP server in the place of a language model's endpoint: what it was asked, and what it is to answer."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Endpoint:
    """Answers requests with what :meth:`say`, :meth:`fail` and :meth:`raw` have queued; else with what :meth:`reply` makes."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                endpoint.asked.append((self.path, dict(self.headers), body))
                if not endpoint.answers:
                    endpoint.reply()
                code, headers, answer = endpoint.answers.pop(0)
                self.send_response(code)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def reply(self) -> None:
        """Queues an answer to a request that nothing was queued for."""
        raise AssertionError("asked more often than answers were queued")

    def say(self, text: str | None) -> None:
        body = {"choices": [{"message": {"role": "assistant", "content": text}}]}
        self.answers.append((200, {"Content-Type": "application/json"}, json.dumps(body).encode()))

    def fail(self, code: int, message: str, **headers: str) -> None:
        self.answers.append((code, headers, json.dumps({"error": {"message": message}}).encode()))

    def raw(self, code: int, body: bytes, **headers: str) -> None:
        self.answers.append((code, headers, body))

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
