"""Whole studies as a person runs them: the command, the simulated host, Ray, SSH, restarts, the database."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import optuna
import pytest
from cli_helpers import Running, gone, study, write_study

from tuner.store.rows import Outcome
from tuner.store.store import Store
from tuner.values.launch import Role


def database(directory: Path) -> str:
    return f"sqlite:///{directory}/studies/tuner.db"


def check_clean_end(directory: Path, name: str, launches: int) -> None:
    """Nothing RUNNING, nothing overspent, no server left."""
    with closing(Store.open(database(directory))) as store:
        stored = store.study(name)
        assert stored is not None
        counts = store.counts(stored.id)
        nonces = [row.nonce for row in store.launches(stored.id)]
    assert counts.under_way == 0
    assert counts.spent <= launches
    trials = optuna.load_study(study_name=f"{name}/1-baseline", storage=database(directory)).trials
    assert {trial.state.name for trial in trials} <= {"COMPLETE", "WAITING"}  # some may not have had their turn
    assert [trial.number for trial in trials] == list(range(len(trials)))
    for nonce in nonces:
        assert gone(nonce, 0.0), f"a server of launch {nonce} is still there"


@pytest.mark.timeout(150)
def test_no_significant_difference_where_the_default_is_best(tmp_path: Path) -> None:
    write_study(tmp_path, tokens=200, launches=7)
    result = study("--study", "study.yaml", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Verdict: no significant difference." in result.stdout
    assert "Keep the launch that you have:" in result.stdout
    assert "SIMULATED" in result.stdout
    assert "optuna-dashboard sqlite:///studies/tuner.db" in result.stdout
    assert (tmp_path / "studies" / "short.md").read_text().startswith("<!-- written by")
    check_clean_end(tmp_path, "short", 7)


@pytest.mark.timeout(150)
def test_no_effect_where_nothing_matters(tmp_path: Path) -> None:
    write_study(tmp_path, host="{name: sim, simulated: flat}", tokens=200, launches=6)
    result = study("--study", "study.yaml", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "Verdict: no effect." in result.stdout


@pytest.mark.timeout(240)
def test_killed_and_interrupted_again_and_again(tmp_path: Path) -> None:
    """`kill -9` in three phases and Ctrl-C in a fourth, each time the same command again; at last by name alone."""
    write_study(tmp_path, launches=8)
    interrupted: list[str] = []
    for phase in ("start", "ready", "measure"):
        driver = Running.start("--study", "study.yaml", cwd=tmp_path)
        driver.wait_for("[2]")
        interrupted.append(wait_for_phase(tmp_path, phase))
        driver.kill()
    driver = Running.start("--study", "study.yaml", cwd=tmp_path)
    driver.wait_for("was under way: it is made again")
    driver.wait_for("[2]")
    second = study("--study", "study.yaml", cwd=tmp_path)  # it is told who works on it, and disturbs nothing
    assert second.returncode == 3, second.stderr
    assert f"pid {driver.process.pid}" in second.stderr
    interrupted.append(wait_for_phase(tmp_path, "measure"))
    for nonce in interrupted[:-1]:
        assert gone(nonce, 0.0), "what the dead drivers left was stopped before the next launch"
    driver.process.send_signal(signal.SIGINT)
    out, err = driver.process.communicate(timeout=40)
    assert driver.process.returncode == 130, err
    assert out == ""
    assert "Stopping the server" in err
    assert "can be resumed" in err
    assert gone(interrupted[-1], 0.0)
    with closing(Store.open(database(tmp_path))) as store:
        assert not store.open_launches(1)
        control = [row for row in store.launches(1) if row.role is Role.CONTROL]

    result = study("--resume", "short", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    check_clean_end(tmp_path, "short", 8)
    with closing(Store.open(database(tmp_path))) as store:
        rows = store.launches(1)
    assert [row for row in rows if row.role is Role.CONTROL] == control  # not repeated
    assert [row.nonce for row in rows if row.outcome is Outcome.INTERRUPTED] == interrupted
    again = {(row.trial, row.role, row.configuration) for row in rows if row.outcome is Outcome.MEASURED}
    for row in rows:
        if row.outcome is Outcome.INTERRUPTED:
            assert (row.trial, row.role, row.configuration) in again


def wait_for_phase(directory: Path, phase: str) -> str:
    """Returns while a launch is in the phase: its nonce."""
    for _ in range(600):
        with closing(Store.open(database(directory))) as store:
            for launch in store.open_launches(1):
                if any(row.phase.value == phase and row.ended_unix_s is None for row in store.phases(launch.id)):
                    return launch.nonce
        threading.Event().wait(0.02)
    raise AssertionError(f"no launch entered {phase}")


@contextmanager
def somebody_on_a_port() -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """A server of somebody else's, in a process of its own."""
    script = (
        "import http.server as h; s = h.HTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler);"
        "print(s.server_port, flush=True); s.serve_forever()"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline()), process
    finally:
        process.kill()
        process.wait()


def test_a_foreign_server_on_the_port_stops_the_study_at_once(tmp_path: Path) -> None:
    with somebody_on_a_port() as (port, process):
        write_study(tmp_path, host=f"{{name: sim, simulated: h200x2-shm, server_port: {port}}}")
        result = study("--study", "study.yaml", cwd=tmp_path)
        assert result.returncode == 3, result.stderr
        assert result.stderr.count(f"{port}") >= 1
        assert f"{process.pid}" in result.stderr
        assert process.poll() is None
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
    with closing(Store.open(database(tmp_path))) as store:
        (row,) = store.launches(1)  # after one, not n
        assert row.outcome is Outcome.LOST
        assert row.failure is not None
        assert row.failure.failure_class.value == "port taken"


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("{name: nowhere, hostname: host.invalid}", ["nowhere", "host.invalid"]),
        ("{name: sim, simulated: h100}", ["h100", "h200x2-shm"]),
    ],
)
def test_a_host_that_cannot_be_had(tmp_path: Path, host: str, said: list[str]) -> None:
    write_study(tmp_path, host=host)
    result = study("--study", "study.yaml", cwd=tmp_path)
    assert result.returncode in (2, 3), result.stderr
    assert "Traceback" not in result.stderr
    assert all(text in result.stderr for text in said), result.stderr


def test_a_changed_study_is_refused_with_a_diff(tmp_path: Path) -> None:
    nowhere = "{name: nowhere, hostname: 127.0.0.1, port: 1, user: nobody}"
    write_study(tmp_path, host=nowhere)
    assert study("--study", "study.yaml", cwd=tmp_path).returncode == 3  # begun; its host is not there
    space = tmp_path / "protocols.yaml"
    space.write_text(space.read_text().replace("[null, LL, LL128, Simple]", '[null, LL, LL128, Simple, "LL,LL128"]'))
    refused = study("--study", "study.yaml", cwd=tmp_path)
    assert refused.returncode == 2
    assert "LL,LL128" in refused.stderr
    assert "--accept-changes" in refused.stderr
    assert "--new" in refused.stderr
    write_study(tmp_path, host=nowhere, env=", NCCL_PROTO: Simple")
    another_launch = study("--study", "study.yaml", "--accept-changes", cwd=tmp_path)
    assert another_launch.returncode == 2  # what the old control gave does not answer for this one
    assert "engine.env.NCCL_PROTO" in another_launch.stderr
    assert "--new" in another_launch.stderr
