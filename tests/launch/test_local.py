from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from agentcredit.launch.local import Command, run_all


def python(name: str, code: str) -> Command:
    return Command(name, (sys.executable, "-c", code))


def test_all_commands_run_and_their_ends_come_in_order():
    heard: list[tuple[str, str]] = []
    commands = [
        python("slow", "import sys, time; time.sleep(0.5); sys.stderr.write('done\\n')"),
        python("bad", "import sys; sys.stderr.write('Error: no.\\n'); sys.exit(3)"),
        python("last", "print('not heard: stdout')"),
    ]
    ended = run_all(commands, 2, lambda command, line: heard.append((command.name, line)))
    assert [(e.command.name, e.code, e.last_line) for e in ended] == [
        ("slow", 0, "done"),
        ("bad", 3, "Error: no."),
        ("last", 0, ""),
    ]
    assert sorted(heard) == [("bad", "Error: no."), ("slow", "done")]


def test_no_more_than_jobs_run_at_a_time(tmp_path: Path):
    code = (
        "import os, sys, time; from pathlib import Path; here = Path(sys.argv[1]); mine = here / str(os.getpid());"
        "mine.touch(); sys.stderr.write(f'{len(list(here.iterdir()))}\\n'); time.sleep(0.3); mine.unlink()"
    )
    counts: list[int] = []
    commands = [Command(f"c{k}", (sys.executable, "-c", code, str(tmp_path))) for k in range(5)]
    run_all(commands, 2, lambda command, line: counts.append(int(line)))
    assert len(counts) == 5
    assert max(counts) == 2


def test_arithmetic_gets_one_thread_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    code = "import os, sys; sys.stderr.write(os.environ['OMP_NUM_THREADS'])"
    assert run_all([python("c", code)], 1, lambda *_: None)[0].last_line == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert run_all([python("c", code)], 1, lambda *_: None)[0].last_line == "4"


def test_an_interrupt_is_passed_on_once_and_waited_for(tmp_path: Path):
    child = (
        "import signal, sys, time\n"
        "try:\n    sys.stderr.write('up\\n'); sys.stderr.flush(); time.sleep(60)\n"
        f"except KeyboardInterrupt:\n    time.sleep(0.3); open({str(tmp_path / 'orderly')!r}, 'w').close()\n"
    )
    program = (
        "import sys\nfrom agentcredit.launch.local import Command, run_all\n"
        f"commands = [Command(n, (sys.executable, '-c', {child!r})) for n in 'ab']\n"
        "try:\n    run_all(commands, 1, lambda c, line: print(line, flush=True))\n"
        "except KeyboardInterrupt:\n    print('interrupted', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "interrupted\n"
    assert time.monotonic() - began < 20  # the second command was never started
    assert (tmp_path / "orderly").exists()
