"""The contract of an engine and its adapter, kept by the stand-in and by a real SGLang alike.

Everything goes the way that a study's launches go: SSH, agent, supervisor, adapter, load client.
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from contract_answers import QUESTIONS, TOO_LONG, answer, differences, record, recorded_shapes, shape
from contract_bench import SETTINGS, START_S, Bench, Launched, can_bind, events, titled
from contract_foreign import ForeignServer

from tuner.errors import ForeignServer as ForeignServerFound
from tuner.errors import LaunchFailed
from tuner.launch import EXTRA_WINDOWS
from tuner.load.canary import ANSWER_TOKENS
from tuner.load.client import LoadClient
from tuner.testing import MemoryJournal
from tuner.values.configuration import Configuration
from tuner.values.failure import FailureClass
from tuner.values.launch import Phase
from tuner.values.measurement import METRICS
from tuner.values.workload import Workload

WORKLOAD = Workload(concurrency=2, prompt_words=40, output_tokens=48, windows=2, warm_up_windows=1)


@pytest.mark.asyncio(loop_scope="class")
class ServedContract:
    """What holds of a running server. Inherited by the tests of each engine, whose module gives the fixture `bench`."""

    may_differ: ClassVar[dict[str, dict[str, str]]] = {}
    """Question → difference in the shape of its answer → the reason why it may be so."""

    # ── Preflight, start, readiness ─────────────────────────────────────────────────────────────────────────────────

    async def test_preflight_reads_versions(self, bench: Bench) -> None:
        async with bench.session() as session:
            facts = await session.preflight()
        assert (facts.engine, facts.engine_version) == ("sglang", "0.5.17")
        assert facts.cpus >= 1 and facts.boot_id and facts.kernel

    async def test_ready_is_our_nonce_and_a_living_process(self, served: Launched) -> None:
        async with served.http as http:
            told = (await http.get("/model_info")).json()["weight_version"]
        assert told == served.command.nonce
        status = await served.session.status()
        assert status.alive and status.exit_status is None and not status.lease_lapsed
        assert served.bench.engine.stage_of(status.log_tail) == "ready"
        os.kill(served.identity.pid, 0)

    async def test_the_process_tree_is_one_session_of_titled_processes(self, served: Launched) -> None:
        found = served.processes()
        assert served.identity.pid in found
        schedulers = titled(found, served.bench.engine.worker_titles[0])
        assert schedulers and titled(found, "sglang::detokenizer"), found
        assert {os.getsid(pid) for pid in found if pid != _supervisor(found)} == {served.identity.pid}

    async def test_settings_are_in_effect_in_the_live_schedulers(self, served: Launched) -> None:
        effect = await served.session.took_effect(served.command, [name for name, _ in SETTINGS.env])
        assert effect.mismatches == ()
        assert effect.environment == (("NCCL_PROTO", "LL"),)
        assert set(effect.checked_pids) == set(titled(served.processes(), "sglang::scheduler"))
        info = dict(effect.server_info)
        assert (info["weight_version"], info["schedule_policy"]) == (served.command.nonce, "lpm")

    async def test_a_setting_that_is_not_in_effect_is_told(self, served: Launched) -> None:
        other = Configuration.of(env={"NCCL_PROTO": "Simple"}, args={"stream-interval": 4, "schedule-policy": "fcfs"})
        asked = served.bench.engine.command(
            served.bench.spec.launch, other, port=served.command.port, nonce=served.command.nonce
        )
        names = ["NCCL_PROTO", "stream-interval", "schedule-policy"]
        found = (await served.session.took_effect(asked, names)).mismatches
        assert {name for name in names for line in found if name in line} == set(names), found

    # ── Endpoints ───────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("name", QUESTIONS)
    async def test_shapes(self, served: Launched, name: str, request: pytest.FixtureRequest) -> None:
        async with served.http as http:
            found = shape(await answer(http, QUESTIONS[name]))
        if request.node.get_closest_marker("real_engine") and os.environ.get("TUNER_RECORD_SHAPES"):
            record(name, found)
        assert set(differences(recorded_shapes()[name], found)) == set(self.may_differ.get(name, ()))

    @pytest.mark.parametrize("path", ["/generate", "/v1/completions", "/v1/chat/completions"])
    async def test_streams_count_cumulatively_and_end(self, served: Launched, path: str) -> None:
        body: Any = {
            "/generate": {"text": "count", "sampling_params": {"max_new_tokens": 30, "ignore_eos": True}},
            "/v1/completions": {"model": "tiny", "prompt": "count", "max_tokens": 30, "ignore_eos": True},
            "/v1/chat/completions": {
                "model": "tiny",
                "messages": [{"role": "user", "content": "count"}],
                "max_tokens": 30,
                "ignore_eos": True,
            },
        }[path]
        if path != "/generate":
            body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        async with served.http as http:
            seen = [event async for event in events(http, path, body)]
        assert seen.pop() == "[DONE]"
        counted = [
            (event["meta_info"] if path == "/generate" else event["usage"])["completion_tokens"]
            for event in seen
            if path == "/generate" or event.get("usage")
        ]
        assert counted == sorted(counted) and counted[-1] == 30, counted
        # How often is not promised: a chat holds its event back until the text has a whole character more.
        assert len(set(counted)) >= 3, counted

    async def test_the_nonce_is_in_every_answer(self, served: Launched) -> None:
        sampling = {"max_new_tokens": 2, "ignore_eos": True}
        async with served.http as http:
            plain = (await http.post("/generate", json={"text": "a", "sampling_params": sampling})).json()
        assert plain["meta_info"]["weight_version"] == served.command.nonce

    async def test_too_long_a_prompt_is_an_abort_that_names_the_limit(self, served: Launched) -> None:
        async with served.http as http:
            first, *_ = [event async for event in events(http, "/generate", TOO_LONG)]
            plain = await http.post("/generate", json=TOO_LONG)
        finish = first["meta_info"]["finish_reason"]
        assert (finish["type"], finish["status_code"]) == ("abort", 400)
        words = "Input length (8190 tokens) exceeds the maximum allowed length (8186 tokens)."
        assert finish["message"].startswith(words)
        assert plain.status_code == 400 and words in plain.text

    async def test_flush_forgets_prompts(self, served: Launched) -> None:
        body = {"text": "a prompt that comes again and again " * 4, "sampling_params": {"max_new_tokens": 2}}

        async def cached(http: Any) -> int:
            return int((await http.post("/generate", json=body)).json()["meta_info"]["cached_tokens"])

        async with served.http as http:
            await cached(http)
            assert await cached(http) > 20
            assert (await http.post(served.bench.engine.flush_path)).status_code == 200
            assert await cached(http) == 0

    # ── Load ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize("endpoint", ["generate", "chat"])
    async def test_windows_are_valid_and_count_what_was_asked(self, served: Launched, endpoint: Any) -> None:
        workload = replace(WORKLOAD, endpoint=endpoint, seed=1 if endpoint == "chat" else 2)
        await served.session.window(workload, -1)
        # A busy machine may spoil one: a launch repeats it, and so does this.
        windows = [await served.session.window(workload, index) for index in range(1 + EXTRA_WINDOWS)]
        assert any(window.invalid == () for window in windows), windows[-1].invalid
        window = windows[-1]
        assert window.output_tok_s > 0
        for request in window.requests:
            assert (request.completion_tokens, request.finish_reason) == (WORKLOAD.output_tokens, "length")
            assert request.prompt_tokens >= WORKLOAD.prompt_words
            counts = [count for _, count in request.arrivals]
            assert counts == sorted(counts) and counts[-1] == WORKLOAD.output_tokens
        assert len({request.prompt for request in window.requests}) == WORKLOAD.concurrency
        lag = await served.session.tunnel_lag()
        assert lag is not None and lag.samples > 0

    async def test_the_servers_own_count_agrees(self, served: Launched) -> None:
        async def generated(http: Any) -> float:
            lines = (await http.get("/metrics")).text.splitlines()
            rows = [line for line in lines if line.startswith("sglang:generation_tokens_total{")]
            return sum(float(line.rsplit(" ", 1)[1]) for line in rows)

        client = LoadClient(f"http://127.0.0.1:{served.command.port}")
        async with served.http as http:
            before = await generated(http)
            window = await client.window(WORKLOAD, 7)
            await client.close()
            assert await generated(http) - before == sum(request.completion_tokens for request in window.requests)


@pytest.mark.asyncio(loop_scope="class")
class LaunchContract:
    """A launch of a study from its start to its end, and what may go wrong. Inherited in the same way."""

    async def test_a_launch_from_clean_to_gone_and_a_drained_stream(self, bench: Bench) -> None:
        """Measured; stopped in the middle of a stream, which ends whole; gone; the port free for the next launch."""
        async with bench.session() as session:
            target, notes = bench.target(session)
            server = await target.launch(SETTINGS)
            measured = await server.measure(WORKLOAD)
            names = {name for name, _ in measured.metrics}
            assert names >= {"output_tok_s", "ttft_p50_s", "itl_p50_s"} and names <= set(METRICS)
            assert len([window for window in notes.windows if not window.invalid]) == WORKLOAD.windows
            answers = notes.evidence["canaries"]
            assert all(len(each.token_ids) == len(each.logprobs) == ANSWER_TOKENS and each.text for each in answers)
            assert all(value is not None and value <= 0 for each in answers for value in each.logprobs)

            port, pid = notes.evidence["clean"].port, notes.evidence["identity"].pid
            launched = _launched(bench, session, notes)
            async with launched.http as http:
                body = {"text": "drain me", "sampling_params": {"max_new_tokens": 300, "ignore_eos": True}}
                stream = events(http, "/generate", body)
                await anext(stream)
                stopping = asyncio.create_task(server.stop())
                rest = [event async for event in stream]
            await stopping
            assert rest[-1] == "[DONE]"
            meta = rest[-2]["meta_info"]
            assert (meta["completion_tokens"], meta["finish_reason"]["type"]) == (300, "length")

            gone = notes.evidence["gone"]
            assert gone.gone and gone.left_pids == () and gone.port_free
            assert gone.exit_status == -9, "SGLang 0.5.17 ends its tree with KILL once it has drained"
            assert gone.killed_pids == (), "it ended by itself within its grace"
            assert bench.left() == {} and can_bind(port)
            assert not _alive(pid)
            phases = [
                Phase.CLEAN,
                Phase.START,
                Phase.READY,
                Phase.TOOK_EFFECT,
                Phase.WARM_UP,
                Phase.MEASURE,
                Phase.CANARIES,
                Phase.STOP,
            ]
            assert notes.phases == phases

    async def test_a_scheduler_killed_under_load_on_a_port_used_before(self, bench: Bench) -> None:
        """KILL from outside is nobody's configuration; what is left ends; the same port serves the next launch."""
        async with bench.serving() as launched:
            scheduler = titled(launched.processes(), "sglang::scheduler")[-1]
            load = asyncio.create_task(launched.session.window(replace(WORKLOAD, output_tokens=2000), 0))
            await launched.until_busy()
            os.kill(scheduler, signal.SIGKILL)
            with pytest.raises(LaunchFailed) as raised:
                await load
            failure = raised.value.failure
            assert failure.failure_class is FailureClass.KILLED
            assert failure.phase == Phase.MEASURE.value and failure.exit_status == -9
            assert "exit code -9" in failure.evidence and str(scheduler) in failure.evidence
            report = await launched.session.stop(10)
            assert report.gone and report.left_pids == ()
            assert launched.processes() == {}
            port = launched.command.port
        async with bench.started(port=port) as again:
            await again.session.wait_ready(START_S, START_S)
            async with again.http as http:
                assert (await http.get("/model_info")).json()["weight_version"] == again.command.nonce
            assert (await again.session.stop(0.0)).gone, "without a grace too"

    @pytest.mark.parametrize(
        ("args", "words"),
        [
            ({"no-such-flag": 1}, "error: unrecognized arguments: --no-such-flag 1"),
            ({"stream-interval": "often"}, "error: argument --stream-interval: invalid int value: 'often'"),
        ],
    )
    async def test_a_bad_flag(self, bench: Bench, args: dict[str, Any], words: str) -> None:
        async with bench.session() as session:
            target, notes = bench.target(session)
            with pytest.raises(LaunchFailed) as raised:
                await target.launch(Configuration.of(args=args))
        failure = raised.value.failure
        assert (failure.failure_class, failure.exit_status) == (FailureClass.BAD_FLAG, 2)
        assert failure.evidence.endswith(words) and failure.phase == Phase.READY.value
        assert notes.evidence["gone"].gone

    async def test_a_port_taken_before_the_start(self, bench: Bench) -> None:
        with ForeignServer() as foreign:
            async with bench.session() as session:
                target, notes = bench.target(session, foreign.port)
                with pytest.raises(ForeignServerFound) as raised:
                    await target.launch(Configuration.of())
                failure = raised.value.failure
                assert (failure.failure_class, failure.phase) == (FailureClass.PORT_TAKEN, Phase.START.value)
                assert str(foreign.port) in failure.evidence
                assert "identity" not in notes.evidence, "nothing was started"
            assert foreign.is_untouched() and foreign.seen == []

    @pytest.mark.parametrize("silent", [False, True], ids=["answers", "silent"])
    async def test_a_port_taken_while_the_server_loads(self, bench: Bench, silent: bool) -> None:
        async with bench.started() as launched:
            with ForeignServer(launched.command.port, silent=silent) as foreign:
                with pytest.raises(ForeignServerFound) as raised:
                    await launched.session.wait_ready(START_S, START_S)
                failure = raised.value.failure
                assert (failure.failure_class, failure.phase) == (FailureClass.PORT_TAKEN, Phase.READY.value)
                if silent:  # told by the server itself, which could not bind
                    assert "error while attempting to bind on address" in failure.evidence
                    assert failure.exit_status == 3
                report = await launched.session.stop(10)
                assert report.gone and not can_bind(foreign.port), "of ours nothing is left on the port"
                assert foreign.is_untouched()
            assert launched.processes() == {}


def _launched(bench: Bench, session: Any, notes: MemoryJournal) -> Launched:
    command = bench.engine.command(bench.spec.launch, SETTINGS, port=notes.evidence["clean"].port, nonce=notes.nonce)
    return Launched(bench, session, command, notes.evidence["identity"])


def _supervisor(processes: dict[int, str]) -> int | None:
    return next((pid for pid, words in processes.items() if "supervisor" in words), None)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
