"""One holder at a time, also when the folder is moved away."""

from pathlib import Path

import pytest

from agentcredit.locking import FileLock, LockHeld


def test_one_holder_at_a_time(tmp_path: Path):
    path = tmp_path / "deep" / ".lock"
    with FileLock(path) as lock:
        with pytest.raises(LockHeld, match=r"^process \d+ on "):
            FileLock(path)
        lock.release()
        with FileLock(path):
            pass
    FileLock(path).release()


def test_a_lock_in_a_folder_that_was_moved_away_is_not_the_lock_of_the_new_one(tmp_path: Path):
    old = FileLock(tmp_path / "run" / ".lock")
    (tmp_path / "run").rename(tmp_path / "aside")
    with FileLock(tmp_path / "run" / ".lock"):
        old.release()
        with pytest.raises(LockHeld):
            FileLock(tmp_path / "run" / ".lock")
