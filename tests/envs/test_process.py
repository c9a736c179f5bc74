from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from agentcredit.envs.process import RemoteError, WorkerCommand, WorkerLost, WorkerProcess
from tests.envs.corridor import TOY, command


def impostor(tmp_path: Path, body: str) -> WorkerCommand:
    """A worker that speaks for itself: ``body`` sees each request's id as ``n`` and writes with ``say``."""
    path = tmp_path / "impostor"
    path.write_text(
        f"#!{sys.executable}\nimport json, os, sys, time\n"
        "def say(text): os.write(1, (text + '\\n').encode())\n"
        "for line in sys.stdin:\n    n = json.loads(line)['id']\n" + textwrap.indent(textwrap.dedent(body), "    ")
    )
    path.chmod(0o755)
    return WorkerCommand("impostor", str(path), "x:y")


@pytest.fixture
def toy(tmp_path: Path):
    process = WorkerProcess(command(), 0, tmp_path / "logs" / "workers.log")
    process.start(20)
    yield process
    process.close()


def test_prints_of_a_library_reach_the_log_and_not_the_pipe(toy: WorkerProcess, tmp_path: Path) -> None:
    toy.call("reset", 20, instance=0, task="train/0", seed=0)
    toy.close()
    assert (tmp_path / "logs" / "workers.log").read_text() == "[toy-0] a library's chatter on stdout\n"


def test_an_exception_leaves_the_worker_alive(toy: WorkerProcess) -> None:
    toy.call("reset", 20, instance=0, task="train/0", seed=0)
    with pytest.raises(RemoteError, match="RuntimeError: the floor gave way") as caught:
        toy.call("step", 20, instance=0, action="raise!")
    assert "Traceback" in caught.value.detail
    assert toy.call("step", 20, instance=0, action="right")["observation"].startswith("You are at place 1.")


def test_a_death_is_told_with_its_exit_code_and_last_words(toy: WorkerProcess) -> None:
    toy.call("reset", 20, instance=0, task="train/0", seed=0)
    with pytest.raises(WorkerLost, match=r"worker toy-0 died in step \(exit code 9\)") as caught:
        toy.call("step", 20, instance=0, action="die!")
    assert caught.value.kind == "env_error"
    assert caught.value.detail.endswith("about to die")


def test_a_killed_worker_is_told_with_its_signal(toy: WorkerProcess) -> None:
    os.kill(toy.pid, signal.SIGKILL)
    with pytest.raises(WorkerLost, match="SIGKILL"):
        toy.call("tasks", 20, instance=0, split="train")


def test_a_hang_ends_at_the_limit_and_the_worker_with_it(toy: WorkerProcess) -> None:
    toy.call("reset", 20, instance=0, task="train/0", seed=0)
    began = time.monotonic()
    with pytest.raises(WorkerLost, match=r"did not answer step within 0.3 s") as caught:
        toy.call("step", 0.3, instance=0, action="hang!")
    assert 0.3 <= time.monotonic() - began < 3
    assert caught.value.kind == "env_timeout"
    assert not psutil.pid_exists(toy.pid)


def test_a_late_answer_is_dropped_by_its_id(tmp_path: Path) -> None:
    process = WorkerProcess(
        impostor(
            tmp_path, """if n > 1: say(json.dumps({"id": n - 1, "ok": "late"}))\nsay(json.dumps({"id": n, "ok": n}))"""
        ),
        0,
        None,
    )
    assert [process.call("step", 10) for _ in range(3)] == [1, 2, 3]
    process.close()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("say('Welcome to the simulator')", "printed garbage on its pipe in step: b'Welcome to the simulator'"),
        ("say('[1, 2]')", "printed garbage"),
        ("say('{}')", "printed garbage"),
        ("say(json.dumps({'id': n + 1, 'ok': 1}))", "answered request 2 where 1 was asked"),
        ("say(json.dumps({'id': str(n), 'ok': 1}))", "answered request '1' where 1 was asked"),
        ("sys.exit(3)", r"died in step \(exit code 3\)"),
        ("os.close(1); time.sleep(60)", "closed its pipe in step"),
    ],
)
def test_garbage_ends_the_worker(tmp_path: Path, body: str, message: str) -> None:
    process = WorkerProcess(impostor(tmp_path, body), 0, None)
    with pytest.raises(WorkerLost, match=message):
        process.call("step", 10)
    assert not psutil.pid_exists(process.pid)


def test_another_version_of_the_protocol_is_refused(tmp_path: Path) -> None:
    process = WorkerProcess(impostor(tmp_path, "say(json.dumps({'id': n, 'ok': {'protocol': 99}}))"), 0, None)
    with pytest.raises(WorkerLost, match="speaks protocol 99, not 1"):
        process.start(10)


def test_closing_ends_what_the_environment_started(tmp_path: Path) -> None:
    process = WorkerProcess(command(child=987), 0, None)
    process.start(20)
    group = _group(process.pid)
    assert any("sleep" in name for name in group)
    process.close()
    process.close()
    assert _wait_for_none(process.pid)


def test_a_parent_killed_with_9_leaves_nothing_behind(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, time\n"
        "from tests.envs.corridor import command\n"
        "from agentcredit.envs.process import WorkerProcess\n"
        "busy, idle = (WorkerProcess(command(child=986), n, None) for n in range(2))\n"
        "for worker in (busy, idle): worker.start(20)\n"
        "busy.call('reset', 20, instance=0, task='train/0', seed=0)\n"
        "print(busy.pid, idle.pid, flush=True)\n"
        "busy.call('step', 100, instance=0, action='hang!')\n"
    )
    root = TOY.parents[2]
    parent = subprocess.Popen(
        [sys.executable, program], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(root)}
    )
    assert parent.stdout is not None
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert all(len(_group(pid)) >= 3 for pid in workers)  # the worker, its guard, and the simulator's child
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert all(_wait_for_none(pid, seconds=5) for pid in workers)


def _group(leader: int) -> list[str]:
    names = []
    for process in psutil.process_iter(["pid", "name", "status"]):
        try:
            if os.getpgid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                names.append(process.name())
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return names


def _wait_for_none(leader: int, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while _group(leader):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
