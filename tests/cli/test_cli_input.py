"""What the command says to bad input, before any host is touched: exit 2, on stderr, nothing on stdout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cli_helpers import study, write_study


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--space", "ncll.yaml"], ["ncll.yaml", "nccl.yaml"]),
        (["--study", "nowhere/study.yaml"], ["nowhere/study.yaml"]),
        (["--objective", "latency.yaml"], ["latency.yaml", "throughput"]),
        (["--trials", "0"], ["--trials", "at least 1"]),
        (["--trials", "7"], ["7 launches", "confirmation", "8"]),
        (["--storage", "mysql://u:geheim@h/db"], ["mysql"]),
        (["--storage", "tuner.db"], ["sqlite:///"]),
        (["--resume", "nothing-there"], ["nothing-there", "none"]),
        (["--resume", "x", "--new"], ["--resume"]),
        (["--sapce", "nccl.yaml"], ["--sapce"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_options(tmp_path: Path, words: list[str], said: list[str]) -> None:
    result = study(*words, cwd=tmp_path)
    assert result.returncode in (2, 3), result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert all(text in result.stderr for text in said), result.stderr
    assert "geheim" not in result.stderr


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        ("env: {LD_PRELOAD: {choices: [null, /tmp/x.so]}}", ["LD_PRELOAD", "allow:"]),
        ("env: {PYTHONPATH: {choices: [null, /tmp]}}", ["PYTHONPATH"]),
        ("env: {NCCL_TUNER_PLUGIN: {choices: [null, x]}}", ["NCCL_TUNER_PLUGIN"]),
        ("args: {trust-remote-code: {choices: [null, true]}}", ["trust-remote-code"]),
        ("args: {host: {choices: [null, 0.0.0.0]}}", ["host"]),
        ("env: {NCCL_PROTTO: {choices: [null, LL]}}", ["NCCL_PROTTO", "NCCL_PROTO"]),
        ("envs: {NCCL_PROTO: {choices: [null, LL]}}", ["envs", "env"]),
        ("a: &a [x, x]\nb: [*a, *a]", ["space.yaml"]),
        ("env: {NCCL_PROTO: !!python/object/apply:os.system ['touch pwned']}", ["space.yaml"]),
        ("", ["space.yaml", "empty"]),
    ],
)
def test_a_space_from_a_stranger(tmp_path: Path, yaml: str, said: list[str]) -> None:
    (tmp_path / "space.yaml").write_text(yaml)
    result = study("--space", "space.yaml", "--dry-run", cwd=tmp_path)
    assert result.returncode == 2, result.stdout
    assert result.stdout == ""
    assert all(text in result.stderr for text in said), result.stderr
    assert not (tmp_path / "pwned").exists()


def test_a_study_may_allow_what_a_space_may_not(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("args: {load-format: {choices: [null, dummy]}}\n")
    text = write_study(tmp_path).read_text().replace("  name: sglang\n", "  name: sglang\n  allow: [load-format]\n")
    (tmp_path / "study.yaml").write_text(text)
    result = study("--study", "study.yaml", "--space", "space.yaml", "--dry-run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_a_secret_that_is_not_set_is_asked_for_by_name(tmp_path: Path) -> None:
    write_study(tmp_path, env=", HF_TOKEN: $TUNER_TEST_TOKEN")
    result = study("--study", "study.yaml", cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert "export TUNER_TEST_TOKEN=" in result.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    result = study(cwd=tmp_path)
    assert result.returncode == 3
    assert "studies" in result.stderr


def test_a_database_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, and to be kept\n" * 100)
    result = study("--storage", "sqlite:///notes.txt", cwd=tmp_path)
    assert result.returncode == 3
    assert "notes.txt" in result.stderr
    assert "Traceback" not in result.stderr
    assert (tmp_path / "notes.txt").read_text().startswith("not a database")


def test_help_teaches(tmp_path: Path) -> None:
    result = study("--help", cwd=tmp_path, COLUMNS="100")
    assert result.returncode == 0
    for option in ("--space", "--study", "--objective", "--storage", "--trials", "--seed", "--resume", "--dry-run"):
        assert option in result.stdout
    assert "examples:" in result.stdout
    assert "exit status:" in result.stdout


def test_dry_run_prints_what_a_person_would_run(tmp_path: Path) -> None:
    result = study("--space", "nccl.yaml", "--dry-run", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    commands = [line for line in result.stdout.splitlines() if line and not line.startswith("#")]
    assert commands[0] == (
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING SPT_NOENV=1 TUNER_NONCE=NONCE "
        "python3 -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp-size 8 --num-continuous-decode-steps 4 "
        "--disable-custom-all-reduce --mem-fraction-static 0.88 --trust-remote-code --host 127.0.0.1 --port 30000 "
        "--weight-version NONCE"
    )
    assert commands[1].startswith("NCCL_PROTO=LL ")
    assert commands[2].startswith("NCCL_ALGO=allreduce:tree ")
    assert not (tmp_path / "studies").exists()
