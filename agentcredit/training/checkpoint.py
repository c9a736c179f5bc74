"""Checkpoints that are whole or absent, proved by hashes, and fall back to the one before.

    checkpoints/step-000010/   model.safetensors  optimizer.safetensors  state.json  manifest.json  + the caller's files
    checkpoints/latest         the name of the newest, for people and other tools

A checkpoint is written under a hidden temporary name, flushed, and renamed; the manifest holds every file's SHA-256. With
a ``config.json`` and tokenizer files beside the weights, a checkpoint is also a model folder of transformers. No pickle.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentcredit.errors import MissingError
from agentcredit.files import atomic_write_text, naming, sync_folder

if TYPE_CHECKING:
    import torch

CHECKPOINT_FORMAT = 1
_MODEL, _OPTIMIZER, _STATE, _MANIFEST = "model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"
_OWN_FILES = frozenset({_MODEL, _OPTIMIZER, _STATE, _MANIFEST})
_NAME = re.compile(r"step-(\d{6,})")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint. Tensors are on the CPU; ``model_state`` has every name, tied weights included."""

    path: Path
    step: int
    model_state: dict[str, torch.Tensor]
    optim_state: dict[str, torch.Tensor]
    extra: dict[str, Any]


def save(
    folder: Path,
    step: int,
    model_state: Mapping[str, torch.Tensor],
    optim_state: Mapping[str, torch.Tensor],
    extra: Mapping[str, Any],
    extra_files: Mapping[str, bytes] | None = None,
    keep: int = 2,
) -> Path:
    """Writes ``folder/step-<step>`` and removes old checkpoints.

    Checkpoints of later steps are removed too: a run that saves step 5 after step 10 has gone back to before it.

    Args:
        folder: the run's ``checkpoints`` folder.
        step: training steps done.
        model_state: flat names to tensors; tensors that share their storage (tied weights) are stored once.
        optim_state: flat names to tensors.
        extra: JSON values (sampler's place, RNG states, the method's state).
        extra_files: further files by name, such as ``config.json`` and the tokenizer's.
        keep: how many checkpoints stay besides this one.

    Returns:
        The checkpoint's folder.

    Raises:
        RunFailed: it cannot be written (a full disk); nothing half-written stays, older checkpoints are untouched.
        ValueError: a name in ``extra_files`` is a path or one of the checkpoint's own files.
    """
    for name in extra_files or {}:
        if name in _OWN_FILES or Path(name).name != name:
            raise ValueError(f"a checkpoint cannot hold an extra file named '{name}'")
    final = folder / f"step-{step:06d}"
    temporary = folder / f".{final.name}.tmp"
    with naming(final):
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        try:
            temporary.mkdir()
            _write_files(temporary, step, model_state, optim_state, extra, extra_files or {})
            _replace_folder(temporary, final)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    atomic_write_text(folder / "latest", final.name + "\n")
    _prune(folder, step, keep)
    return final


def load_latest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint, or None where none was ever written.

    A broken one is reported as a warning and the one before it is used.

    Raises:
        MissingError: there are checkpoints and all are broken.
    """
    path = _newest_whole(folder)
    return _load(path) if path else None


def latest_values(folder: Path) -> tuple[int, dict[str, Any]] | None:
    """Step and JSON values (the method's state among them) of the newest whole checkpoint, without its tensors.

    Raises:
        MissingError: there are checkpoints and all are broken.
    """
    path = _newest_whole(folder)
    if path is None:
        return None
    state = json.loads((path / _STATE).read_bytes())
    return state["step"], state["extra"]


def _newest_whole(folder: Path) -> Path | None:
    steps = _steps(folder)
    problems: list[str] = []
    for step in sorted(steps, reverse=True):
        problem = problem_of(steps[step])
        if problem is None:
            return steps[step]
        _log.warning("Checkpoint %s is broken (%s); using the one before it.", steps[step], problem)
        problems.append(f"{steps[step].name}: {problem}")
    if problems:
        raise MissingError(
            f"No checkpoint in {folder} is whole ({'; '.join(problems)}); restore one from a copy, or remove the folder "
            "to start the run again."
        )
    return None


def problem_of(path: Path) -> str | None:
    """What is wrong with a checkpoint's files, by its manifest, or None."""
    try:
        manifest = json.loads((path / _MANIFEST).read_bytes())
        files = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in manifest["files"].items()}
    except FileNotFoundError:
        return f"{_MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{_MANIFEST} is not readable"
    if manifest.get("format") != CHECKPOINT_FORMAT:
        return f"its format is {manifest.get('format')!r}, this version reads {CHECKPOINT_FORMAT}"
    for name in sorted(_OWN_FILES - {_MANIFEST} - files.keys()):
        return f"{name} is not in its {_MANIFEST}"
    for name, (size, digest) in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes, not {size}"
        try:
            if _sha256(file) != digest:
                return f"the SHA-256 of {name} differs"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror or error})"
    return None


