"""The same study on a host behind a real OpenSSH sshd, its results in a real PostgreSQL."""

from __future__ import annotations

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
    with closing(Store.open(postgres_url)) as store:
        stored = store.study("behind-sshd")
        assert stored is not None
        assert store.counts(stored.id).spent == 6
        rows = store.launches(stored.id)
        secret_url = store.secret_url
    assert {row.host for row in rows} == {"rack1"}
    trials = optuna.load_study(study_name="behind-sshd/1-baseline", storage=secret_url).trials
    assert {trial.state.name for trial in trials} <= {
        "COMPLETE",
        "WAITING",
    }  # what was to be tried first may still wait
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
