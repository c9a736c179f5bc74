from __future__ import annotations

import logging
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from agentcredit.envs.store import BlobStore
from tests.envs.corridor import TOY

MIB = 2**20


def key(n: int) -> bytes:
    return n.to_bytes(16, "big")


def rows(path: Path) -> int:
    connection = sqlite3.connect(path)
    (n,) = connection.execute("SELECT count(*) FROM blobs").fetchone()
    connection.close()
    return n


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "store.sqlite"


def test_what_was_put_is_there_before_and_after_the_flush(path: Path) -> None:
    store = BlobStore(path, MIB)
    assert store.get(key(1)) is None
    store.put(key(1), b"one")
    assert store.get(key(1)) == b"one"
    store.close()
    store.close()
    assert store.get(key(1)) is None  # closed: a miss, not an error
    again = BlobStore(path, MIB)
    assert again.get(key(1)) == b"one"
    again.close()


def test_nothing_is_opened_before_it_is_needed(path: Path) -> None:
    BlobStore(path, MIB).close()
    assert not path.exists()


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_the_file_is_bounded_and_the_oldest_used_go_first(path: Path) -> None:
    clock = Clock()
    blob = bytes(range(256)) * 4
    for batch in range(5):  # five times 400 KiB into 1 MiB
        store = BlobStore(path, MIB, clock)
        for n in range(400):
            store.put(key(batch * 400 + n), blob)
        store.close()
        assert path.stat().st_size <= MIB
        clock.now += 10_000
        store = BlobStore(path, MIB, clock)
        assert store.get(key(0)) == blob  # used in every round, so it stays
        store.close()
    store = BlobStore(path, MIB, clock)
    assert store.get(key(1)) is None
    assert store.get(key(1999)) == blob
    store.close()
    assert 500 <= rows(path) <= 1000  # most of the room is used


def test_reading_does_not_mean_writing(path: Path) -> None:
    clock = Clock()
    store = BlobStore(path, MIB, clock)
    store.put(key(1), b"one")
    store.close()

    def used() -> int:
        connection = sqlite3.connect(path)
        (value,) = connection.execute("SELECT used FROM blobs").fetchone()
        connection.close()
        return value

    for later, stands in ((60, 1_000_000), (7200, 1_007_200)):
        clock.now = 1_000_000.0 + later
        store = BlobStore(path, MIB, clock)
        store.get(key(1))
        store.close()
        assert used() == stands


@pytest.mark.parametrize("damage", ["text", "torn"])
def test_a_corrupt_file_is_moved_aside_with_a_warning(
    path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = BlobStore(path, 10 * MIB)
    for n in range(2000):
        store.put(key(n), b"x" * 200)
    store.close()
    content = bytearray(path.read_bytes())
    if damage == "text":
        content[:100] = b"this is no database" + b" " * 81
    else:
        content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        store = BlobStore(path, 10 * MIB)
        assert store.get(key(1)) is None
        store.put(key(1), b"new")
        store.close()
    assert "is corrupt" in caplog.text
    aside = [file for file in path.parent.iterdir() if ".corrupt-" in file.name]
    assert [file.read_bytes()[4096:] for file in aside] == [bytes(content[4096:])]
    assert rows(path) == 1


def test_damage_deep_inside_is_found_when_it_is_met(path: Path) -> None:
    store = BlobStore(path, 10 * MIB)
    for n in range(4000):
        store.put(key(n), b"x" * 200)
    store.close()
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 40 * 4096] = b"\xff" * (40 * 4096)
    path.write_bytes(content)
    store = BlobStore(path, 10 * MIB)
    found = [store.get(key(n)) for n in range(4000)]
    assert set(found) <= {None, b"x" * 200}
    assert None in found
    store.put(key(5000), b"new")
    store.close()
    assert [file for file in path.parent.iterdir() if ".corrupt-" in file.name]
    assert BlobStore(path, 10 * MIB).get(key(5000)) == b"new"


def test_a_folder_that_cannot_be_made_costs_the_cache_and_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    store = BlobStore(tmp_path / "file" / "store.sqlite", MIB)
    assert store.get(key(1)) is None
    store.put(key(1), b"one")
    assert store.get(key(2)) is None
    store.close()
    assert caplog.text.count("Transitions are not kept on disk") == 1


def test_processes_may_write_at_once(path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom agentcredit.envs.store import BlobStore\n"
        "store, first = BlobStore(Path(sys.argv[1]), 2**26), int(sys.argv[2])\n"
        "for n in range(first, first + 3000):\n"
        "    store.put(n.to_bytes(16, 'big'), b'%d' % n)\n"
        "store.close()\n"
    )
    # Their ranges overlap, so that they also write the same keys.
    writers = [
        subprocess.Popen([sys.executable, "-c", code, path, str(first)], cwd=TOY.parents[2])
        for first in (0, 1500, 3000, 4500)
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0, 0]
    assert rows(path) == 7500
    store = BlobStore(path, 2**26)
    assert all(store.get(key(n)) == b"%d" % n for n in range(0, 7500, 7))
    store.close()
