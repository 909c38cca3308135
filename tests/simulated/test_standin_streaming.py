"""Tokens of the stand-in: counts, texts, and their times against the performance model."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
from simulated_server import PRESET, Host, StandIn

from tuner.simulated.machine import machine
from tuner.simulated.timing import StepTimes

TOKENS = 240
LATE = 1e-3


def test_counts_text_and_ids_are_cumulative(served: StandIn) -> None:
    chunks = [chunk for _, chunk in served.generate("count up", 40)]
    counts = [chunk["meta_info"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(set(counts))
    assert counts[0] == 1
    assert counts[-1] == 40
    for before, after in itertools.pairwise(chunks):
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
    assert [len(chunk["output_ids"]) for chunk in chunks] == counts
    assert chunks[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 40}


def test_answers_are_deterministic_in_the_prompt(served: StandIn) -> None:
    one, two, other = (served.generate(text, 20)[-1][1]["text"] for text in ("same", "same", "different"))
    assert one == two
    assert one != other


def test_log_probabilities_are_there_for_whoever_asks(served: StandIn) -> None:
    """In SGLang's form: [log-probability, token id, text or null] for each token of the answer, none of the prompt."""
    body: dict[str, Any] = {"text": "same", "sampling_params": {"temperature": 0, "max_new_tokens": 20}}
    plain = served.json("/generate", body)
    assert not any("logprob" in key for key in plain["meta_info"])
    asked, again = (served.json("/generate", {**body, "return_logprob": True}) for _ in range(2))
    meta = asked["meta_info"]
    triples = meta["output_token_logprobs"]
    assert asked["text"] == plain["text"] and meta["input_token_logprobs"] == []
    assert [token for _, token, _ in triples] == asked["output_ids"] == plain["output_ids"]
    assert meta["output_token_logprobs_length"] == len(triples) == 20
    assert all(value < 0 and text is None for value, _, text in triples)
    assert again["meta_info"]["output_token_logprobs"] == triples
    with_text = served.json("/generate", {**body, "return_logprob": True, "return_text_in_logprobs": True})
    assert "".join(text for _, _, text in with_text["meta_info"]["output_token_logprobs"]) == plain["text"]


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [("What is 17 + 25?", " 42."), ("The capital city of France is", " Paris."), ("6 x 7 =", " 42.")],
)
def test_it_knows_a_little_and_ends_by_itself(served: StandIn, prompt: str, answer: str) -> None:
    result = served.json("/generate", {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 64}})
    assert result["text"] == answer
    assert result["meta_info"]["finish_reason"]["type"] == "stop"


def test_fresh_text_hits_the_cache_by_its_first_tokens_only(served: StandIn) -> None:
    served.generate("Alpha beta gamma one", 2)
    meta = served.generate("Quite another text with no common word", 2)[-1][1]["meta_info"]
    assert meta["cached_tokens"] <= 4
    assert meta["prompt_tokens"] > 6


def drift(server: StandIn, prompt: str, step_s: float) -> float:
    """How much longer than modelled a stream took, as a fraction.

    What delays a chunk on its way through three busy processes only ever adds, so the earliest of a few chunks counts,
    at the beginning and at the end. A stream that the stand-in itself calls late is tried again.
    """
    for attempt in range(8):
        chunks = server.generate(f"{prompt} {attempt}", TOKENS)
        late = server.json("/server_info")["internal_states"][0]["simulated_lateness"]
        assert late["steps"] == TOKENS
        if late["late_fraction"] < LATE / 4:
            break
    else:
        pytest.skip("this machine is too busy: the stand-in was late in every attempt")
    delays: list[float] = [at - chunk["meta_info"]["completion_tokens"] * step_s for at, chunk in chunks]
    edge = len(delays) // 5
    return (min(delays[-edge:]) - min(delays[:edge])) / (TOKENS * 0.8 * step_s)


def test_without_noise_launches_agree_with_the_model_and_so_with_each_other(host: Host) -> None:
    step_s = StepTimes(machine(PRESET), {}, {}, seed=0, noise=0.0).steady_step_s(1)
    for prompt in ("first launch", "second launch"):
        server = host.start().ready()
        assert abs(drift(server, prompt, step_s)) < LATE
        server.process.kill()
        server.ended()


def test_a_configuration_changes_the_speed_as_the_model_says(host: Host) -> None:
    env: dict[str, str] = {"NCCL_PROTO": "Simple", "NCCL_MAX_NCHANNELS": "1"}
    steps = {
        name: StepTimes(machine(PRESET), e, {}, seed=0, noise=0.0).steady_step_s(1)
        for name, e in (("a", {}), ("b", env))
    }
    assert steps["b"] > 1.1 * steps["a"], "or the test says nothing"
    server = host.start(environment=env).ready()
    assert abs(drift(server, "slower", steps["b"])) < LATE


def test_streams_share_the_steps_of_a_batch(served: StandIn) -> None:
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda text=text: results.append(served.generate(text, 60)))
        for text in ("one", "two", "three", "four")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    begin = max(chunks[0][0] for chunks in results)
    end = min(chunks[-1][0] for chunks in results)
    assert end > begin, "all decode at the same time"
    step_s = StepTimes(machine(PRESET), {}, {}, seed=0, noise=0.0).steady_step_s(4)
    tokens = sum(chunk[1]["meta_info"]["completion_tokens"] == 60 for chunks in results for chunk in chunks[-1:])
    assert tokens == 4
    assert (end - begin) / step_s < 60 * 1.5, "together, not one after the other"


def test_speculation_sends_several_tokens_a_step(host: Host) -> None:
    spec = ("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/models/draft")
    server = host.start(*spec, SGLANG_SIMULATE_ACC_LEN="2.5").ready()
    chunks = [chunk for _, chunk in server.generate("speculate", 200)]
    last = chunks[-1]["meta_info"]
    assert 2.2 < last["spec_accept_length"] < 2.8
    assert last["spec_verify_ct"] == pytest.approx(200 / last["spec_accept_length"])
    assert len(chunks) < 120
    assert "spec_verify_ct" not in chunks[0]["meta_info"]
    assert server.json("/server_info")["max_running_requests"] == 48
    assert "Max running requests is reset to 48 for speculative decoding." in server.log
