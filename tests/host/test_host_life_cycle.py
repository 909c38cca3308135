"""The life of a server on a host behind a real sshd: start, ready, in effect, measured, stopped, proven gone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from host_engine import launch
from host_helpers import MakeSession, alive
from sshd_server import Sshd

from tuner.errors import HostRefused, LaunchFailed
from tuner.values.canary import CanaryAnswer
from tuner.values.failure import FailureClass
from tuner.values.launch import LaunchBase, LaunchCommand
from tuner.values.measurement import RequestSample, Window
from tuner.values.study import EngineSpec
from tuner.values.workload import Workload


@pytest.fixture
def pids_file(tmp_path: Path) -> Path:
    return tmp_path / "pids"


async def test_start_ready_stop_and_everything_gone(
    make_session: MakeSession, nonce: str, sshd: Sshd, pids_file: Path
) -> None:
    session = make_session()
    facts = await session.preflight()
    assert facts.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    clean = await session.clean(None, [])
    assert clean.port_holder == ""
    command = launch(clean.port, nonce, "--workers", "2", "--pids", str(pids_file))
    identity = await session.start(command)
    await session.wait_ready(20, 20)
    pids = json.loads(pids_file.read_text())
    assert pids[0] == identity.pid and len(pids) == 3 and all(map(alive, pids))
    assert (await session.status()).alive

    report = await session.stop(5)
    assert report.gone and report.exit_status == 0 and report.killed_pids == (), report
    assert not any(map(alive, pids))
    assert (sshd.records / nonce / "ended.json").exists()
    assert "serving" in "".join(path.read_text() for path in (sshd.records / nonce / "log").iterdir())


async def test_children_that_hide_in_every_way_are_found(
    make_session: MakeSession, nonce: str, pids_file: Path, port: int
) -> None:
    session = make_session()
    hidden = ("--escapees", "2", "--retitled", "2", "--workers", "1", "--child-session")
    await session.start(launch(port, nonce, *hidden, "--pids", str(pids_file)))
    await session.wait_ready(20, 20)
    pids = json.loads(pids_file.read_text())
    assert len(pids) == 6 and all(map(alive, pids))
    report = await session.stop(5)
    assert report.gone and not any(map(alive, pids))


async def test_a_server_that_ignores_term_is_killed_after_the_grace(
    make_session: MakeSession, nonce: str, pids_file: Path, port: int
) -> None:
    session = make_session()
    identity = await session.start(launch(port, nonce, "--ignore-term", "--pids", str(pids_file)))
    await session.wait_ready(20, 20)
    report = await session.stop(0.5)
    assert report.gone and report.exit_status == -9 and report.killed_pids == (identity.pid,)
    assert report.took_s >= 0.5


async def test_a_server_gets_its_grace_to_drain(make_session: MakeSession, nonce: str, port: int) -> None:
    session = make_session()
    await session.start(launch(port, nonce, "--drain-s", "1.0"))
    await session.wait_ready(20, 20)
    report = await session.stop(10)
    assert report.gone and report.exit_status == 0 and report.killed_pids == ()
    assert 1.0 <= report.took_s < 5


async def test_stop_is_safe_before_a_start_and_twice(make_session: MakeSession, nonce: str, port: int) -> None:
    session = make_session()
    assert (await session.stop(5)).gone
    await session.start(launch(port, nonce))
    assert (await session.stop(5)).gone
    assert (await session.stop(5)).gone
    assert not (await session.status()).alive


async def test_a_stopped_nonce_is_never_started_again(make_session: MakeSession, nonce: str, port: int) -> None:
    """A start that was on its way when its driver died must not come up after the clean-up."""
    first, second = make_session(), make_session()
    await first.clean(port, [nonce])
    with pytest.raises(Exception, match=r"was stopped before it started"):
        await second.start(launch(port, nonce))
    assert (await second.stop(1)).gone


async def test_a_server_that_exits_is_classified_with_its_status_and_log(
    make_session: MakeSession, nonce: str, port: int
) -> None:
    session = make_session()
    await session.start(launch(port, nonce, "--exit-code", "3"))
    with pytest.raises(LaunchFailed) as raised:
        await session.wait_ready(20, 20)
    assert raised.value.failure.exit_status == 3
    assert raised.value.failure.evidence == "fatal: told to exit"
    assert (await session.stop(5)).exit_status == 3


async def test_a_program_that_is_not_there_says_so(make_session: MakeSession, nonce: str, port: int) -> None:
    session = make_session()
    await session.start(LaunchCommand(("/no/such/program",), (), port, nonce))
    with pytest.raises(LaunchFailed, match=r"cannot execute '/no/such/program'.*No such file") as raised:
        await session.wait_ready(20, 20)
    assert raised.value.failure.exit_status == 127
    await session.stop(5)


async def test_deadlines_of_a_start_end_in_a_hang_with_the_last_line(
    make_session: MakeSession, nonce: str, port: int
) -> None:
    session = make_session()
    await session.start(launch(port, nonce, "--hang"))
    with pytest.raises(
        LaunchFailed, match=r"log has been silent for 0.4 s; the last line of its log: loading"
    ) as raised:
        await session.wait_ready(20, 0.4)
    assert raised.value.failure.failure_class is FailureClass.HANG_START
    with pytest.raises(LaunchFailed, match=r"not ready 0.5 s after its start"):
        await session.wait_ready(0.5, 20)
    assert (await session.stop(5)).gone


async def test_a_slow_start_that_logs_is_no_hang(make_session: MakeSession, nonce: str, port: int) -> None:
    session = make_session()
    await session.start(launch(port, nonce, "--load-s", "1.0"))
    await session.wait_ready(20, 5)
    await session.stop(5)


async def test_the_environment_goes_by_a_private_file_and_never_by_a_command_line(
    make_session: MakeSession, nonce: str, sshd: Sshd, port: int
) -> None:
    secret = f"hush-{nonce[::-1]}"
    session = make_session()
    seen: list[str] = []
    watching = True

    async def watch() -> None:
        while watching:
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    words = path.read_bytes()
                except OSError:
                    continue
                if secret.encode() in words:
                    seen.append(words.decode())
            await asyncio.sleep(0)

    watcher = asyncio.create_task(watch())
    identity = await session.start(launch(port, nonce, env={"API_TOKEN": secret, "ODD": "a 'b' \"c\" $d `e`\nf"}))
    await session.wait_ready(20, 20)
    watching = False
    await watcher
    assert seen == []

    environment = Path(f"/proc/{identity.pid}/environ").read_bytes().split(b"\0")
    assert f"API_TOKEN={secret}".encode() in environment
    assert b"ODD=a 'b' \"c\" $d `e`\nf" in environment
    record = sshd.records / nonce
    assert not (record / "launch.json").exists()
    assert stat.S_IMODE(sshd.records.stat().st_mode) == 0o700
    for path in [record, *record.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
        assert path.is_dir() or secret not in path.read_text()
    await session.stop(5)


async def test_what_took_effect_is_read_from_the_workers(
    make_session: MakeSession, nonce: str, pids_file: Path, port: int
) -> None:
    session = make_session()
    command = launch(port, nonce, "--workers", "2", "--pids", str(pids_file), env={"NCCL_ALGO": "Ring"})
    await session.start(command)
    await session.wait_ready(20, 20)
    effect = await session.took_effect(command, ["NCCL_ALGO"])
    assert effect.checked_pids == tuple(json.loads(pids_file.read_text())[1:])
    assert effect.environment == (("NCCL_ALGO", "Ring"),) and effect.mismatches == ()
    info = dict(effect.server_info)
    assert info["api_key"] == "***" and str(port) in info["argv"]

    other = replace(command, env=(("NCCL_ALGO", "Tree"),))
    assert (await session.took_effect(other, ["NCCL_ALGO"])).mismatches == ("NCCL_ALGO",)
    await session.stop(5)


async def test_workers_that_hide_their_environment_are_no_proof(
    make_session: MakeSession, nonce: str, port: int
) -> None:
    session = make_session()
    command = launch(port, nonce, "--retitled", "1")
    await session.start(command)
    await session.wait_ready(20, 20)
    effect = await session.took_effect(command, ["NCCL_ALGO"])
    assert "cannot be read" in effect.mismatches[0] and effect.checked_pids == ()
    await session.stop(5)


class GetLoad:
    """A load of plain GETs through the tunnel, in place of streams."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url

    async def window(self, workload: Workload, index: int) -> Window:
        error, body = "", ""
        try:
            body = await asyncio.to_thread(self._get)
        except OSError as failure:
            error = str(failure)
        await asyncio.sleep(0.3)
        sample = RequestSample(body, 0.0, 1, 0, 1, (), "length", error=error)
        return Window(index, 0.0, 0.3, 1.0, (sample,), 0.0, 0.0)

    async def canaries(self) -> tuple[CanaryAnswer, ...]:
        return (CanaryAnswer("nonce", (), (), await asyncio.to_thread(self._get)),)

    def _get(self) -> str:
        with urllib.request.urlopen(f"{self.base_url}/nonce", timeout=5) as answer:
            return str(answer.read().decode())

    async def close(self) -> None:
        pass


