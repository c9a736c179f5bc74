"""One process at a time: an advisory lock on a file, released by the system when its holder dies."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
from pathlib import Path
from types import TracebackType

from agentcredit.files import naming

_log = logging.getLogger(__name__)


class LockHeld(Exception):
    """Another process holds the lock; the text says which."""


class FileLock:
    """An exclusive ``flock``. The file stays behind, and means nothing by itself.

    Raises:
        LockHeld: another process has it.
        RunFailed: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = self._take()

    def release(self) -> None:
        """Lets the lock go; safe to call twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> FileLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _take(self) -> int | None:
        while True:
            with naming(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                os.close(descriptor)
                raise LockHeld(holder or "another process") from error
            except OSError as error:
                os.close(descriptor)
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                    raise
                _log.warning("%s: this file system has no locks; nothing stops a second process here", self.path)
                return None
            if self._is_still_there(descriptor):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
                return descriptor
            os.close(descriptor)  # its folder was moved away between opening and locking: lock the new one

    def _is_still_there(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except FileNotFoundError:
            return False
