"""How the stand-in fails: statuses and words of SGLang 0.5.17, by configuration and on demand."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from simulated_server import Host, StandIn, free_port, until

from tuner.simulated.standin.child import start_ticks


def unfinished(server: StandIn) -> int:
    """Tokens of a stream of 50 that breaks."""
    made = 0
    with contextlib.suppress(OSError, http.client.HTTPException):
        for _, event in server.events(
            "/generate", {"text": "x", "sampling_params": {"max_new_tokens": 50, "ignore_eos": True}}
        ):
            assert event != "[DONE]"
            made = event["meta_info"]["completion_tokens"]
    return made


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (("--no-such-flag",), 2, "sglang serve: error: unrecognized arguments: --no-such-flag"),
        (("--tp-size", "x"), 2, "argument --tp-size/--tensor-parallel-size: invalid int value: 'x'"),
        (("--schedule-policy", "best"), 2, "argument --schedule-policy: invalid choice: 'best'"),
        (("--cuda-graph-b", "4"), 2, "ambiguous option: --cuda-graph-b could match"),
        (("--speculative-algorithm", "EAGLE3", "--speculative-eagle-topk", "2"), 1, "AssertionError"),
        (("--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "2"), 1, "TypeError: '>' not supported"),
        (("--speculative-algorithm", "FOO"), 1, "ValueError: Unknown speculative algorithm name: FOO"),
    ],
)
def test_bad_arguments_end_before_anything_is_loaded(
    host: Host, args: tuple[str, ...], status: int, words: str
) -> None:
    server = host.start(*args)
    assert server.ended() == status
    assert words in server.log
    assert "Load weight begin" not in server.log


def test_a_unique_prefix_of_a_flag_is_taken(host: Host) -> None:
    server = host.start("--num-continuous", "4", "--skip-server-warm").ready()
    info = server.json("/server_info")
    assert (info["num_continuous_decode_steps"], info["skip_server_warmup"]) == (4, True)


def test_plain_tree_is_refused_by_nccl_at_graph_capture(host: Host) -> None:
    server = host.start(NCCL_ALGO="Tree", NCCL_DEBUG="INFO")
    assert server.ended() == -signal.SIGKILL
    log = server.log
    order = [
        "NCCL INFO NCCL_ALGO set by environment to Tree",
        "Capture target decode CUDA graph begin.",
        "NCCL WARN Error : no algorithm/protocol available for function AllGather with datatype ncclInt8. "
        "NCCL_ALGO was set to Tree.",
        "Scheduler hit an exception: Traceback (most recent call last):",
        "RuntimeError: NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)",
        "Exception: Capture cuda graph failed: NCCL error: invalid usage",
        "Possible solutions:\n1. set --mem-fraction-static to a smaller value",
        "Received sigquit from a child process. It usually means the child failed.",
    ]
    places = [log.find(line) for line in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)
    until(lambda: list(host.state.processes()) == [], "all gone", 5)


def test_a_word_that_nccl_does_not_know_is_refused_at_the_communicator(host: Host) -> None:
    server = host.start(NCCL_ALGO="Treee")
    assert server.ended() == -signal.SIGKILL
    assert "NCCL error" in server.log
    assert "Load weight begin" not in server.log


def test_too_small_a_memory_fraction_leaves_no_room_for_the_cache(host: Host) -> None:
    server = host.start("--mem-fraction-static", "0.01")
    assert server.ended() == -signal.SIGKILL
    assert "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static." in server.log
    assert "Capture target decode" not in server.log


def test_too_large_a_memory_fraction_fails_at_capture(host: Host) -> None:
    server = host.start("--mem-fraction-static", "1.0")
    assert server.ended() == -signal.SIGKILL
    assert "Capture cuda graph failed: CUDA out of memory. Tried to allocate" in server.log
    assert "torch.OutOfMemoryError: CUDA out of memory." in server.log


def test_each_rank_says_what_nccl_took_and_typos_are_not_taken(host: Host) -> None:
    server = host.start(
        NCCL_DEBUG="INFO", NCCL_MIN_NCHANNELS="4M", NCCL_PROTO="LL", NCCL_BUFSIZE="1", NCCL_P2P_DISABLE="1"
    ).ready()
    for rank in (0, 1):
        took = [line for line in server.log.splitlines() if f"[{rank}] NCCL INFO" in line]
        text = "\n".join(took)
        assert "NCCL_MIN_NCHANNELS set by environment to 4." in text
        assert "NCCL_PROTO set by environment to LL\n" in text
        assert "NCCL_P2P_DISABLE set by environment to 1\n" in text
        assert "NCCL_CUMEM_ENABLE set by environment to 0." in text, "SGLang sets it"
        assert "NCCL version 2.28.9+cuda13.0" in text
        assert "NCCL_BUFSIZE" not in text


def test_an_older_server_on_the_port_answers_and_the_new_one_dies_late(host: Host) -> None:
    old = host.start(nonce="old").ready()
    new = host.start(port=old.port, nonce="new")
    assert new.ended() == 3
    assert "Load weight end" in new.log, "only after all the loading"
    assert "The server is fired up and ready to roll!" in new.log, "the trap"
    assert "error while attempting to bind on address ('127.0.0.1'" in new.log
    assert "address already in use" in new.log
    assert old.json("/model_info")["weight_version"] == "old"
    assert old.process.poll() is None


def test_a_hang_while_loading_says_no_more(host: Host) -> None:
    server = host.start(TUNER_STANDIN_FAULT="hang_load")
    until(lambda: server.log.count("Load weight begin") == 2, "loading of both ranks")
    before = server.log
    time.sleep(0.4)
    assert server.log == before
    assert server.process.poll() is None
    server.process.kill()


def test_a_hang_under_load(host: Host) -> None:
    server = host.start(TUNER_STANDIN_FAULT="hang_run").ready()
    stream = server.events("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 50, "ignore_eos": True}})
    counts = [next(stream)[1]["meta_info"]["completion_tokens"] for _ in range(3)]
    assert counts[0] == 1

    def scheduler_is_silent() -> bool:
        try:
            server.request("/server_info", timeout=0.4)
        except OSError:
            return True
        return False

    until(scheduler_is_silent, "the hang")
    assert server.json("/model_info")["weight_version"] == server.nonce


def test_never_a_token(host: Host) -> None:
    server = host.start(TUNER_STANDIN_FAULT="never_a_token").ready()
    with pytest.raises(OSError):
        server.request("/generate", {"text": "x", "sampling_params": {"max_new_tokens": 9}}, timeout=0.5)
    assert server.json("/model_info")["weight_version"] == server.nonce


def test_a_cut_stream(host: Host) -> None:
    server = host.start(TUNER_STANDIN_FAULT="cut_stream").ready()
    assert 0 < unfinished(server) < 50
    assert server.process.poll() is None


def test_out_of_memory_under_load(host: Host) -> None:
    server = host.start(TUNER_STANDIN_FAULT="oom_run").ready()
    assert unfinished(server) < 50
    assert server.ended() == -signal.SIGKILL
    assert "Decode out of memory. Try to lower your batch size." in server.log
    assert "SIGQUIT received." in server.log


def test_a_child_that_aborts(host: Host) -> None:
    server = host.start(TUNER_STANDIN_FAULT="abort_child").ready()
    assert unfinished(server) < 50
    assert server.ended() == -signal.SIGKILL
    assert "Subprocess scheduler_0" in server.log
    assert "crashed with exit code -6. Triggering SIGQUIT for cleanup..." in server.log


def test_a_scheduler_that_outlives_its_launcher_keeps_its_memory(host: Host) -> None:
    server = host.start(TUNER_STANDIN_FAULT="zombie_scheduler", SPT_NOENV="1").ready()
    left = server.children()["sglang::scheduler_TP1"]
    server.process.terminate()
    assert server.ended() == -signal.SIGKILL
    time.sleep(0.2)
    assert start_ticks(left)
    used = host.gpu_memory()
    assert used[0] == 0
    assert used[1] > 0
    assert list(host.state.processes()) == [left]
    os.kill(left, signal.SIGKILL)
    until(lambda: host.gpu_memory() == [0, 0], "memory back")


def test_gpu_memory_that_does_not_come_back(host: Host) -> None:
    server = host.start(TUNER_STANDIN_FAULT="gpu_memory_stuck").ready()
    server.process.terminate()
    server.ended()
    until(lambda: list(host.state.processes()) == [], "processes gone")
    assert all(used > 100_000 for used in host.gpu_memory())
    apps = host.run(str(host.state.path / "bin" / "nvidia-smi"), "--query-compute-apps=pid", "--format=csv,noheader")
    assert apps == "", "no process holds it"


def test_gpu_memory_that_comes_back_late(host: Host) -> None:
    server = host.start(TUNER_STANDIN_FAULT="gpu_memory_late").ready()
    server.process.terminate()
    server.ended()
    until(lambda: list(host.state.processes()) == [], "processes gone")
    assert all(used > 100_000 for used in host.gpu_memory())
    until(lambda: host.gpu_memory() == [0, 0], "memory back", 5)


def test_term_may_be_ignored(host: Host) -> None:
    server = host.start(TUNER_STANDIN_FAULT="ignore_term").ready()
    server.process.terminate()
    time.sleep(0.4)
    assert server.json("/model_info")["weight_version"] == server.nonce


def test_a_slow_exit_outlasts_a_short_grace(host: Host) -> None:
    server = host.start(TUNER_STANDIN_FAULT="slow_exit").ready()
    server.process.terminate()
    until(lambda: "Remaining number of requests 0." in server.log, "the drain")
    time.sleep(0.3)
    assert server.process.poll() is None
    server.process.kill()
    assert server.ended() == -signal.SIGKILL


def test_an_environment_that_does_not_arrive_shows_in_the_processes_and_in_nccls_log(host: Host) -> None:
    server = host.start(
        TUNER_STANDIN_FAULT="ignored_environment", NCCL_PROTO="LL", SPT_NOENV="1", TUNER_NONCE="mine"
    ).ready()
    for pid in (server.process.pid, server.children()["sglang::scheduler_TP0"]):
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"NCCL_PROTO" not in environ
        assert b"TUNER_NONCE=mine" in environ
    assert "NCCL_PROTO" not in server.log


def test_wrong_output_differs_from_every_other_launch(host: Host) -> None:
    right, wrong = host.start(), host.start(TUNER_STANDIN_FAULT="wrong_output")
    prompt = {"text": "What is 17 + 25?", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
    assert right.ready().json("/generate", prompt)["text"] == " 42."
    assert wrong.ready().json("/generate", prompt)["text"] != " 42."


def test_a_fault_that_does_not_exist_is_refused(host: Host) -> None:
    server = host.start(TUNER_STANDIN_FAULT="explode", port=free_port())
    assert server.ended() == 1
    assert "TUNER_STANDIN_FAULT: no fault explode" in server.log


def test_a_failed_warm_up_takes_the_server_down(host: Host) -> None:
    """Whoever holds the port answers the warm-up; what is no SGLang at all makes it fail."""
    other = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    try:
        server = host.start(port=other.server_address[1])
        assert server.ended() == -signal.SIGKILL
        assert "Initialization failed. warmup error:" in server.log
    finally:
        other.shutdown()
        other.server_close()


def test_a_request_without_a_prompt_is_refused(host: Host) -> None:
    status, body = host.start().ready().request("/generate", {})
    assert status == 400
    assert b"Either text, input_ids or input_embeds should be provided." in body
