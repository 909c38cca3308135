"""Canaries: the bundled prompts, the rule that tells rounding from corruption, and the client against real servers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.load.canary import (
    ANSWER_TOKENS,
    EARLY_TOKENS,
    MEDIAN_GAP_NATS,
    TIE_LOGPROB,
    answer,
    body,
    canaries,
    compare,
)
from tuner.load.client import LoadClient
from tuner.values.canary import CanaryAnswer, CanaryReport, Finding

UNSURE = -1.5
"""Log-probability of a token that another one may well beat."""


def one(canary: str, ids: list[int], logprobs: list[float]) -> CanaryAnswer:
    return CanaryAnswer(canary, tuple(ids), tuple(logprobs), " ".join(map(str, ids)))


@st.composite
def answers(draw: st.DrawFn) -> tuple[CanaryAnswer, ...]:
    """A reference: some canaries that differ from each other from the first token on."""
    count = draw(st.integers(3, 9))
    length = draw(st.integers(EARLY_TOKENS + 1, ANSWER_TOKENS))
    found = []
    for number in range(count):
        ids = draw(st.lists(st.integers(0, 200_000), min_size=length, max_size=length))
        logprobs = draw(st.lists(st.floats(-6, -1e-6), min_size=length, max_size=length))
        found.append(one(f"c{number}", [number, *ids[1:]], logprobs))
    return tuple(found)


def finding(reference: CanaryAnswer, found: CanaryAnswer) -> Finding:
    return compare([reference], [found]).comparisons[0].finding


# ── The prompts ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_bundled_prompts_are_eight_with_names_of_their_own() -> None:
    found = canaries()
    assert len(found) == len({each.name for each in found}) == len({each.prompt for each in found}) == 8
    assert all(each.name.isalpha() and 5 <= len(each.prompt.split()) <= 40 for each in found)
    assert body(found[0])["sampling_params"]["temperature"] == 0 and body(found[0])["return_logprob"] is True
    assert "return_logprob" not in body(found[0], logprobs=False)


def test_what_an_answer_says() -> None:
    asked = canaries()[0]
    meta = {"finish_reason": {"type": "length"}, "output_token_logprobs": [[-0.25, 7, None], [None, 8, " a"]]}
    found = answer(asked, json.dumps({"text": "x a", "output_ids": [7, 8], "meta_info": meta}).encode())
    assert found == CanaryAnswer(asked.name, (7, 8), (-0.25, None), "x a")
    plain = answer(asked, b'{"text": "x", "output_ids": [7], "meta_info": {}}')
    assert plain == CanaryAnswer(asked.name, (7,), (), "x")
    assert answer(asked, b'{"text": "", "meta_info": {"output_token_logprobs": [[NaN, 0, null]]}}').logprobs == (None,)
    gave_up = b'{"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "no room"}}}'
    assert answer(asked, gave_up).error == "the server gave up: no room"


@given(
    st.binary() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda x: json.dumps(x).encode())
)
def test_an_answer_of_any_form_is_no_crash(content: bytes) -> None:
    assert "another form" in answer(canaries()[0], content).error


# ── The rule ────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(answers())
def test_answers_equal_to_the_reference_always_pass(reference: tuple[CanaryAnswer, ...]) -> None:
    report = compare(reference, reference)
    assert report.corrupted == ""
    assert {each.finding for each in report.comparisons} == {Finding.SAME}
    assert all(each.agreement == 1 and each.logprob_gap == 0 for each in report.comparisons)


@given(answers(), st.data())
def test_small_differences_of_every_log_probability_pass(
    reference: tuple[CanaryAnswer, ...], data: st.DataObject
) -> None:
    shift = st.floats(-MEDIAN_GAP_NATS + 0.01, MEDIAN_GAP_NATS - 0.01)
    moved = [
        replace(each, logprobs=tuple((value or 0) + data.draw(shift) for value in each.logprobs)) for each in reference
    ]
    assert compare(reference, moved).corrupted == ""


@given(answers(), st.integers(1, 8))
def test_shuffled_answers_never_pass(reference: tuple[CanaryAnswer, ...], by: int) -> None:
    """Each answer is another prompt's: what a server that mixes up its batch gives."""
    by = 1 + (by - 1) % (len(reference) - 1)
    others = reference[by:] + reference[:by]
    mixed = [replace(other, canary=each.canary) for each, other in zip(reference, others, strict=True)]
    report = compare(reference, mixed)
    assert report.corrupted
    assert "'c0'" in report.corrupted and "from token 1" in report.corrupted


@given(answers(), st.data())
def test_answers_with_other_log_probabilities_never_pass(
    reference: tuple[CanaryAnswer, ...], data: st.DataObject
) -> None:
    """The same tokens by luck: their probabilities give a corrupted model away, in one canary of many."""
    which = data.draw(st.integers(0, len(reference) - 1))
    gap = data.draw(st.floats(MEDIAN_GAP_NATS + 0.01, 20))
    found = list(reference)
    found[which] = replace(found[which], logprobs=tuple((value or 0) - gap for value in found[which].logprobs))
    report = compare(reference, found)
    assert "log-probabilities" in report.corrupted and reference[which].canary in report.corrupted


@given(answers(), st.data(), st.booleans())
def test_one_late_divergence_passes(
    reference: tuple[CanaryAnswer, ...], data: st.DataObject, other_logprobs: bool
) -> None:
    """Whatever comes after it."""
    which = data.draw(st.integers(0, len(reference) - 1))
    place = data.draw(st.integers(EARLY_TOKENS, len(reference[which].token_ids) - 1))
    ids = list(reference[which].token_ids)
    logprobs = list(reference[which].logprobs)
    for position in range(place, len(ids)):
        ids[position] += 1
        logprobs[position] = -9.0 if other_logprobs else logprobs[position]
    found = list(reference)
    found[which] = replace(found[which], token_ids=tuple(ids), logprobs=tuple(logprobs))
    report = compare(reference, found)
    assert report.corrupted == ""
    assert report.comparisons[which].divergence == place
    assert report.comparisons[which].agreement == place / len(ids)


