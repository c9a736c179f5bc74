"""The command as a user meets it: a process of its own, its output and its exit code."""

import json
import os
import subprocess
import sys

import pytest

from tests.report.build import write_run


def report(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "agentcredit.cli.main", "report", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "100"} | environment,
    )


@pytest.fixture
def out(tmp_path):
    for seed in range(2):
        write_run(tmp_path, "grpo", "11000000", seed)
        write_run(tmp_path, "proas", "11111100", seed)
    return tmp_path


def test_a_table_is_whole_lines_without_colour_in_a_pipe(out):
    result = report("--out", out)
    assert result.returncode == 0, result.stderr
    line = next(line for line in result.stdout.splitlines() if line.startswith("proas"))
    for cell in ("75.0", "12/16", "s0:75.0 s1:75.0", "+50.0 ["):
        assert cell in line
    assert "\x1b" not in result.stdout


def test_named_runs_only(out):
    result = report("alfworld__proas__tiny__s0", "--out", out, "--format", "json")
    (section,) = json.loads(result.stdout)["sections"]
    assert [row["label"] for row in section["rows"]] == ["proas(default)"]


def test_markdown_and_types(out):
    result = report("--out", out, "--format", "markdown", "--by-type")
    assert result.returncode == 0, result.stderr
    assert "| Task type | grpo(default) | proas(default) |" in result.stdout


def test_how_soon_a_threshold_is_reached(tmp_path):
    for step, slow, fast in ((-1, "1000", "1000"), (10, "1000", "1100"), (20, "1100", "1100")):
        for method, ends in (("grpo", slow), ("proas", fast)):
            write_run(tmp_path, method, ends, role="dev", split="valid_seen", step=step)
    result = report("--out", tmp_path, "--threshold", "0.5")
    assert result.returncode == 0, result.stderr
    assert "Steps to 50% of valid_seen" in result.stdout
    assert "× 2.00" in result.stdout
    assert report("--out", tmp_path, "--threshold", "0.5", "--format", "csv").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--baseline", "gpro"], 2, "Did you mean 'grpo'"),
        (["--split", "valid_unsen"], 2, "Did you mean 'valid_unseen'"),
        (["alfworld__grpo__tiny__s9"], 2, "There is no run 'alfworld__grpo__tiny__s9' in"),
        (["--format", "pdf"], 2, "pdf"),
    ],
)
def test_wrong_words_are_one_sentence(out, arguments, code, said):
    result = report("--out", out, *arguments)
    assert (result.returncode, result.stdout) == (code, "")
    assert said in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


def test_nothing_to_report_is_exit_code_3(tmp_path):
    result = report("--out", tmp_path)
    assert result.returncode == 3
    assert "There are no evaluations" in result.stderr


def test_a_folder_of_folders_is_told_from_a_folder_of_runs(tmp_path):
    write_run(tmp_path / "demo", "grpo", "11000000")
    result = report("--out", tmp_path)
    assert result.returncode == 3
    assert f"--out {tmp_path / 'demo'}, which has some" in " ".join(result.stderr.split())


def test_unlike_results_are_refused_with_exit_code_5(out):
    write_run(out, "rloo", "11000000", panel_sha256="cd" * 32, panel_name="other")
    result = report("--out", out)
    assert (result.returncode, result.stdout) == (5, "")
    sentence = " ".join(result.stderr.split())
    assert (
        "the task panel is small-v1 (abababababab) in run alfworld__grpo__tiny__s0 and other (cdcdcdcdcdcd)" in sentence
    )


def test_reporting_imports_nothing_heavy(out):
    code = (
        "import sys; from agentcredit.cli.report import report; from pathlib import Path; "
        f"report(None, Path({str(out)!r}), '', '', 'csv', False); "
        "sys.exit(' '.join(m for m in ('torch', 'mlflow', 'transformers', 'pandas', 'scipy') if m in sys.modules) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
