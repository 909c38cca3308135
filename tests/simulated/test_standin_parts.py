"""Parts of the stand-in by themselves: flags by version, rules among arguments, tokens, messages, lateness."""

from __future__ import annotations

import socket
from dataclasses import replace
from typing import Any

import pytest

from tuner.errors import InputError
from tuner.simulated.machine import machine
from tuner.simulated.standin import server_args, vocabulary
from tuner.simulated.standin.arguments import defaults, parse
from tuner.simulated.standin.frames import Frames
from tuner.simulated.standin.lateness import Lateness
from tuner.simulated.standin.log import Log
from tuner.simulated.standin.prefix_cache import PrefixCache
from tuner.simulated.standin.settings import Settings
from tuner.simulated.standin.vocabulary import Answer

KIMI = machine("pcie8-failed-search")
H200 = machine("h200x2-shm")


def resolve(*argv: str, preset: Any = H200) -> dict[str, Any]:
    return server_args.resolve(parse(["--model-path", "m", *argv], preset.engine_version), preset, Log())


def test_the_motivating_launch_is_understood() -> None:
    args = resolve(
        *("--tp-size", "8", "--num-continuous-decode-steps", "4", "--disable-custom-all-reduce"),
        *("--mem-fraction-static", "0.88", "--trust-remote-code"),
        preset=KIMI,
    )
    assert list(args) == list(defaults()), "no key more and none less than SGLang has"
    assert (args["tp_size"], args["num_continuous_decode_steps"], args["mem_fraction_static"]) == (8, 4, 0.88)
    assert args["disable_custom_all_reduce"] is args["trust_remote_code"] is True
    assert args["attention_backend"] == "triton"
    assert server_args.model_args(args)["mem-fraction-static"] == "0.88"


@pytest.mark.parametrize(
    ("flag", "version", "known"),
    [
        ("--cuda-graph-max-bs=4", "0.5.9", True),
        ("--cuda-graph-max-bs=4", "0.5.17", True),
        ("--cuda-graph-max-bs=4", "0.5.20", False),
        ("--cuda-graph-max-bs-decode=4", "0.5.13", False),
        ("--cuda-graph-max-bs-decode=4", "0.5.14", True),
        ("--startup-weight-load-mode=x", "0.5.17", False),
        ("--startup-weight-load-mode=x", "0.5.18", True),
        ("--pre-warm-nccl", "0.5.9", False),
        ("--pre-warm-nccl", "0.5.10", True),
    ],
)
def test_flags_exist_in_the_versions_that_have_them(flag: str, version: str, known: bool) -> None:
    argv = ["--model-path", "m", flag]
    if known:
        assert parse(argv, version)
        return
    with pytest.raises(SystemExit) as end:
        parse(argv, version)
    assert end.value.code == 2


def test_the_removed_spelling_is_ambiguous(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--model-path", "m", "--cuda-graph-max-bs", "4"], "0.5.20")
    assert "ambiguous option: --cuda-graph-max-bs could match" in capsys.readouterr().err


def test_rules_among_speculative_arguments(capfd: pytest.CaptureFixture[str]) -> None:
    eagle = ("--speculative-algorithm", "NEXTN")
    args = resolve(*eagle)
    chosen = [args[f"speculative_{name}"] for name in ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens")]
    assert chosen == ["EAGLE", 3, 1, 4]
    three = ("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "8")
    assert resolve(*eagle, *three)["speculative_num_draft_tokens"] == 4
    assert "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1" in capfd.readouterr().err
    assert resolve("--speculative-algorithm", "NGRAM")["speculative_num_draft_tokens"] == 12


def test_graph_sizes_end_at_the_limit() -> None:
    assert resolve("--cuda-graph-max-bs-decode", "8")["cuda_graph_config"]["decode"]["bs"] == [1, 2, 4, 8]
    assert resolve("--max-running-requests", "10")["cuda_graph_config"]["decode"]["bs"] == [1, 2, 4, 8, 10]
    assert resolve("--disable-cuda-graph")["cuda_graph_config"]["decode"]["backend"] == "disabled"


def test_an_older_engine_has_no_graph_configuration() -> None:
    assert "cuda_graph_config" not in resolve(preset=replace(H200, engine_version="0.5.9"))


def test_tokens_are_about_as_many_as_a_real_tokenizer_makes() -> None:
    text = (
        "The first steam engines were built to pump water out of mines, and it took another century before anybody "
        "thought of putting one on wheels. Transportation changed beyond recognition within two generations."
    )
    assert 1.1 < len(vocabulary.encode(text)) / len(text.split()) < 1.6


def test_decoding_in_parts_is_decoding_at_once() -> None:
    answer = Answer.to(vocabulary.encode("anything"), vocabulary.opening("12 + 30"))
    ids = [answer.token(position) for position in range(50)]
    assert vocabulary.decode(ids) == "".join(vocabulary.decode([token]) for token in ids)
    assert vocabulary.decode(ids).startswith(" 42.")
    assert 0 < len(set(ids)) < 50


def test_the_cache_knows_prefixes_only() -> None:
    cache = PrefixCache(100)
    assert cache.match([1, 2, 3]) == 0
    cache.insert([1, 2, 3, 4])
    assert cache.match([1, 2, 9, 4]) == 2
    assert cache.match([2, 3, 4]) == 0
    assert cache.match([1, 2, 3, 4]) == 3, "the last token is always computed"
    assert cache.match([1, 2, 3, 4, 5]) == 4
    cache.insert(list(range(90)))
    cache.insert(list(range(1000, 1090)))
    assert len(cache) == 90, "full: it starts afresh"
    cache.clear()
    assert cache.match([1, 2, 3, 4]) == 0


def test_messages_survive_being_cut_and_joined() -> None:
    left, right = socket.socketpair()
    with left, right:
        sender, receiver = Frames(left), Frames(right)
        assert receiver.pending() == []
        messages = [{"n": n, "text": "é\n" * n} for n in range(50)]
        for message in messages:
            sender.send(message)
        assert receiver.receive() == messages[0]
        assert receiver.pending() == messages[1:]
        left.shutdown(socket.SHUT_WR)
        with pytest.raises(EOFError):
            receiver.receive()


def test_lateness_of_the_last_token_counts_and_stalls_are_not_made_up_for() -> None:
    lateness = Lateness()
    lateness.begin(0.0)
    assert lateness.step(1.0, 1.002) == 1.0, "a late step does not move the next deadline"
    assert lateness.step(2.0, 2.001) == 2.0
    assert lateness.report == {
        "steps": 2,
        "late_mean_s": pytest.approx(0.0015),
        "late_fraction": pytest.approx(0.001 / 2.001),
    }
    assert lateness.step(3.0, 5.0) == 5.0, "after a stall time goes on from there"
    lateness.step(6.0, 6.0)
    assert lateness.report["late_fraction"] == pytest.approx(2.0 / 6.0), "and the lost time stays counted"
    lateness.begin(10.0)
    lateness.step(11.0, 11.0)
    assert lateness.report == {"steps": 1, "late_mean_s": 0.0, "late_fraction": 0.0}


def test_settings_name_all_that_is_wrong() -> None:
    with pytest.raises(InputError) as error:
        Settings.of({"TUNER_SIMULATED_LOAD_S": "soon", "TUNER_STANDIN_FAULT": "hang_load,oops"})
    assert "TUNER_SIMULATED_LOAD_S='soon'" in str(error.value)
    assert "no fault oops" in str(error.value)
    assert Settings.of({"TUNER_SIMULATED_LOAD_S": "0.54"}).time_scale == pytest.approx(0.01)
