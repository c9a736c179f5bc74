from __future__ import annotations

import errno
import json
import logging
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from agentcredit.errors import MissingError, RunFailed
from agentcredit.training import checkpoint

OPTIM = {"w/exp_avg": torch.ones(3), "w/step": torch.tensor(7.0)}


def weights(step: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((1000,), float(step))}


def save(folder: Path, step: int, **options: Any) -> Path:
    return checkpoint.save(folder, step, weights(step), OPTIM, {"step": step}, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_saved_is_loaded(tmp_path):
    extra = {"rng": 2**127 + 1, "distance": float("inf"), "method": {"edges": [[0, 1]]}}
    model = {"w": torch.randn(4, 3), "b": torch.randn(3).bfloat16(), "n": torch.tensor(3)}
    path = checkpoint.save(tmp_path / "checkpoints", 10, model, OPTIM, extra, {"config.json": b"{}"})
    assert path.name == "step-000010"
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-000010\n"
    found = checkpoint.load_latest(tmp_path / "checkpoints")
    assert found is not None
    assert (found.step, found.path, found.extra) == (10, path, extra)
    for ours, theirs in ((found.model_state, model), (found.optim_state, OPTIM)):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], value) and ours[name].dtype == value.dtype for name, value in theirs.items())
    manifest = json.loads((path / "manifest.json").read_text())
    assert set(manifest["files"]) == {"model.safetensors", "optimizer.safetensors", "state.json", "config.json"}


def test_nothing_saved_yet(tmp_path):
    assert checkpoint.load_latest(tmp_path / "checkpoints") is None


def test_a_checkpoint_is_a_model_folder_and_tied_weights_are_stored_once(tmp_path, make_model):
    from transformers import AutoModelForCausalLM

    model = make_model()
    config = json.dumps(model.config.to_dict()).encode()
    path = checkpoint.save(tmp_path, 1, model.state_dict(), {}, {}, {"config.json": config})
    n_parameters = sum(p.numel() for p in model.parameters())
    assert (path / "model.safetensors").stat().st_size < 4 * n_parameters + 8192
    found = checkpoint.load_latest(tmp_path)
    assert found is not None
    assert found.model_state.keys() == model.state_dict().keys()
    for loaded in (AutoModelForCausalLM.from_pretrained(path), make_model(seed=1)):
        if loaded.config.name_or_path != str(path):
            loaded.load_state_dict(found.model_state)
        for name, value in loaded.state_dict().items():
            assert torch.equal(value, model.state_dict()[name]), name


def test_old_checkpoints_go(tmp_path):
    for step in (5, 10, 15, 20):
        save(tmp_path, step, keep=2)
    assert names(tmp_path) == ["latest", "step-000010", "step-000015", "step-000020"]


def test_checkpoints_of_an_abandoned_future_go(tmp_path):
    for step in (5, 10, 7):
        save(tmp_path, step)
    assert names(tmp_path) == ["latest", "step-000005", "step-000007"]


def test_the_same_step_can_be_saved_again(tmp_path):
    save(tmp_path, 5)
    checkpoint.save(tmp_path, 5, weights(6), OPTIM, {})
    found = checkpoint.load_latest(tmp_path)
    assert found is not None
    assert torch.equal(found.model_state["w"], weights(6)["w"])
    assert names(tmp_path) == ["latest", "step-000005"]