async def test_windows_run_through_the_tunnel_and_its_lag_is_measured(
    make_session: MakeSession, nonce: str, port: int
) -> None:
    session = make_session(load=GetLoad)
    await session.start(launch(port, nonce))
    await session.wait_ready(20, 20)
    assert await session.tunnel_lag() is None
    window = await session.window(Workload(), 0)
    assert window.index == 0 and window.requests[0].prompt == nonce
    lag = await session.tunnel_lag()
    assert lag is not None and lag.samples >= 4 and 0 < lag.p50_s <= lag.p99_s < 0.5
    await session.stop(5)
    assert await session.tunnel_lag() == lag


async def test_canaries_go_through_the_tunnel_and_what_fails_is_asked_again(
    make_session: MakeSession, nonce: str, port: int
) -> None:
    asked: list[str] = []

    class Hiccup(GetLoad):
        async def canaries(self) -> tuple[CanaryAnswer, ...]:
            asked.append(self.base_url)
            (answer,) = await super().canaries()
            return (replace(answer, error="HTTP 503: a hiccup") if len(asked) in wrong else answer,)

    session = make_session(load=Hiccup, death_watch_s=0.1)
    await session.start(launch(port, nonce))
    await session.wait_ready(20, 20)
    wrong = {1}
    (answer,) = await session.canaries()
    assert (answer.text, answer.error, len(asked)) == (nonce, "", 2)
    wrong = {3, 4}
    (answer,) = await session.canaries()
    assert (answer.error, len(asked)) == ("HTTP 503: a hiccup", 4), "an error that stays is the answer"
    await session.stop(5)


