"""The same study on a host behind a real OpenSSH sshd, its results in a real PostgreSQL."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from cli_helpers import SPACE, STUDY, gone, study
from postgres_server import postgres, postgres_url  # noqa: F401 - fixtures
from sshd_server import MISSING, Sshd, find_sshd

from tuner.simulated.machine import machine
from tuner.simulated.state import HostState
from tuner.store.store import Store


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    """A real sshd whose user has the stand-in installed as ``sglang``, and stub GPUs."""
    if find_sshd() is None:
        pytest.skip(MISSING)
    preset = machine("pcie8-failed-search")
    server = Sshd.make(tmp_path / "sshd")
    server.env = HostState.create(preset, tmp_path / "state").environment(preset, {})
    server.start()
    yield server
    server.stop()


def write(directory: Path, sshd: Sshd, **changes: object) -> None:
    where = {
        "name": "rack1",
        "hostname": "127.0.0.1",
        "port": sshd.port,
        "key_file": sshd.home / "user_key",
        "known_hosts_file": sshd.known_hosts,
    } | changes
    host = "{" + ", ".join(f"{key}: {value}" for key, value in where.items()) + "}"
    (directory / "protocols.yaml").write_text(SPACE)
    (directory / "study.yaml").write_text(
        STUDY.format(name="behind-sshd", host=host, gpus=8, tokens=24, launches=6, lost=3, env="")
    )


@pytest.mark.timeout(200)
def test_a_study_over_a_real_sshd_into_postgresql(tmp_path: Path, sshd: Sshd, postgres_url: str) -> None:  # noqa: F811
    write(tmp_path, sshd)
    result = study("--study", "study.yaml", "--storage", postgres_url, cwd=tmp_path, timeout=150)
    assert result.returncode == 0, result.stderr
    assert "rack1: SIMULATED pcie8-failed-search: 8 × NVIDIA RTX PRO 6000" in result.stderr
    assert "Verdict: faster." in result.stdout
    assert re.search(r"1\.[4-9]\d* × \(95% interval 1\.\d+ to 1\.\d+, n = 2 \+ 2 launches\)", result.stdout)
    (line,) = [line.strip() for line in result.stdout.splitlines() if "sglang.launch_server" in line]
    words = shlex.split(line)  # to paste: the environment, the arguments, and nothing of the tuner's own
    assert "NCCL_P2P_DISABLE=1" in words
    assert [word for word in words if word.startswith("NCCL_PROTO=")] in (["NCCL_PROTO=LL"], ["NCCL_PROTO=LL128"])
    assert words[words.index("--tp-size") + 1] == "8"
    assert "TUNER_NONCE" not in line
    # Progress goes to stderr: launches, control, best so far, time left.
    assert re.search(r"launches \d/6 · control [\d.]+ tok/s · best so far .* left", result.stderr)
    assert "s3cret" not in result.stdout + result.stderr

    again = study("--study", "study.yaml", "--storage", postgres_url, cwd=tmp_path)
    assert again.returncode == 0
    assert again.stdout == result.stdout  # a finished study prints its result; no host is asked
    assert "nothing was run" in again.stderr
    assert study("--resume", "behind-sshd", "--storage", postgres_url, cwd=tmp_path).stdout == result.stdout

    with closing(Store.open(postgres_url)) as store:
        stored = store.study("behind-sshd")
        assert stored is not None
        assert store.counts(stored.id).spent == 6
        rows = store.launches(stored.id)
        secret_url = store.secret_url
    assert {row.host for row in rows} == {"rack1"}
    trials = optuna.load_study(study_name="behind-sshd/1-baseline", storage=secret_url).trials
    assert {trial.state.name for trial in trials} <= {"COMPLETE", "WAITING"}  # some may not have had their turn
    for row in rows:
        assert gone(row.nonce, 0.0)


def test_a_host_key_that_is_not_known(tmp_path: Path, sshd: Sshd) -> None:
    empty = tmp_path / "no_hosts"
    empty.touch()
    write(tmp_path, sshd, known_hosts_file=empty)
    result = study("--study", "study.yaml", cwd=tmp_path)
    assert result.returncode == 3, result.stderr
    assert "rack1" in result.stderr
    assert "known_hosts" in result.stderr or "ssh-keyscan" in result.stderr
    assert "SHA256:" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_key_that_the_host_does_not_accept(tmp_path: Path, sshd: Sshd) -> None:
    (sshd.home / "authorized_keys").write_text("")
    write(tmp_path, sshd)
    result = study("--study", "study.yaml", cwd=tmp_path)
    assert result.returncode == 3, result.stderr
    assert str(sshd.home / "user_key") in result.stderr
    assert "Traceback" not in result.stderr