def flip_a_byte(path: Path) -> None:
    data = bytearray((path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (path / "model.safetensors").write_bytes(data)


BREAKS = {
    "flipped": (flip_a_byte, "the SHA-256 of model.safetensors differs"),
    "truncated": (lambda path: os.truncate(path / "optimizer.safetensors", 9), "optimizer.safetensors has 9 bytes"),
    "lost": (lambda path: (path / "state.json").unlink(), "state.json is missing"),
    "no manifest": (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing"),
    "torn manifest": (lambda path: os.truncate(path / "manifest.json", 20), "manifest.json is not readable"),
    "empty manifest": (lambda path: (path / "manifest.json").write_text("[]"), "manifest.json is not readable"),
    "newer": (
        lambda path: (path / "manifest.json").write_text('{"format": 99, "files": {}}'),
        "its format is 99, this version reads 1",
    ),
    "unlisted": (
        lambda path: (path / "manifest.json").write_text('{"format": 1, "files": {}}'),
        "model.safetensors is not in its manifest.json",
    ),
}


@pytest.mark.parametrize("kind", BREAKS)
def test_a_broken_checkpoint_is_reported_and_the_one_before_is_used(tmp_path, caplog, kind):
    harm, said = BREAKS[kind]
    save(tmp_path, 5)
    harm(save(tmp_path, 10))
    with caplog.at_level(logging.WARNING):
        found = checkpoint.load_latest(tmp_path)
    assert found is not None
    assert found.step == 5
    assert torch.equal(found.model_state["w"], weights(5)["w"])
    assert "step-000010 is broken" in caplog.text
    assert said in caplog.text


def test_all_broken_is_one_sentence(tmp_path):
    for step in (5, 10):
        flip_a_byte(save(tmp_path, step))
    with pytest.raises(MissingError) as caught:
        checkpoint.load_latest(tmp_path)
    said = str(caught.value)
    assert said.startswith(f"No checkpoint in {tmp_path} is whole (step-000010: the SHA-256 of model.safetensors")
    assert "step-000005" in said
    assert "\n" not in said


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json", "../evil", "a/b"])
def test_extra_files_stay_in_their_place(tmp_path, name):
    with pytest.raises(ValueError, match="cannot hold an extra file"):
        save(tmp_path, 1, extra_files={name: b""})


def full(*args: Any, **kwargs: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_in_the_library(*args: Any, **kwargs: Any) -> None:
    raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("target", "failure"),
    [("os.fsync", full), ("safetensors.torch.save_file", full_in_the_library), ("pathlib.Path.mkdir", full)],
)
def test_a_full_disk_is_one_sentence_and_leaves_nothing_behind(tmp_path, monkeypatch, target, failure):
    save(tmp_path, 5)
    with monkeypatch.context() as patch:
        patch.setattr(target, failure)
        with pytest.raises(RunFailed, match=r"^Cannot write .*step-000010: the disk is full\. Free some space"):
            save(tmp_path, 10)
    assert names(tmp_path) == ["latest", "step-000005"]
    found = checkpoint.load_latest(tmp_path)
    assert found is not None
    assert found.step == 5


def test_a_write_that_the_system_refuses(tmp_path):
    """The real thing, without a stand-in: the process may not write files beyond 2000 bytes."""
    save(tmp_path, 5)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(RunFailed, match=r"Cannot write .*step-000010: File too large"):
            save(tmp_path, 10)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert names(tmp_path) == ["latest", "step-000005"]


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    """A child that saves step 10 kills itself at its k-th flush or rename, for every k until it gets through."""
    newest, kills = 0, 0
    while newest is not None:
        folder = tmp_path / str(kills)
        save(folder, 5)
        status = _save_in_a_child(folder, 10, die_at=kills)
        found = checkpoint.load_latest(folder)
        assert found is not None
        assert found.step in (5, 10)
        assert torch.equal(found.model_state["w"], weights(found.step)["w"])
        assert found.step >= newest, "once renamed, the new checkpoint stays the newest"
        save(folder, 10)
        assert names(folder) == ["latest", "step-000005", "step-000010"]
        if status == 0:
            assert found.step == 10
            newest = None
        else:
            assert os.WTERMSIG(status) == signal.SIGKILL
            newest, kills = found.step, kills + 1
    assert kills >= 8  # four files, the folder, the rename, its folder, the pointer


def _save_in_a_child(folder: Path, step: int, die_at: int) -> int:
    """The status of a forked process that dies just before its ``die_at``-th call of fsync or rename."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    calls = 0

    def mortal(call: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            if calls == die_at:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1
            return call(*args, **kwargs)

        return wrapped

    os.fsync, Path.rename, Path.replace = mortal(os.fsync), mortal(Path.rename), mortal(Path.replace)
    try:
        save(folder, step)
    finally:
        os._exit(0 if (folder / "latest").read_text() == f"step-{step:06d}\n" else 1)


def test_values_alone_are_of_the_newest_whole_checkpoint(tmp_path):
    assert checkpoint.latest_values(tmp_path) is None
    save(tmp_path, 1)
    newest = save(tmp_path, 2)
    assert checkpoint.latest_values(tmp_path) == (2, {"step": 2})
    (newest / "model.safetensors").write_bytes(b"")
    assert checkpoint.latest_values(tmp_path) == (1, {"step": 1})
