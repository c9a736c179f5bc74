"""A bounded store of small blobs in one SQLite file, shared by any number of processes of one machine.

It is a cache: whatever goes wrong with the file (corrupt, full disk, read-only folder) is logged once and costs
entries, never a run. Writes are collected and committed by a thread of their own, off the path of the caller. The file
is in write-ahead mode, which needs a local disk; on a shared file system point ``AGENTCREDIT_HOME`` at a local one.
"""

from __future__ import annotations

import fcntl
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

log = logging.getLogger(__name__)

FLUSH_SECONDS = 1.0
FLUSH_ENTRIES = 512
PENDING_LIMIT = 20_000
TOUCH_SECONDS = 3600
"""A row's time of use is written again when it is older than this: reading must not mean writing."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS blobs (key BLOB PRIMARY KEY, value BLOB NOT NULL, used INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS blobs_used ON blobs (used);
"""
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class BlobStore:
    """Bytes by key; the first value of a key stays. The file is opened when it is first needed.

    Args:
        path: the SQLite file; its folder is made.
        limit: bytes that the file may take; the entries that were not used for longest go first.
        clock: seconds since the epoch.
    """

    def __init__(self, path: Path, limit: int, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()  # guards the connection and the two dictionaries
        self._pending: dict[bytes, bytes] = {}
        self._touched: set[bytes] = set()
        self._connection: sqlite3.Connection | None = None
        self._disabled = False
        self._suspect = False
        self._wake = threading.Event()
        self._closing = False
        self._writer: threading.Thread | None = None

    def get(self, key: bytes) -> bytes | None:
        """The value, or None."""
        with self._lock:
            if key in self._pending:
                return self._pending[key]
            connection = self._open()
            if connection is None:
                return None
            try:
                row = connection.execute("SELECT value, used FROM blobs WHERE key = ?", (key,)).fetchone()
            except sqlite3.Error as error:
                self._failed(error)
                return None
            if row is None:
                return None
            if row[1] < self._clock() - TOUCH_SECONDS:
                self._touched.add(key)
            return row[0]

    def put(self, key: bytes, value: bytes) -> None:
        """Keeps a value; it is on disk after the next flush, at the latest after :meth:`close`."""
        with self._lock:
            if self._disabled or self._closing or len(self._pending) >= PENDING_LIMIT:
                return
            self._pending[key] = value
            if self._writer is None:
                self._writer = threading.Thread(target=self._write, name="transition-cache", daemon=True)
                self._writer.start()
            if len(self._pending) >= FLUSH_ENTRIES:
                self._wake.set()

    def close(self) -> None:
        """Writes what is pending and closes the file. Safe to call twice."""
        with self._lock:
            self._closing = True
        self._wake.set()
        if self._writer is not None:
            self._writer.join()
        self._flush()
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            self._disabled = True

    def _write(self) -> None:
        while not self._closing:
            self._wake.wait(FLUSH_SECONDS)
            self._wake.clear()
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            pending, touched = dict(self._pending), list(self._touched)
            if self._disabled or not (pending or touched) or self._open() is None:
                return
        now = int(self._clock())
        try:
            # A connection of its own: readers never wait for the commit.
            with closing(_connect(self._path)) as writing:
                writing.execute("BEGIN IMMEDIATE")
                rows = [(key, value, now) for key, value in pending.items()]
                writing.executemany("INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)", rows)
                writing.executemany("UPDATE blobs SET used = ? WHERE key = ?", [(now, key) for key in touched])
                _evict(writing, self._limit)
                writing.execute("COMMIT")
                writing.executescript("PRAGMA incremental_vacuum")  # execute() would free one page only
        except sqlite3.Error as error:
            with self._lock:
                self._failed(error)
            return
        with self._lock:
            for key in pending:
                self._pending.pop(key, None)
            self._touched.difference_update(touched)

    def _open(self) -> sqlite3.Connection | None:
        """The reading connection; None when there can be none. The lock is held."""
        if self._connection is None and not self._disabled:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._connection = _open_sound(self._path, self._suspect)
                self._suspect = False
            except (sqlite3.Error, OSError) as error:
                self._disabled = True
                log.warning("Transitions are not kept on disk: %s cannot be opened (%s).", self._path, error)
        return self._connection

    def _failed(self, error: sqlite3.Error) -> None:
        """After an error of the file: a corrupt one is replaced, a busy one is tried again later, else the disk is left alone."""
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if code in _CORRUPT:
            self._suspect = True
        else:
            self._disabled = True
            self._pending.clear()
            log.warning("Transitions are no longer kept in %s: %s.", self._path, error)


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=20.0, isolation_level=None, check_same_thread=False)


def _open_sound(path: Path, suspect: bool) -> sqlite3.Connection:
    """A connection to a readable file; a corrupt one is moved aside, by one process at a time.

    ``suspect``: reading it failed before, so all of it is checked.
    """
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            return _prepared(path, thorough=suspect)
        except sqlite3.DatabaseError as error:
            if (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF not in _CORRUPT:
                raise
            aside = path.with_name(f"{path.name}.corrupt-{time.time_ns()}")
            log.warning("%s is corrupt (%s); moved to %s, a new one is begun.", path, error, aside.name)
            path.replace(aside)
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            return _prepared(path)


def _prepared(path: Path, thorough: bool = False) -> sqlite3.Connection:
    connection = _connect(path)
    try:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {4 * 2**20}")
        connection.executescript(_SCHEMA)
        # Reading both trees' ends finds a torn file in microseconds, where a full check would read all of it.
        for order in ("key", "key DESC", "used", "used DESC"):
            connection.execute(f"SELECT key, length(value) FROM blobs ORDER BY {order} LIMIT 1").fetchall()
        if thorough and (verdict := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            error = sqlite3.DatabaseError(verdict)
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
    except BaseException:
        connection.close()
        raise
    return connection


def _evict(connection: sqlite3.Connection, limit: int) -> None:
    """Deletes the entries that were not used for longest, a tenth of all at a time, until the rest fits ``limit`` bytes."""
    while True:
        pages, free, size = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        if (pages - free) * size <= limit:
            return
        (n,) = connection.execute("SELECT count(*) FROM blobs").fetchone()
        if n == 0:
            return
        connection.execute(
            "DELETE FROM blobs WHERE key IN (SELECT key FROM blobs ORDER BY used LIMIT ?)", (max(n // 10, 1),)
        )
