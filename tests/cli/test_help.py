"""Help is quick and light, and says what the README says."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentcredit.cli.main import COMMANDS, load
from tests.cli.command import agentcredit

HEAVY = {"torch", "mlflow", "transformers", "pandas", "numpy", "optuna", "scipy"}
MODULES = """
import sys
from agentcredit.cli.main import run
code = run(sys.argv[1:])
print("LOADED", *sorted({name.partition(".")[0] for name in sys.modules}))
sys.exit(code)
"""


def loaded(*arguments: str, cwd: Path) -> set[str]:
    """Top-level modules that a command has loaded by its end."""
    done = subprocess.run(
        [sys.executable, "-c", MODULES, *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *[[name, "--help"] for name in COMMANDS]])
def test_help_loads_nothing_heavy(arguments: list[str], tmp_path: Path):
    assert loaded(*arguments, cwd=tmp_path).isdisjoint(HEAVY)


@pytest.mark.parametrize("arguments", [["train", "--dry-run"], ["methods", "list"], ["runs", "list"]])
def test_commands_that_only_tell_load_no_engine(arguments: list[str], tmp_path: Path):
    assert loaded(*arguments, cwd=tmp_path).isdisjoint({"torch", "mlflow", "transformers", "pandas", "optuna"})


def test_help_takes_less_than_a_third_of_a_second(tmp_path: Path):
    """In processor seconds, of the best of three: the machine may be busy with other tests."""
    code = (
        "import resource, subprocess, sys; "
        "subprocess.run([sys.executable, '-m', 'agentcredit.cli.main', '--help'], stdout=subprocess.DEVNULL, check=True); "
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime)"
    )
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        seconds.append(float(done.stdout))
        print(f"--help: {seconds[-1]:.3f} processor seconds, {time.monotonic() - began:.3f} on the clock")
    assert min(seconds) < 0.3


def test_every_command_is_listed_and_explains_itself(tmp_path: Path):
    shown = agentcredit("--help", cwd=tmp_path).stdout
    width = max(map(len, COMMANDS))
    for name, (_, line) in COMMANDS.items():
        assert f"{name:<{width}}  {line}" in shown
        assert len(load(name).help.strip()) > 30, name


def test_without_a_command_the_help_is_shown(tmp_path: Path):
    bare, asked = agentcredit(cwd=tmp_path), agentcredit("--help", cwd=tmp_path)
    assert (bare.returncode, bare.stdout) == (0, asked.stdout)
    group = agentcredit("runs", cwd=tmp_path)
    assert group.returncode == 2
    assert "verify" in group.stderr


def test_exit_codes_are_documented_alike_in_help_and_readme(tmp_path: Path):
    shown = agentcredit("--help", cwd=tmp_path).stdout
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    for code in range(6):
        assert f"\n    {code}  " in shown
        assert f"| {code} |" in readme
