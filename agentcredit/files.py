"""Files that are whole or absent: atomic writes, line-atomic appends, and compressed JSON lines.

A reader, or the same command after ``kill -9``, never meets half a file: content goes to a temporary name in the same
folder, is flushed to the disk, and is renamed. Logs that grow are appended one whole line at a time.

Every ``OSError`` leaves as one sentence that names the file: a full disk, a quota and a missing permission are the
user's to mend, and a traceback would hide which file it was.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentcredit.errors import MissingError, RunFailed

_FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turns an ``OSError`` met while writing ``path`` into one sentence.

    Raises:
        RunFailed: in place of the ``OSError``.
    """
    try:
        yield
    except OSError as error:
        raise RunFailed(write_failure(path, error)) from error


def write_failure(path: Path, error: OSError) -> str:
    """The sentence for a write to ``path`` that failed."""
    if error.errno in _FULL:
        return (
            f"Cannot write {path}: {_FULL[error.errno]}. Free some space, or choose another folder with --out, "
            "and repeat the command: it continues."
        )
    return f"Cannot write {path}: {error.strerror or error}."


def atomic_write_bytes(path: Path, data: bytes) -> None:
    """Writes a file that is either the old one or the new one, also after a crash of the machine.

    Parent folders are made. Raises :class:`RunFailed` when the file cannot be written; no temporary file stays behind.
    """
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def atomic_write_text(path: Path, text: str) -> None:
    """:func:`atomic_write_bytes` of UTF-8 text."""
    atomic_write_bytes(path, text.encode())


def atomic_write_json(path: Path, value: Any) -> None:
    """:func:`atomic_write_bytes` of indented JSON."""
    atomic_write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def append_jsonl(path: Path, record: Mapping[str, Any]) -> None:
    """Appends one JSON line: all of it or nothing.

    One ``write`` call on a descriptor opened for appending. A torn last line of a killed process is cut off first, and
    what a failing disk took of this line is taken back.

    Raises:
        RunFailed: the line cannot be written.
    """
    line = (json.dumps(record, ensure_ascii=False) + "\n").encode()
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # another writer's half-visible line is not a torn one
            size = _whole_lines(descriptor)
            try:
                _write_all(descriptor, line)
                os.fsync(descriptor)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON-lines file; a torn last line is left out, an absent file is empty.

    Raises:
        MissingError: a line before the last is not JSON.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    lines.pop()  # after the last newline: nothing, or what a killed process had begun
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise MissingError(f"{path} is damaged: line {number} is not JSON ({error}).") from error
    return records


def write_zst_jsonl(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Writes zstandard-compressed JSON lines atomically; one record is held in memory at a time, the frame as a whole."""
    import zstandard

    buffer = io.BytesIO()
    with zstandard.ZstdCompressor(level=6, write_checksum=True).stream_writer(buffer, closefd=False) as stream:
        for record in records:
            stream.write((json.dumps(record, ensure_ascii=False) + "\n").encode())
    atomic_write_bytes(path, buffer.getvalue())


def read_zst_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file of :func:`write_zst_jsonl`, one at a time.

    Raises:
        MissingError: the file is absent, damaged or not of this form.
    """
    import zstandard

    reader = zstandard.ZstdDecompressor().decompressobj()
    rest = b""
    try:
        with path.open("rb") as raw:
            while block := raw.read(1 << 18):
                *lines, rest = (rest + reader.decompress(block)).split(b"\n")
                for line in lines:
                    yield json.loads(line)
        if rest or not reader.eof:
            raise EOFError("its end is missing")
    except FileNotFoundError as error:
        raise MissingError(f"{path} does not exist.") from error
    except (zstandard.ZstdError, ValueError, EOFError) as error:
        raise MissingError(f"{path} is damaged: {error}.") from error


def sync_folder(folder: Path) -> None:
    """Flushes a folder's entries, so that a rename survives a crash of the machine.

    Some network file systems refuse to open or flush a folder; the rename itself was atomic there as well.
    """
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _whole_lines(descriptor: int) -> int:
    """Cuts what follows the last newline, and returns the size."""
    size = os.fstat(descriptor).st_size
    end, block = size, 1 << 16
    while end > 0:
        start = max(0, end - block)
        found = os.pread(descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end != size:
        os.ftruncate(descriptor, end)
    return end


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _umask() -> int:
    """The process's file mode mask; there is no way to read it without setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
