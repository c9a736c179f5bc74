"""Every wrong use gives one clear sentence and its documented exit code, never a traceback."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from agentcredit.config_sources import resolve
from agentcredit.rundir import RunDir
from tests.cli.command import agentcredit, environment, refused


def make_run(folder: Path, name: str, **sets: object) -> RunDir:
    """A run's folder as an attempt leaves it that ended before its first step."""
    config = resolve(sets=[f"{key}={value}" for key, value in sets.items()]).config
    run = RunDir.open(config.model_copy(update={"out": folder / "runs", "name": name}))
    run.finish("failed")
    return run


USAGE = [
    ("train --method proax", "Unknown method 'proax'. Did you mean 'proas'?"),
    ("train --method grpo+rloo", "several group estimators (grpo and rloo)"),
    ("train --method proas --base proas", "Base 'proas' is not a group estimator"),
    (
        "train --method proas --set method.params.kapa=1",
        "Unknown parameter 'kapa' of method grpo+proas. Did you mean 'kappa'?",
    ),
    ("train --method proas --set method.params.kappa=-1", "Method proas: parameter 'kappa' is -1"),
    ("train --env alfword", "There is no environment 'alfword'. Did you mean 'alfworld'?"),
    ("train --set env.nmae=alfworld", "There is no option 'env.nmae' (--set env.nmae). Did you mean 'env.name'?"),
    ("train --set train.steps", "--set train.steps is not of the form key=value"),
    (
        "train --set train.steps=many",
        'train.steps = "many" (--set train.steps) is not allowed: it must be a whole number',
    ),
    ("train --steps -1", "train.steps = -1 (--steps) is not allowed: it must be a whole number at least 0"),
    ("train --steps many", "Invalid value for '--steps'"),
    ("train --modle tiny", "No such option: --modle"),
    ("train --model llama", "policy.model = 'llama' is none of tiny, smollm2, a folder (./llama), or a hub id"),
    ("train --name a/b", "'a/b' cannot name a run"),
    ("train --fresh --fork x", "--fork continues a run and --fresh starts over: give one of them"),
    ("tran", "No such command 'tran'. Did you mean 'train'?"),
    ("methods show grop", "Unknown method 'grop'. Did you mean 'grpo'?"),
    ("runs ui --port 99999", "Invalid value for '--port'"),
    ("eval x --policy radnom", "There is no policy 'radnom' (--policy). Did you mean 'random'?"),
    ("eval x --policy random --checkpoint 3", "--policy random has no checkpoint"),
    ("eval", "Missing argument 'RUN'"),
    ("eval there --temperature -1", "Invalid value for '--temperature'"),
]


@pytest.mark.parametrize(("line", "sentence"), USAGE)
def test_wrong_words(line: str, sentence: str, tmp_path: Path):
    assert sentence in refused(agentcredit(*line.split(), cwd=tmp_path), 2)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[env]\nnaem = 'x'\n", "There is no option 'env.naem' in x.toml. Did you mean 'env.name'?"),
        ("[train]\nsteps = 'x'\n", 'train.steps = "x" (x.toml) is not allowed'),
        ("[env\n", "x.toml is not valid TOML"),
    ],
)
def test_wrong_files(text: str, sentence: str, tmp_path: Path):
    (tmp_path / "x.toml").write_text(text)
    assert sentence in refused(agentcredit("train", "-c", "x.toml", cwd=tmp_path), 2)


def test_wrong_variables(tmp_path: Path):
    result = agentcredit("train", cwd=tmp_path, AGENTCREDIT_OPTIM__RL="1")
    assert "The variable AGENTCREDIT_OPTIM__RL sets no option. Did you mean 'AGENTCREDIT_OPTIM__LR'?" in refused(
        result, 2
    )


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("train -c none.toml", "The configuration file none.toml does not exist"),
        ("train --model ./none", "there is no such folder with a config.json"),
        ("train --set env.official=true", "The official data of alfworld, expected in "),
        ("eval none", "There is no run in runs"),
        ("runs show none", "There is no run in runs"),
        ("runs ui", "There is no MLflow store at"),
        ("report", "runs"),
    ],
)
def test_missing_things(line: str, sentence: str, tmp_path: Path):
    assert sentence in refused(agentcredit(*line.split(), cwd=tmp_path, ALFWORLD_DATA=""), 3)


def test_an_interpreter_that_is_not_there(tmp_path: Path):
    result = agentcredit("train", cwd=tmp_path, AGENTCREDIT_ALFWORLD_PYTHON="/nowhere/python")
    assert "AGENTCREDIT_ALFWORLD_PYTHON names /nowhere/python, which is not an executable file" in refused(result, 3)


def test_an_unknown_run_beside_known_ones(tmp_path: Path):
    make_run(tmp_path, "proas-1")
    assert "There is no run 'praos-1' in runs. Did you mean 'proas-1'?" in refused(
        agentcredit("eval", "praos-1", cwd=tmp_path), 2
    )