async def test_a_server_that_dies_at_the_canaries_is_found_dead(
    make_session: MakeSession, nonce: str, port: int
) -> None:
    victim: list[int] = []

    class Deadly(GetLoad):
        async def canaries(self) -> tuple[CanaryAnswer, ...]:
            os.kill(victim[0], signal.SIGSEGV)
            return (CanaryAnswer("c", (), (), "", "the connection broke"),)

    session = make_session(load=Deadly)
    victim.append((await session.start(launch(port, nonce))).pid)
    await session.wait_ready(20, 20)
    with pytest.raises(LaunchFailed) as raised:
        await session.canaries()
    assert raised.value.failure.exit_status == -11 and raised.value.failure.phase == "canaries"
    await session.stop(5)


async def test_a_server_that_dies_under_load_ends_the_window(make_session: MakeSession, nonce: str, port: int) -> None:
    victim: list[int] = []

    class Slow(GetLoad):
        async def window(self, workload: Workload, index: int) -> Window:
            await asyncio.to_thread(self._get)
            os.kill(victim[0], signal.SIGSEGV)
            await asyncio.sleep(60)
            raise AssertionError

    session = make_session(load=Slow)
    victim.append((await session.start(launch(port, nonce))).pid)
    await session.wait_ready(20, 20)
    with pytest.raises(LaunchFailed) as raised:
        await asyncio.wait_for(session.window(Workload(), 2), 10)
    assert raised.value.failure.exit_status == -11 and raised.value.failure.phase == "measure"
    await session.stop(5)


async def test_a_server_that_lives_but_answers_nothing_hangs(make_session: MakeSession, nonce: str, port: int) -> None:
    class Silent(GetLoad):
        async def window(self, workload: Workload, index: int) -> Window:
            sample = RequestSample("p", 0.0, 0, 0, 0, (), "", error="nothing came for 0.5 s")
            return Window(index, 0.0, 0.5, 0.0, (sample,), 0.0, 0.0)

    session = make_session(load=Silent)
    await session.start(launch(port, nonce))
    await session.wait_ready(20, 20)
    with pytest.raises(LaunchFailed, match=r"nothing came for 0.5 s") as raised:
        await session.window(Workload(request_timeout_s=0.5), -1)
    assert raised.value.failure.failure_class is FailureClass.HANG_RUN and raised.value.failure.phase == "warm-up"
    await session.stop(5)


async def test_preflight_reads_the_versions_that_the_servers_python_has(
    make_session: MakeSession, spec: EngineSpec
) -> None:
    import ray

    session = make_session(spec=replace(spec, launch=LaunchBase(command=(sys.executable, "-m", "http.server"))))
    facts = await session.preflight()
    assert facts.engine_version is not None and facts.nccl_version == ray.__version__
    assert facts.cpus >= 1 and facts.name == "gpu1" and facts.simulated is None


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("/no/such/python", "-m", "http.server"), "'/no/such/python' is not on the PATH"),
        ((sys.executable, "-m", "no_such_module.server"), "small is not installed.*finds no module"),
    ],
)
async def test_preflight_refuses_a_launch_command_that_cannot_work(
    make_session: MakeSession, spec: EngineSpec, command: tuple[str, ...], words: str
) -> None:
    with pytest.raises(HostRefused, match=words):
        await make_session(spec=replace(spec, launch=LaunchBase(command=command))).preflight()
