from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from agentcredit.envs import worker as worker_module
from agentcredit.envs.wire import PROTOCOL, decode, encode
from agentcredit.envs.worker import Worker, load_module, source_digest
from tests.envs.corridor import TOY


@pytest.fixture
def worker() -> Worker:
    worker = Worker()
    assert "ok" in worker.answer({"id": 1, "op": "start", "factory": f"{TOY}:make", "options": {"markov": True}})
    return worker


def test_start_answers_with_protocol_spec_and_source() -> None:
    answer = Worker().answer({"id": 4, "op": "start", "factory": f"{TOY}:make", "options": {}})
    assert answer["id"] == 4
    assert answer["ok"]["protocol"] == PROTOCOL
    assert answer["ok"]["spec"]["splits"] == {"train": 6, "dev": 3}
    assert answer["ok"]["source"] == hashlib.sha256(TOY.read_bytes()).hexdigest()[:16]


def test_instances_are_apart(worker: Worker) -> None:
    for instance in (0, 1):
        worker.answer({"id": 2, "op": "reset", "instance": instance, "task": "train/2", "seed": 0})
    worker.answer({"id": 3, "op": "step", "instance": 1, "action": "right"})
    texts = [
        worker.answer({"id": 4, "op": "step", "instance": instance, "action": "left"})["ok"]["observation"]
        for instance in (0, 1)
    ]
    assert texts == ["You are at place 1.", "You are at place 2."]


def test_an_exception_is_an_answer_with_its_traceback(worker: Worker) -> None:
    worker.answer({"id": 2, "op": "reset", "instance": 0, "task": "train/0", "seed": 0})
    error = worker.answer({"id": 9, "op": "step", "instance": 0, "action": "raise!"})
    assert error["id"] == 9
    assert error["error"]["type"] == "RuntimeError"
    assert error["error"]["message"] == "the floor gave way"
    assert "_fault" in error["error"]["traceback"]
    assert "ok" in worker.answer({"id": 10, "op": "step", "instance": 0, "action": "left"})


@pytest.mark.parametrize("request_", [{"op": "fly"}, {"op": "step", "instance": 0, "wrong": 1}])
def test_a_request_that_makes_no_sense_is_answered(worker: Worker, request_: dict[str, object]) -> None:
    assert "error" in worker.answer({"id": 2, **request_})


def test_the_source_digest_covers_siblings_of_the_adapter(tmp_path: Path) -> None:
    (tmp_path / "house.py").write_text("x = 1\n")
    (tmp_path / "house_rooms.py").write_text("y = 1\n")
    (tmp_path / "other.py").write_text("z = 1\n")
    before = source_digest(load_module(str(tmp_path / "house.py")))
    (tmp_path / "other.py").write_text("z = 2\n")
    assert source_digest(load_module(str(tmp_path / "house.py"))) == before
    (tmp_path / "house_rooms.py").write_text("y = 2\n")
    assert source_digest(load_module(str(tmp_path / "house.py"))) != before


def test_any_text_survives_the_wire() -> None:
    text = "line\nbreak \u2028 é 漢 \ud800 \x00"
    line = encode({"id": 1, "action": text})
    assert line.count(b"\n") == 1
    assert decode(line)["action"] == text
    with pytest.raises(ValueError, match="not a JSON object"):
        decode(b"[1]")


def test_the_worker_imports_the_standard_library_alone() -> None:
    import subprocess
    import sys

    package = Path(worker_module.__file__).parent.parent
    code = (
        "import sys, types\npackage = types.ModuleType('agentcredit')\n"
        f"package.__path__ = [{str(package)!r}]\nsys.modules['agentcredit'] = package\n"
        "import agentcredit.envs.worker\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['__main__', 'agentcredit']"
