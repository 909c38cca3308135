"""The contract of `tuner.ports.HostSteps`, kept by the shipped double and by the SSH session alike."""

from __future__ import annotations

import secrets

import pytest

from tuner.engines.sglang import SGLang
from tuner.errors import LaunchFailed
from tuner.load.canary import compare
from tuner.ports import HostSteps
from tuner.values.configuration import Configuration
from tuner.values.failure import FailureClass
from tuner.values.launch import LaunchBase, LaunchCommand, Phase
from tuner.values.measurement import Window
from tuner.values.workload import Workload

BASE = LaunchBase(command=("python3", "-m", "sglang.launch_server"), args=(("model-path", "/m"), ("tp-size", 2)))
RING = Configuration.of(env={"NCCL_ALGO": "Ring"})
REFUSED = Configuration.of(env={"NCCL_ALGO": "Tree"})
"""What NCCL 2.24 and later refuse: nothing is left for the other collectives."""
WORKLOAD = Workload(concurrency=2, output_tokens=24, prompt_words=20)


def command(configuration: Configuration, port: int) -> LaunchCommand:
    return SGLang().command(BASE, configuration, port=port, nonce=f"contract-{secrets.token_hex(8)}")


def prompts(window: Window) -> set[str]:
    return {request.prompt for request in window.requests}


@pytest.mark.asyncio(loop_scope="class")
class HostStepsContract:
    """Inherited by the tests of each implementation, whose module gives the fixture `steps`."""

    async def test_preflight_reads_the_same_facts_again(self, steps: HostSteps) -> None:
        facts = await steps.preflight()
        assert (facts.engine, facts.engine_version) == ("sglang", "0.5.17")
        assert len(facts.gpus) == 2 and len({gpu.uuid for gpu in facts.gpus}) == 2
        assert all(0 <= gpu.memory_used_bytes <= gpu.memory_total_bytes for gpu in facts.gpus)
        again = await steps.preflight()
        assert (again.boot_id, again.links) == (facts.boot_id, facts.links)

    async def test_before_a_start_nothing_lives_and_a_stop_is_safe(self, steps: HostSteps) -> None:
        assert not (await steps.status()).alive
        assert (await steps.stop(1.0)).gone
        assert await steps.tunnel_lag() is None

    async def test_the_steps_of_a_launch_in_order(self, steps: HostSteps) -> None:
        clean = await steps.clean(None, [])
        assert 0 < clean.port < 65536 and clean.port_holder == "" and len(clean.gpu_memory_used_bytes) == 2
        asked = command(RING, clean.port)
        identity = await steps.start(asked)
        assert identity.nonce == asked.nonce and identity.pid > 0 and identity.start_ticks > 0 and identity.boot_id
        await steps.wait_ready(60, 60)
        effect = await steps.took_effect(asked, ["NCCL_ALGO"])
        assert effect.mismatches == () and effect.environment == (("NCCL_ALGO", "Ring"),) and effect.checked_pids
        status = await steps.status()
        assert status.alive and status.exit_status is None and not status.lease_lapsed

        seen: set[str] = set()
        for index in (-1, 0, 1):
            window = await steps.window(WORKLOAD, index)
            assert window.index == index and window.duration_s > 0 and window.output_tok_s > 0
            assert len(window.requests) == WORKLOAD.concurrency
            for request in window.requests:
                assert (request.completion_tokens, request.finish_reason, request.error) == (24, "length", "")
                times, counts = zip(*request.arrivals, strict=True)
                assert list(times) == sorted(times) and list(counts) == sorted(counts) and counts[-1] == 24
            assert not seen & prompts(window), "each window has prompts of its own"
            seen |= prompts(window)

        first, second = await steps.canaries(), await steps.canaries()
        assert len(first) == 8 and all(each.usable and len(each.logprobs) == len(each.token_ids) for each in first)
        assert compare(first, second).corrupted == "" and len(compare(first, second).comparisons) == 8

        gone = await steps.stop(10)
        assert gone.gone and gone.left_pids == () and len(gone.gpu_memory_used_bytes) == 2
        assert (await steps.stop(10)).gone, "a second stop changes nothing"
        assert not (await steps.status()).alive

    async def test_a_failed_start_tells_why_and_the_next_one_gets_its_port_and_the_same_prompts(
        self, steps: HostSteps
    ) -> None:
        port = (await steps.clean(None, [])).port
        failed = command(REFUSED, port)
        await steps.start(failed)
        with pytest.raises(LaunchFailed) as raised:
            await steps.wait_ready(60, 60)
        failure = raised.value.failure
        assert (failure.failure_class, failure.phase) == (FailureClass.NCCL_REFUSED, Phase.READY.value)
        assert failure.evidence
        assert (await steps.stop(1.0)).gone

        windows = []
        for _ in range(2):
            clean = await steps.clean(port, [failed.nonce])
            assert (clean.port, clean.port_holder) == (port, "")
            await steps.start(command(RING, port))
            await steps.wait_ready(60, 60)
            windows.append(await steps.window(WORKLOAD, 0))
            assert (await steps.stop(10)).gone
        assert prompts(windows[0]) == prompts(windows[1]), "launches are compared on the same prompts"