@pytest.mark.parametrize("error", ["", "HTTP 500: dead"])
def test_one_answer_that_is_missing_or_empty_is_proof(error: str) -> None:
    reference = [one(f"c{n}", [n, 2, 3, 4, 5], [-0.1] * 5) for n in range(8)]
    found = [*reference[:7], CanaryAnswer("c7", (), (), "", error)]
    report = compare(reference, found)
    assert report.comparisons[7].finding is Finding.NO_ANSWER
    assert "canary 'c7' has no answer" in report.corrupted and (error or "an empty answer") in report.corrupted
    assert compare(reference, reference[:7]).corrupted, "an answer that is not there at all"


def test_numbers_that_are_none_are_proof() -> None:
    reference = one("c", [1, 2, 3, 4, 5], [-0.1] * 5)
    assert finding(reference, replace(reference, logprobs=(-0.1, -0.1, None, -0.1, -0.1))) is Finding.NO_NUMBERS


def test_a_late_difference_is_rounding_at_a_near_tie_only() -> None:
    """Where one was sure of its token, rounding cannot have made the other's."""
    before = [-0.1] * 5
    unsure, sure = one("c", [1, 2, 3, 4, 5, 6], [*before, UNSURE]), one("c", [1, 2, 3, 4, 5, 6], [*before, -0.01])
    other = [1, 2, 3, 4, 5, 7]
    assert finding(unsure, one("c", other, [*before, UNSURE + 0.1])) is Finding.NEAR_TIE
    assert finding(unsure, one("c", other, [*before, TIE_LOGPROB + 0.01])) is Finding.NO_TIE
    assert finding(unsure, one("c", other, [*before, UNSURE - 1.1])) is Finding.NO_TIE
    assert finding(sure, one("c", other, [*before, -0.01])) is Finding.NO_TIE


@pytest.mark.parametrize(("wrong", "corrupted"), [(1, False), (3, False), (4, True), (8, True)])
def test_suspects_count_from_half_of_the_canaries_on(wrong: int, corrupted: bool) -> None:
    reference = [one(f"c{n}", [n, 2, 3, 4, 5], [-0.1] * 5) for n in range(8)]
    found = [replace(each, token_ids=(99, *each.token_ids[1:])) for each in reference[:wrong]] + reference[wrong:]
    report = compare(reference, found)
    assert bool(report.corrupted) is corrupted
    assert not corrupted or f"{wrong} of 8 canaries are wrong" in report.corrupted


def test_texts_alone_are_compared_by_words() -> None:
    reference = CanaryAnswer("c", (), (), "one two three four five six")
    assert finding(reference, reference) is Finding.SAME
    assert finding(reference, replace(reference, text="one two three four nine ten")) is Finding.NEAR_TIE
    assert finding(reference, replace(reference, text="five two three")) is Finding.AT_ONCE


def test_without_a_reference_nothing_is_compared_and_nothing_is_wrong() -> None:
    found = one("c", [1], [-0.1])
    assert compare(None, [found]) == CanaryReport(()) == compare([CanaryAnswer("c", (), (), "", "x")], [found])


# ── The client ──────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def serving(status_of: Callable[[dict[str, Any]], int]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server of /generate that gives the number of the request's words as ids; status 0: it hangs up."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append(question)
            status = status_of(question)
            if not status:
                self.close_connection = True
                return
            ids = [len(question["text"].split()), 2, 3]
            meta: dict[str, Any] = {"finish_reason": {"type": "length"}}
            if question.get("return_logprob"):
                meta["output_token_logprobs"] = [[-0.5, each, None] for each in ids]
            given = {"text": question["text"][:3], "output_ids": ids, "meta_info": meta}
            text = json.dumps(given if status == 200 else {"error": {"message": "not so"}}).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()


async def ask(url: str) -> tuple[CanaryAnswer, ...]:
    client = LoadClient(url)
    try:
        return await client.canaries(timeout_s=5.0)
    finally:
        await client.close()


async def test_each_canary_is_asked_once_and_answered_by_its_name() -> None:
    with serving(lambda _: 200) as (url, asked):
        found = await ask(url)
    assert [each.canary for each in found] == [each.name for each in canaries()]
    assert all(got.token_ids[0] == len(sent.prompt.split()) for got, sent in zip(found, canaries(), strict=True))
    assert all(each.logprobs == (-0.5,) * 3 and each.usable for each in found)
    assert len(asked) == 8 and all(each["stream"] is False for each in asked)


async def test_an_engine_without_log_probabilities_is_asked_for_the_text() -> None:
    with serving(lambda question: 400 if question.get("return_logprob") else 200) as (url, asked):
        found = await ask(url)
    assert len(asked) == 16
    assert all(each.usable and each.logprobs == () and each.token_ids[1:] == (2, 3) for each in found)


@pytest.mark.parametrize(("status", "words"), [(500, "HTTP 500: not so"), (404, "HTTP 404"), (0, "connection broke")])
async def test_what_goes_wrong_is_in_the_answer(status: int, words: str) -> None:
    with serving(lambda _: status) as (url, _):
        found = await ask(url)
    assert len(found) == 8 and all(words in each.error and not each.usable for each in found)


async def test_no_server_is_an_answer_too() -> None:
    with serving(lambda _: 200) as (url, _):
        pass
    assert all(f"no connection to {url}" in each.error for each in await ask(url))
