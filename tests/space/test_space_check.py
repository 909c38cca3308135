"""``python -m tuner.space`` as a person runs it: a process of its own, its output held."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SMALL = """
why: a small one
env:
  NCCL_ALGO:
    choices: [null, Ring, {value: "allreduce:tree", requires: {nccl: ">=2.24"}, why: plain Tree is refused}]
    why: "[bold]markup[/bold] is text"
  NCCL_MIN_NCHANNELS: {int: {low: 1, high: 8, log: true}}
  NCCL_MAX_NCHANNELS: {int: {low: 2, high: 8, step: 2}, default: 4, when: NCCL_ALGO != null}
rules:
  - {rule: NCCL_MIN_NCHANNELS <= NCCL_MAX_NCHANNELS, why: min wins}
try_first:
  - {name: default}
  - {name: tree, set: {NCCL_ALGO: "allreduce:tree", NCCL_MAX_NCHANNELS: 2}}
"""


def check(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tuner.space", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )


def words(text: str) -> list[str]:
    """Lines with their blanks and rules of the table taken together."""
    lines = (" ".join(line.replace("─", " ").split()) for line in text.splitlines())
    return [line for line in lines if line]


def test_a_good_space_is_printed_whole_and_plain_to_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    done = check("check", str(path), "--nccl-version", "2.23.4", "--gpus", "2", COLUMNS="40", FORCE_COLOR="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert not any(line != line.rstrip() for line in done.stdout.splitlines())
    assert words(done.stdout) == [
        f"{path}: 3 parameters, 108 points (conditions and rules not counted)",
        "a small one",
        "Parameters",
        "name kind values default when requires why",
        "NCCL_ALGO env unset, Ring, allreduce:tree unset [bold]markup[/bold] is text",
        "NCCL_MIN_NCHANNELS env unset, 1 … 8 log unset",
        "NCCL_MAX_NCHANNELS env 2 … 8 by 2 4 NCCL_ALGO != null",
        "Choices",
        "choice requires why",
        "NCCL_ALGO=allreduce:tree nccl >=2.24 plain Tree is refused",
        "Rules",
        "rule why",
        "NCCL_MIN_NCHANNELS <= NCCL_MAX_NCHANNELS min wins",
        "Tried first",
        "name set",
        "default (all default)",
        "tree NCCL_ALGO=allreduce:tree NCCL_MAX_NCHANNELS=2",
        "On such a host: 3 parameters, 72 points (conditions and rules not counted)",
        "Withheld",
        "name value reason",
        "NCCL_ALGO 'allreduce:tree' needs NCCL >=2.24, but NCCL on host (as described) is 2.23.4",
        "Tried first there",
        "name configuration",
        "default (default)",
        "Not tried first there",
        "note",
        "tree: NCCL_ALGO=allreduce:tree: needs NCCL >=2.24, but NCCL on host (as described) is 2.23.4",
    ]


def test_a_shipped_space_is_found_by_name_from_anywhere(tmp_path: Path) -> None:
    done = check("check", "nccl.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert words(done.stdout)[0].startswith("nccl.yaml: 9 parameters, ")
    assert check("check", "nccl", cwd=tmp_path, PYTHONIOENCODING="ascii").returncode == 0


def test_a_faulty_space_is_explained_on_standard_error(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("env:\n  NCCL_ALGO: {choises: [a]}\n  NCCL_PROTO: 3\n")
    done = check("check", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"{path}:2: env.NCCL_ALGO.choises: found an unknown key, expected one of choices, int, float, default, when,"
        " otherwise, requires, why; did you mean 'choices'?",
        f"{path}:3: env.NCCL_PROTO: found 3, expected a mapping (key: value)",
    ]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = check("check", "ncl.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no such file" in done.stderr
    assert "nccl.yaml" in done.stderr


def test_names_that_are_not_tunable_are_refused_unless_allowed(tmp_path: Path) -> None:
    path = tmp_path / "hostile.yaml"
    path.write_text("env:\n  LD_PRELOAD: {choices: [null, /tmp/evil.so]}\nargs:\n  host: {choices: [null, 0.0.0.0]}\n")
    done = check("check", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "LD_PRELOAD" in done.stderr
    assert "host" in done.stderr
    assert len(done.stderr.splitlines()) == 2
    path.write_text("env:\n  NCCL_GRAPH_FILE: {choices: [null, /opt/graph.xml]}\n")
    assert check("check", str(path)).returncode == 2
    assert check("check", str(path), "--allow", "NCCL_GRAPH_FILE").returncode == 0


def test_a_narrow_terminal_gets_the_reasons_in_a_table_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "tuner.space", "check", str(path)],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100", "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # Linux's way of saying that the other end is closed
                break
            if not chunk:
                break
            seen += chunk
        assert process.wait(timeout=60) == 0
    os.close(ours)
    text = seen.decode()
    assert "\x1b[1mWhy" in text
    assert "[bold]markup[/bold] is text" in text


def test_a_reader_that_goes_away_is_no_fault() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tuner.space", "check", "nccl.yaml"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("--help",), 0, "check a search space file"),
        (("check", "--help"), 0, "python -m tuner.space check nccl.yaml"),
        ((), 2, "required: COMMAND"),
        (("check",), 2, "required: FILE"),
        (("check", "nccl.yaml", "--gpus", "many"), 2, "found 'many', expected a number of GPUs"),
    ],
)
def test_help_and_usage(arguments: tuple[str, ...], status: int, told: str) -> None:
    done = check(*arguments)
    assert done.returncode == status
    assert told in (done.stdout if status == 0 else done.stderr)
