"""The stand-in's process tree: titles, environment, readiness, and what dies with what."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import time
from pathlib import Path

from simulated_server import Host, StandIn, until

from tuner.simulated.standin.child import start_ticks


def environ_has(pid: int, text: str) -> bool:
    return text.encode() in Path(f"/proc/{pid}/environ").read_bytes()


def test_the_tree_is_sglangs(served: StandIn) -> None:
    titles = sorted(served.children())
    tracker = [title for title in titles if "multiprocessing.resource_tracker" in title]
    assert len(tracker) == 1
    assert [title for title in titles if title not in tracker] == [
        "sglang::detokenizer",
        "sglang::scheduler_TP0",
        "sglang::scheduler_TP1",
    ]
    command = Path(f"/proc/{served.process.pid}/cmdline").read_bytes().split(b"\0")
    assert command[:3] == [b"python3", b"-m", b"sglang.launch_server"]
    sessions = {os.getsid(pid) for pid in served.children().values()}
    assert sessions == {served.process.pid}


def test_with_spt_noenv_every_process_keeps_its_environment(served: StandIn) -> None:
    mark = f"TUNER_SIMULATED_STATE={served.log_path.parent}"
    for title, pid in served.children().items():
        assert environ_has(pid, mark), title


def test_without_spt_noenv_retitling_overwrites_the_environment(host: Host) -> None:
    server = host.start(TUNER_NONCE="abc").ready()
    assert environ_has(server.process.pid, "TUNER_NONCE=abc")
    for title, pid in server.children().items():
        assert environ_has(pid, "TUNER_NONCE=abc") == (not title.startswith("sglang::")), title


def test_the_port_is_refused_until_loading_ends_and_then_the_nonce_comes_back(host: Host) -> None:
    server = host.start(TUNER_SIMULATED_LOAD_S="0.8")
    until(lambda: "Load weight begin" in server.log, "loading")
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", server.port)) != 0
    assert "max_total_num_tokens" not in server.log
    server.ready()
    wanted = [
        "server_args=ServerArgs(model_path='/models/m61'",
        "TP0] Init torch distributed begin.",
        "TP0] sglang is using nccl==2.28.9",
        "TP0] Load weight begin. avail mem=",
        "TP0] Load weight end. elapsed=",
        "TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: ",
        "TP0] Memory pool end. avail mem=",
        "TP0] Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs=[1, 2, 4, 8",
        "TP0] Capture target decode CUDA graph end. elapsed=",
        "TP0] max_total_num_tokens=",
        "Engine startup timings (s): load_weight=",
        "INFO:     Started server process [",
        "INFO:     Waiting for application startup.",
        "INFO:     Application startup complete.",
        "INFO:     Uvicorn running on http://127.0.0.1:",
        '"GET /model_info HTTP/1.1" 200 OK',
        '"POST /generate HTTP/1.1" 200 OK',
        "The server is fired up and ready to roll!",
    ]
    places = [server.log.find(line) for line in wanted]
    assert -1 not in places, wanted[places.index(-1)]
    assert places == sorted(places), "SGLang's order"
    stamped = [line for line in server.log.splitlines() if line.startswith("[")]
    assert all(re.match(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( TP\d)?\] ", line) for line in stamped)


def test_gpu_memory_is_held_while_the_schedulers_live(host: Host) -> None:
    assert host.gpu_memory() == [0, 0]
    server = host.start().ready()
    one, other = host.gpu_memory()
    assert one == other > 100_000
    server.process.kill()
    server.ended()
    until(lambda: host.gpu_memory() == [0, 0], "memory back")


def test_children_die_with_a_launcher_that_is_killed(host: Host) -> None:
    server = host.start().ready()
    pids = list(server.children().values())
    assert len(pids) == 4
    server.process.kill()
    server.ended()
    until(lambda: not any(start_ticks(pid) for pid in pids), "children gone", 5)


def test_a_killed_scheduler_takes_the_server_down(host: Host) -> None:
    server = host.start().ready()
    pid = server.children()["sglang::scheduler_TP1"]
    os.kill(pid, signal.SIGKILL)
    assert server.ended() == -signal.SIGKILL
    assert (
        f"Subprocess scheduler_1 (pid={pid}) crashed with exit code -9. Triggering SIGQUIT for cleanup..." in server.log
    )
    assert "SIGQUIT received. signum=None, frame=None. It usually means one child failed." in server.log
    until(lambda: list(host.state.processes()) == [], "all gone", 5)


def test_a_stopped_rank_stalls_the_step(host: Host) -> None:
    server = host.start().ready()
    pid = server.children()["sglang::scheduler_TP1"]
    stream = server.events(
        "/generate", {"text": "Tell me", "sampling_params": {"max_new_tokens": 150, "ignore_eos": True}}
    )
    for _ in range(5):
        next(stream)
    os.kill(pid, signal.SIGSTOP)
    stopped = time.monotonic()
    time.sleep(0.5)
    os.kill(pid, signal.SIGCONT)
    times = [at for at, _ in stream]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert max(gaps) > 0.4 or times[0] - stopped > 0.4
    late = server.json("/server_info")["internal_states"][0]["simulated_lateness"]
    assert late["late_fraction"] > 0.1, "and the stand-in says so itself"


def test_a_stopped_detokenizer_hangs_requests_but_not_the_launcher(host: Host) -> None:
    server = host.start().ready()
    pid = server.children()["sglang::detokenizer"]
    os.kill(pid, signal.SIGSTOP)
    try:
        with socket.create_connection(("127.0.0.1", server.port), timeout=0.4) as sock:
            body = b'{"text":"x","sampling_params":{"max_new_tokens":2}}'
            sock.sendall(b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            try:
                answer = sock.recv(100)
            except TimeoutError:
                answer = b"silence"
        assert answer == b"silence"
        assert server.json("/model_info")["weight_version"] == server.nonce
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: server.generate("after", 3), "tokens again")


def test_term_while_loading_ends_it_at_once(host: Host) -> None:
    server = host.start(TUNER_SIMULATED_LOAD_S="5")
    until(lambda: "Load weight begin" in server.log, "loading")
    pids = list(server.children().values())
    server.process.terminate()
    assert server.ended(3) == -signal.SIGTERM
    until(lambda: not any(start_ticks(pid) for pid in pids), "children gone", 5)


def test_term_while_serving_drains_the_running_stream_first(host: Host) -> None:
    server = host.start().ready()
    stream = server.events(
        "/generate", {"text": "Tell me", "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}
    )
    next(stream)
    server.process.terminate()
    last = [event for _, event in stream]
    assert last[-1] == "[DONE]"
    assert last[-2]["meta_info"]["completion_tokens"] == 200
    assert server.ended() == -signal.SIGKILL, "SGLang up to 0.5.17 ends its drain by killing itself"
    assert "SIGTERM received. signum=None frame=None. Draining requests and shutting down..." in server.log
    assert "Gracefully exiting... Remaining number of requests 1." in server.log
    assert "Gracefully exiting... Remaining number of requests 0." in server.log
    until(lambda: list(host.state.processes()) == [], "all gone", 5)
