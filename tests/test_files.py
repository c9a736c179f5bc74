"""Files are whole or absent, and a failing disk ends in one sentence."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentcredit import files
from agentcredit.errors import MissingError, RunFailed


def test_a_write_replaces_the_file_and_leaves_no_temporary(tmp_path: Path):
    path = tmp_path / "deep" / "a.json"
    files.atomic_write_json(path, {"a": 1})
    files.atomic_write_json(path, {"a": 2})
    assert path.read_text() == '{\n  "a": 2\n}\n'
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


def test_a_full_disk_names_the_file_keeps_the_old_one_and_leaves_nothing(tmp_path: Path, monkeypatch):
    path = tmp_path / "a.txt"
    files.atomic_write_text(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFailed, match=r"a\.txt: the disk is full"):
        files.atomic_write_text(path, "new")
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_appending_to_a_device_that_is_full():
    with pytest.raises(RunFailed, match="the disk is full"):
        files.append_jsonl(Path("/dev/full"), {"a": 1})


def test_a_half_written_line_is_taken_back(tmp_path: Path, monkeypatch):
    path = tmp_path / "m.jsonl"
    files.append_jsonl(path, {"step": 1})
    whole = path.read_bytes()
    write = os.write

    def half(descriptor: int, data: memoryview) -> int:
        if len(data) < 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[: len(data) - 5])

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(RunFailed):
        files.append_jsonl(path, {"step": 2, "text": "x" * 100})
    assert path.read_bytes() == whole


@pytest.mark.parametrize("torn", ['{"step": 2, "x', '{"step": 2}', "x" * 200_000])
def test_a_torn_last_line_is_not_read_and_is_cut_by_the_next_append(tmp_path: Path, torn: str):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n' + torn)
    assert files.read_jsonl(path) == [{"step": 1}]
    files.append_jsonl(path, {"step": 2})
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(MissingError, match=r"m\.jsonl is damaged: line 2"):
        files.read_jsonl(path)


def test_an_absent_file_has_no_records(tmp_path: Path):
    assert files.read_jsonl(tmp_path / "none.jsonl") == []


def test_two_processes_append_whole_lines(tmp_path: Path):
    path = tmp_path / "m.jsonl"
    code = (
        "import sys; from pathlib import Path; from agentcredit.files import append_jsonl\n"
        "for i in range(60): append_jsonl(Path(sys.argv[1]), {'who': sys.argv[2], 'i': i, 'pad': 'x' * 5000})"
    )
    workers = [subprocess.Popen([sys.executable, "-c", code, str(path), name]) for name in "ab"]
    assert [worker.wait() for worker in workers] == [0, 0]
    records = files.read_jsonl(path)
    assert [r["i"] for r in records if r["who"] == "a"] == list(range(60))
    assert [r["i"] for r in records if r["who"] == "b"] == list(range(60))


def test_compressed_lines_come_back(tmp_path: Path):
    path = tmp_path / "e.jsonl.zst"
    records = [{"i": i, "text": "naïve\nline " * 50} for i in range(200)]
    files.write_zst_jsonl(path, iter(records))
    assert list(files.read_zst_jsonl(path)) == records
    assert path.stat().st_size < 20_000


@pytest.mark.parametrize("damage", ["cut", "flip", "plain"])
def test_damaged_compressed_lines_are_an_error(tmp_path: Path, damage: str):
    path = tmp_path / "e.jsonl.zst"
    files.write_zst_jsonl(path, [{"i": i} for i in range(1000)])
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[:-20]
    elif damage == "flip":
        data[len(data) // 2] ^= 0xFF
    else:
        data = bytearray(b'{"i": 1}\n')
    path.write_bytes(data)
    with pytest.raises(MissingError, match=r"e\.jsonl\.zst is damaged"):
        list(files.read_zst_jsonl(path))


def test_missing_compressed_lines_are_an_error(tmp_path: Path):
    with pytest.raises(MissingError, match="does not exist"):
        list(files.read_zst_jsonl(tmp_path / "none.zst"))