def _write_files(
    folder: Path,
    step: int,
    model_state: Mapping[str, torch.Tensor],
    optim_state: Mapping[str, torch.Tensor],
    extra: Mapping[str, Any],
    extra_files: Mapping[str, bytes],
) -> None:
    """All files, flushed; the manifest last."""
    kept, aliases = _split_aliases(model_state)
    _write_tensors(folder / _MODEL, kept)
    _write_tensors(folder / _OPTIMIZER, optim_state)
    state = {"step": step, "aliases": aliases, "extra": dict(extra)}
    _write_bytes(folder / _STATE, json.dumps(state, indent=1).encode())
    for name, data in extra_files.items():
        _write_bytes(folder / name, data)
    files = {path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path)} for path in sorted(folder.iterdir())}
    manifest = {"format": CHECKPOINT_FORMAT, "step": step, "files": files}
    _write_bytes(folder / _MANIFEST, json.dumps(manifest, indent=1).encode())
    sync_folder(folder)


def _split_aliases(state: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors by the first of their names, and the other names of tied weights."""
    first: dict[tuple[Any, ...], str] = {}
    kept: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    for name, tensor in state.items():
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and place in first:
            aliases[name] = first[place]
        else:
            first[place] = name
            kept[name] = tensor
    return kept, aliases


def _write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"}
        )
    except SafetensorError as error:
        # The library wraps the system's error in a text of its own.
        if number := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
        raise
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _write_bytes(path: Path, data: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _replace_folder(temporary: Path, final: Path) -> None:
    """Renames; an old folder of that name (broken, or of the same step done again) goes aside first."""
    aside = final.with_name(f".{final.name}.old")
    if final.exists():
        final.rename(aside)
    temporary.rename(final)
    sync_folder(final.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    """What a killed process left half-written."""
    for path in folder.glob(".step-*"):
        if path.name.endswith((".tmp", ".old")):
            shutil.rmtree(path)
    for path in folder.glob(".latest.*.tmp"):
        path.unlink()


def _prune(folder: Path, step: int, keep: int) -> None:
    steps = _steps(folder)
    older = sorted(other for other in steps if other < step)
    later = [other for other in steps if other > step]
    for other in [*older[: max(0, len(older) - keep)], *later]:
        shutil.rmtree(steps[other], ignore_errors=True)


def _steps(folder: Path) -> dict[int, Path]:
    paths = folder.iterdir() if folder.is_dir() else []
    return {int(match[1]): path for path in paths if (match := _NAME.fullmatch(path.name)) and path.is_dir()}


def _load(path: Path) -> Checkpoint:
    from safetensors.torch import load_file

    state = json.loads((path / _STATE).read_bytes())
    model_state = load_file(path / _MODEL)
    model_state |= {name: model_state[original] for name, original in state["aliases"].items()}
    return Checkpoint(
        path=path,
        step=state["step"],
        model_state=model_state,
        optim_state=load_file(path / _OPTIMIZER),
        extra=state["extra"],
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