@pytest.mark.alfworld
def test_an_unknown_split(tmp_path: Path):
    from agentcredit.envs import registry
    from agentcredit.envs.setup import is_ready

    if not is_ready("alfworld"):
        pytest.skip("ALFWorld is not set up")
    make_run(tmp_path, "x")
    python = str(registry.interpreter("alfworld"))
    result = agentcredit("eval", "x", "--split", "vaild_seen", cwd=tmp_path, AGENTCREDIT_ALFWORLD_PYTHON=python)
    assert "valid_seen" in refused(result, 2)


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_corrupt_checkpoint(tmp_path: Path, damage: str):
    import torch

    from agentcredit.training.checkpoint import save

    run = make_run(tmp_path, "x")
    folder = save(run.checkpoints, 5, {"w": torch.zeros(4)}, {"m": torch.zeros(4)}, {})
    weights = folder / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-3])
    else:
        (folder / "manifest.json").unlink()
    sentence = refused(agentcredit("eval", "x", "--checkpoint", 5, cwd=tmp_path), 3)
    assert "step-000005 is broken" in sentence
    assert "No checkpoint in" in refused(agentcredit("eval", "x", cwd=tmp_path), 3)
    assert "1 problems" in refused(agentcredit("runs", "verify", "x", cwd=tmp_path), 1)


def test_a_checkpoint_that_is_not_there(tmp_path: Path):
    make_run(tmp_path, "x")
    sentence = refused(agentcredit("eval", "x", "--checkpoint", 7, cwd=tmp_path), 3)
    assert "has no checkpoint of step 7 (--checkpoint). There are: none." in sentence


def test_a_folder_of_another_configuration(tmp_path: Path):
    make_run(tmp_path, "x", **{"seed": 1, "optim.lr": 1e-3})
    sentence = refused(agentcredit("train", "--name", "x", cwd=tmp_path), 2)
    assert "x belongs to another configuration: seed is 1 there and 0 here; optim.lr is 0.001 there" in sentence
    assert "--fork" in sentence
    assert "--fresh" in sentence


def test_a_folder_that_another_process_trains_in(tmp_path: Path):
    config = resolve().config.model_copy(update={"out": tmp_path / "runs", "name": "x"})
    with RunDir.open(config):
        sentence = refused(agentcredit("train", "--name", "x", cwd=tmp_path), 2)
    assert "x is being trained by process" in sentence


def test_damaged_records(tmp_path: Path):
    run = make_run(tmp_path, "x")
    (run.path / "run.json").write_text("{")
    assert "run.json is damaged" in refused(agentcredit("runs", "show", "x", cwd=tmp_path), 3)
    (run.path / "config.toml").write_text("[env]\nfuture = 1\n")
    assert "There is no option 'env.future'" in refused(agentcredit("runs", "show", "x", cwd=tmp_path), 2)


def test_a_port_in_use(tmp_path: Path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mlflow.db").touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        sentence = refused(agentcredit("runs", "ui", "--port", port, cwd=tmp_path), 2)
    assert f"Port {port} on 127.0.0.1 is in use: give another with --port." in sentence


FULL_DISK = """
import errno, os
def full(descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
os.fsync = full
"""


def test_a_full_disk(tmp_path: Path):
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim" / "sitecustomize.py").write_text(FULL_DISK)
    result = agentcredit("train", "--name", "x", cwd=tmp_path, PYTHONPATH=str(tmp_path / "shim"))
    sentence = refused(result, 1)
    assert "repro.json: the disk is full. Free some space" in sentence
    assert not [path for path in (tmp_path / "runs" / "x").iterdir() if path.name != ".lock"]


FAKE_LOOP = """
import sys, time, types
loop = types.ModuleType("agentcredit.training.loop")
def train(config, run, progress):
    {body}
loop.train = train
sys.modules["agentcredit.training.loop"] = loop
from agentcredit.cli.main import run
sys.exit(run(["train", "--name", "x"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_that_it_can_be_continued(number: signal.Signals, tmp_path: Path):
    code = FAKE_LOOP.format(body="print('training', flush=True); time.sleep(60)")
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "training\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 4
    assert "Error: Interrupted; the same command again continues runs/x." in errors
    assert "Traceback" not in errors
    info = json.loads((tmp_path / "runs" / "x" / "run.json").read_text())
    assert info["attempts"][0]["status"] == "interrupted"


def test_a_defect_is_one_line_and_a_traceback_only_when_asked_for(tmp_path: Path):
    code = FAKE_LOOP.format(body="raise KeyError('boom')")

    def run(**extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=environment(tmp_path, **extra),
            capture_output=True,
            text=True,
            check=False,
        )

    sentence = refused(run(), 1)
    assert "Unexpected KeyError: 'boom' at agentcredit/cli/train.py:" in sentence
    assert "Repeat with --debug for the traceback." in sentence
    shown = run(AGENTCREDIT_DEBUG="1")
    assert shown.returncode == 1
    assert "Traceback" in shown.stderr
    attempts = json.loads((tmp_path / "runs" / "x" / "run.json").read_text())["attempts"]
    assert [attempt["status"] for attempt in attempts] == ["failed", "failed"]


def test_debug_is_understood_after_the_subcommand(tmp_path: Path):
    result = agentcredit("train", "--method", "proax", "--debug", cwd=tmp_path)
    assert result.returncode == 2
    assert "Traceback" in result.stderr
    assert "UsageError: Unknown method 'proax'" in result.stderr


def test_a_closed_pipe_is_no_error(tmp_path: Path):
    process = subprocess.Popen(
        f"{sys.executable} -m agentcredit.cli.main train --dry-run | head -1",
        shell=True,
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, errors = process.communicate(timeout=60)
    assert out == "seed = 0\n"
    assert "Error" not in errors
