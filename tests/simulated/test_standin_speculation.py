"""Speculation of the stand-in as its clients see it: counts, speeds, and a tree that it cannot capture."""

from __future__ import annotations

import random

import pytest
from simulated_server import PRESET, Host, StandIn

from tuner.simulated.machine import machine
from tuner.simulated.speculation import BROKEN, GOOD, WEAK, Drafter, Speculation
from tuner.simulated.timing import StepTimes

PROMPT = "The sea was calm and the old man said that the sea was as calm as it had been when he was a boy."


def start(host: Host, draft: str, steps: int = 3, topk: int = 1, tokens: int = 4, **env: str) -> StandIn:
    flags = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", draft, "--random-seed", "5")
    counts = (steps, topk, tokens)
    names = ("num-steps", "eagle-topk", "num-draft-tokens")
    triple = [word for name, n in zip(names, counts, strict=True) for word in (f"--speculative-{name}", str(n))]
    return host.start(*flags, *triple, environment=env)


@pytest.mark.parametrize(("draft", "drafter"), [("/m/eagle3", GOOD), ("/m/weak", WEAK), ("/m/broken", BROKEN)])
def test_the_accept_length_is_the_drafters_and_the_speed_follows(host: Host, draft: str, drafter: Drafter) -> None:
    server = start(host, draft).ready()
    server.request("/flush_cache", {})
    chunks = server.generate(PROMPT, 400)
    meta = chunks[-1][1]["meta_info"]
    model = Speculation(3, 1, 4, drafter)
    assert meta["spec_accept_length"] == pytest.approx(model.mean_length(), abs=0.25)
    assert meta["spec_verify_ct"] == pytest.approx(400 / meta["spec_accept_length"])
    internal = server.json("/server_info")["internal_states"][0]
    assert internal["avg_spec_accept_length"] == pytest.approx(meta["spec_accept_length"], rel=0.02)
    counts = [chunk["meta_info"]["completion_tokens"] for _, chunk in chunks]
    assert len(counts) == len(set(counts)), "the tokens of a cycle come together"

    args: dict[str, str | bool] = {"speculative-algorithm": "EAGLE3", "speculative-draft-model-path": draft}
    cycle_s = StepTimes(machine(PRESET), {}, args, seed=0, noise=0.0).steady_step_s(1)
    taken_s = chunks[-1][0] - chunks[0][0]
    # Not quicker than the model, but for a first chunk that came late; how much slower is up to this machine's load.
    assert taken_s > 0.85 * (meta["spec_verify_ct"] - 1) * cycle_s


def test_a_seed_repeats_the_acceptance(host: Host) -> None:
    counts = []
    for _ in range(2):
        server = start(host, "/m/eagle3").ready()
        counts.append(server.generate(PROMPT, 100)[-1][1]["meta_info"]["spec_verify_ct"])
        host.end()
    assert counts[0] == counts[1]


def test_random_tokens_flatter_a_drafter(host: Host) -> None:
    server = start(host, "/m/weak").ready()
    draws = random.Random(3)
    ids = [draws.randrange(5000, 150_000) for _ in range(100)]
    body = {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": 400, "ignore_eos": True}}
    flattered = server.json("/generate", body)["meta_info"]["spec_accept_length"]
    honest = server.generate(PROMPT, 400)[-1][1]["meta_info"]["spec_accept_length"]
    assert flattered > 1.2 * honest
    assert flattered == pytest.approx(Speculation(3, 1, 4, WEAK).mean_length(inflated=True), abs=0.25)


def test_a_simulated_accept_length_wins_over_the_drafter(host: Host) -> None:
    server = start(host, "/m/broken", SGLANG_SIMULATE_ACC_LEN="3.5").ready()
    meta = server.generate(PROMPT, 200)[-1][1]["meta_info"]
    assert meta["spec_accept_length"] == pytest.approx(3.5, abs=0.25)


def test_a_tree_that_is_too_large_ends_the_start_at_graph_capture(host: Host) -> None:
    server = start(host, "/m/eagle3", steps=2, topk=2, tokens=8)
    assert server.ended() != 0
    assert "Capture cuda graph failed: selected index k out of range" in server.log
    assert "fired up" not in server.log


def test_the_drafter_shows_in_the_log_and_takes_of_the_cache(host: Host) -> None:
    server = start(host, "/m/eagle3").ready()
    assert "type=LlamaForCausalLMEagle3" in server.log
    assert "Capture draft decode CUDA graph begin. backend=full, num_tokens_per_req=1" in server.log
    assert "Capture draft extend CUDA graph begin. backend=full, num_tokens_per_req=4" in server.log
    info = server.json("/server_info")
    plain = host.start().ready().json("/server_info")
    assert info["max_total_num_tokens"] < plain["max_total_num_tokens"]
    assert info["max_running_requests"] == 48
