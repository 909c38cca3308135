"""What SGLang's log and its own account say.

Logs under ``logs/`` are excerpts of real ones: SGLang 0.5.17 on a CPU, and on 2 × H200 with NCCL 2.28.9. Classes that
were not recorded are held with lines as the sources of SGLang, PyTorch and NCCL print them, in recorded surroundings.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.engines import engine
from tuner.values.configuration import Configuration
from tuner.values.failure import Failure, FailureClass, Fault
from tuner.values.launch import LaunchBase, LaunchCommand, Phase

SGLANG = engine("sglang")
LOGS = Path(__file__).parent / "logs"


def recorded(name: str) -> str:
    return (LOGS / name).read_text(encoding="utf-8")


def until(log: str, marker: str) -> str:
    """The log up to and including the first line with the marker."""
    lines = log.splitlines()
    return "\n".join(lines[: next(i for i, line in enumerate(lines) if marker in line) + 1]) + "\n"


class TestRecordedFailures:
    @pytest.mark.parametrize(
        ("name", "status", "expected", "evidence"),
        [
            ("bad_flag", 2, FailureClass.BAD_FLAG, "sglang serve: error: unrecognized arguments: --no-such-flag"),
            ("bad_value", 2, FailureClass.BAD_FLAG, "invalid int value: 'x'"),
            ("unknown_spec", 1, FailureClass.BAD_FLAG, "ValueError: Unknown speculative algorithm name: FOO"),
            ("spec_partial", 1, FailureClass.BAD_FLAG, "server_args.speculative_num_draft_tokens is None"),
            ("port_taken", 3, FailureClass.PORT_TAKEN, "[Errno 98] error while attempting to bind on address"),
            (
                "nccl_tree_refused",
                -9,
                FailureClass.NCCL_REFUSED,
                "function AllGather with datatype ncclInt8. NCCL_ALGO was",
            ),
            (
                "scheduler_killed",
                -9,
                FailureClass.KILLED,
                "Subprocess scheduler_0 (pid=3825) crashed with exit code -9.",
            ),
            ("terminated", -9, FailureClass.KILLED, "SIGTERM received. signum=None"),
            ("eagle3_ok", -9, FailureClass.KILLED, "SIGTERM received. signum=None"),
        ],
    )
    def test_class_and_evidence(self, name: str, status: int, expected: FailureClass, evidence: str) -> None:
        log = recorded(f"{name}.log")
        failure = SGLANG.classify(log, status, Phase.READY)
        assert failure.failure_class is expected
        assert evidence in failure.evidence
        assert failure.exit_status == status
        assert failure.phase == "ready"
        assert failure.remedy
        assert failure.log_tail.splitlines()[-1] == log.rstrip().splitlines()[-1]
        if name != "spec_partial":  # its assertion has no text; the place is added
            assert failure.evidence in [line.strip() for line in log.splitlines()], "the line as it stands"

    def test_who_is_to_blame(self) -> None:
        assert SGLANG.classify(recorded("port_taken.log"), 3, Phase.READY).fault is Fault.FOREIGN
        assert SGLANG.classify(recorded("nccl_tree_refused.log"), -9, Phase.READY).fault is Fault.CONFIGURATION
        assert SGLANG.classify(recorded("scheduler_killed.log"), -9, Phase.MEASURE).fault is Fault.INFRASTRUCTURE

    def test_the_tail_is_enough(self) -> None:
        tail = "\n".join(recorded("nccl_tree_refused.log").splitlines()[-30:])
        assert SGLANG.classify(tail, -9, Phase.READY).failure_class is FailureClass.NCCL_REFUSED


LOADING = until(recorded("gpu_ok.log"), "Load weight begin")
CAPTURING = until(recorded("gpu_ok.log"), "Capturing batches (bs=4")
SERVING = recorded("gpu_ok.log").partition("SIGTERM")[0].rpartition("\n")[0] + "\n"
STAMP = "[2026-11-29 17:18:40 TP1] "
DEATH = (
    "[2026-11-29 17:18:53] Received sigquit from a child process. It usually means the child failed.\n"
    "[2026-11-29 17:18:53] kill_process_tree called: parent_pid=2239, include_parent=True, pid=2239\n"
)
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 94.97 GiB "
    "of which 1.20 GiB is free."
)
SOLUTIONS = "Possible solutions:\n1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n\n"


def raised(exception: str, file: str = "<site-packages>/sglang/srt/managers/scheduler.py", header: str = "") -> str:
    """A traceback as a scheduler logs it."""
    return (
        f"{header or STAMP + 'Scheduler hit an exception: '}Traceback (most recent call last):\n"
        f'  File "{file}", line 10, in f\n    raise RuntimeError(f"NCCL error: {{error_str}}")\n{exception}\n\n'
    )


def classify(log: str, status: int | None = -9, phase: Phase = Phase.READY) -> Failure:
    return SGLANG.classify(log, status, phase)


class TestFailuresFromTheSource:
    """Not recorded: the lines are those of the source."""

    @pytest.mark.parametrize(
        ("before", "phase", "expected"),
        [
            (LOADING, Phase.READY, FailureClass.OUT_OF_MEMORY_LOAD),
            (CAPTURING, Phase.READY, FailureClass.OUT_OF_MEMORY_CAPTURE),
            (SERVING, Phase.READY, FailureClass.OUT_OF_MEMORY_RUN),
            ("", Phase.MEASURE, FailureClass.OUT_OF_MEMORY_RUN),
        ],
    )
    def test_out_of_memory_by_when_it_happened(self, before: str, phase: Phase, expected: FailureClass) -> None:
        failure = classify(before + raised(OUT_OF_MEMORY) + DEATH, phase=phase)
        assert failure.failure_class is expected
        assert failure.evidence == OUT_OF_MEMORY

    def test_too_small_a_fraction_is_told_to_grow_not_to_shrink(self) -> None:
        text = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: 0.5"
        failure = classify(LOADING + raised(text) + DEATH)
        assert failure.failure_class is FailureClass.OUT_OF_MEMORY_LOAD
        assert failure.remedy.startswith("Raise --mem-fraction-static")

    @pytest.mark.parametrize(
        ("cause", "expected"),
        [
            ("CUDA out of memory. Tried to allocate 64.00 MiB.", FailureClass.OUT_OF_MEMORY_CAPTURE),
            ("NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)", FailureClass.NCCL_REFUSED),
            ("selected index k out of range", FailureClass.DRAFT_MISMATCH),
            ("no kernel image is available for execution on the device", FailureClass.CRASHED),
        ],
    )
    def test_a_failed_capture_is_what_stands_before_the_possible_solutions(
        self, cause: str, expected: FailureClass
    ) -> None:
        text = f"Exception: Capture cuda graph failed: {cause}\n{SOLUTIONS}"
        failure = classify(CAPTURING + raised(text) + DEATH)
        assert failure.failure_class is expected
        assert cause in failure.evidence

    def test_nccls_own_allocation_is_out_of_memory_not_a_refusal(self) -> None:
        warn = "vm:1:2 [0] transport/shm.cc:90 NCCL WARN Cuda failure 2 'out of memory'\n"
        error = raised("RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)")
        assert classify(LOADING + warn + error + DEATH).failure_class is FailureClass.OUT_OF_MEMORY_LOAD

    def test_a_quoted_source_line_is_no_evidence(self) -> None:
        failure = classify(LOADING + raised("ValueError: Model architectures ['X'] are not supported") + DEATH)
        assert failure.failure_class is FailureClass.CRASHED
        assert failure.evidence == "ValueError: Model architectures ['X'] are not supported"

    def test_the_first_failure_counts_not_the_ranks_that_lost_their_peer(self) -> None:
        first = raised("KeyError: 'model.layers.0.weird'")
        then = raised(
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3690, remote process exited"
        )
        assert classify(LOADING + first + then + DEATH).evidence == "KeyError: 'model.layers.0.weird'"
        refused = raised("RuntimeError: NCCL error: invalid usage") + first
        assert classify(LOADING + refused + DEATH).failure_class is FailureClass.NCCL_REFUSED

    def test_an_exception_that_was_survived_is_not_the_cause(self) -> None:
        survived = raised("ValueError: tokenizer has no chat template", header=STAMP + "Ignored: ")
        log = LOADING + survived + raised(OUT_OF_MEMORY) + DEATH
        assert classify(log).failure_class is FailureClass.OUT_OF_MEMORY_LOAD

    @pytest.mark.parametrize(
        ("line", "expected"),
        [
            ("[rank1]:[E] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)", "hang"),
            (STAMP + "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)", "hang"),
            (
                STAMP + "Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.",
                "hang",
            ),
            (STAMP + "The memory capacity is unbalanced. Some GPUs may be occupied by other processes.", "busy"),
            ("ValueError: rpc_port at 30500 is not available in 30 seconds. It is used by a process already.", "port"),
            ('vm:1:1 [0] NCCL WARN Unrecognized element token "Trees" when parsing "Trees"', "nccl"),
            ("launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match --a, --b", "flag"),
            (STAMP + "Decode out of memory. Try to lower your batch size.", "memory"),
            ("OSError: [Errno 28] No space left on device: '/nccl-AbCdEf'", "crashed"),
        ],
    )
    def test_phrases(self, line: str, expected: str) -> None:
        classes = {
            "hang": FailureClass.HANG_RUN,
            "busy": FailureClass.GPU_BUSY,
            "port": FailureClass.PORT_TAKEN,
            "nccl": FailureClass.NCCL_REFUSED,
            "flag": FailureClass.BAD_FLAG,
            "memory": FailureClass.OUT_OF_MEMORY_RUN,
            "crashed": FailureClass.CRASHED,
        }
        failure = classify(SERVING + line + "\n" + DEATH, phase=Phase.MEASURE)
        assert failure.failure_class is classes[expected]
        assert failure.evidence == line.strip()

    def test_a_hang_while_loading_and_a_soft_watchdog(self) -> None:
        hard = STAMP + "Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n"
        assert classify(LOADING + hard + DEATH).failure_class is FailureClass.HANG_START
        assert classify(SERVING + hard.replace("False", "True"), -11).failure_class is FailureClass.CRASHED

    def test_a_draft_that_does_not_fit(self) -> None:
        worker = "<site-packages>/sglang/srt/speculative/eagle_worker_v2.py"
        shape = "RuntimeError: The size of tensor a (7168) must match the size of tensor b (4096)"
        assert classify(LOADING + raised(shape, worker) + DEATH).failure_class is FailureClass.DRAFT_MISMATCH
        # Measured: an EAGLE3 start on a host without that package.
        missing = raised("ModuleNotFoundError: No module named 'deep_gemm'", worker)
        assert classify(LOADING + missing + DEATH).failure_class is FailureClass.CRASHED
        assert classify(SERVING + raised(shape, worker), phase=Phase.MEASURE).failure_class is FailureClass.CRASHED

    @pytest.mark.parametrize(
        ("lines", "expected"),
        [
            (
                'Traceback (most recent call last):\n  File "engine.py", line 1, in f\n    raise\n'
                "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 "
                "(SIGKILL), a common cause is the OS OOM killer.\n",
                FailureClass.KILLED,
            ),
            (
                "[2026-11-29 17:18:53] Rank 0 scheduler is dead. Please check if there are relevant logs.\n"
                "[2026-11-29 17:18:53] Exit code: -9\n"
                'Traceback (most recent call last):\n  File "engine.py", line 1, in f\n    raise\nEOFError\n',
                FailureClass.KILLED,
            ),
            (
                "[2026-11-29 17:18:53] Subprocess scheduler_0 (pid=7) crashed with exit code -6. Triggering SIGQUIT "
                "for cleanup...\n",
                FailureClass.CRASHED,
            ),
            (DEATH, FailureClass.CRASHED),
        ],
    )
    def test_a_scheduler_that_died_without_a_word(self, lines: str, expected: FailureClass) -> None:
        assert classify(LOADING + lines).failure_class is expected

    def test_a_colour_and_a_secret(self) -> None:
        log = "\x1b[1;33mserver_args=ServerArgs(model_path='/m', api_key='sk-123', tokenizer_path='/t')\x1b[0m\n"
        failure = classify(log + "ValueError: x\n", 1)
        assert "sk-123" not in failure.log_tail
        assert "tokenizer_path='/t'" in failure.log_tail
        assert "\x1b" not in failure.log_tail


class TestEndsWithoutACause:
    @pytest.mark.parametrize(
        ("status", "expected", "word"),
        [
            (-9, FailureClass.KILLED, "SIGKILL"),
            (137, FailureClass.KILLED, "SIGKILL"),
            (143, FailureClass.KILLED, "SIGTERM"),
            (-11, FailureClass.CRASHED, "SIGSEGV"),
            (-6, FailureClass.CRASHED, "SIGABRT"),
            (-35, FailureClass.CRASHED, "signal 35"),
            (0, FailureClass.CRASHED, "exit status 0"),
            (1, FailureClass.CRASHED, "exit status 1"),
            (None, FailureClass.HANG_START, "Load weight begin"),
        ],
    )
    def test_the_exit_status_decides(self, status: int | None, expected: FailureClass, word: str) -> None:
        failure = classify(LOADING, status)
        assert failure.failure_class is expected
        assert word in failure.evidence

    def test_alive_without_progress_under_load(self) -> None:
        assert classify(SERVING, None, Phase.WARM_UP).failure_class is FailureClass.HANG_RUN

    def test_no_output_at_all(self) -> None:
        assert "(no output)" in classify("", 127).evidence

    @given(st.text(max_size=300), st.one_of(st.none(), st.integers(-64, 255)), st.sampled_from(list(Phase)))
    def test_any_text_gets_a_class_with_evidence(self, log: str, status: int | None, phase: Phase) -> None:
        failure = SGLANG.classify(log, status, phase)
        assert failure.evidence
        assert SGLANG.stage_of(log)


class TestStage:
    @pytest.mark.parametrize(
        ("marker", "stage"),
        [
            ("Example: sglang serve", "imports"),
            ("server_args=ServerArgs(", "imports"),
            ("using nccl==", "communicators"),
            ("Load weight begin", "weights"),
            ("KV Cache is allocated", "KV cache"),
            ("Capture target decode CUDA graph begin", "graph capture"),
            ("Capturing batches (bs=2 avail_mem=68.99 GB):  75%", "graph capture 3/4"),
            ("max_total_num_tokens=", "warm-up"),
            ("fired up", "ready"),
            ("Uvicorn running", "ready"),
        ],
    )
    def test_a_recorded_start_from_line_to_line(self, marker: str, stage: str) -> None:
        assert SGLANG.stage_of(until(recorded("gpu_ok.log"), marker)) == stage

    def test_nothing_yet(self) -> None:
        assert SGLANG.stage_of("") == "starting"

    def test_shards(self) -> None:  # not recorded: dummy weights have none
        line = "Loading safetensors checkpoint shards:  25% Completed | 16/64 [00:10<00:30,  1.6it/s]"
        assert SGLANG.stage_of(LOADING + line) == "weights 25 %"

    def test_a_draft_model_is_captured_after_the_target(self) -> None:
        log = until(recorded("eagle3_ok.log"), "Capture draft extend CUDA graph begin")
        assert SGLANG.stage_of(log) == "graph capture"


def command(env: dict[str, Any] | None = None, args: dict[str, Any] | None = None) -> LaunchCommand:
    base = LaunchBase(
        ("python3", "-m", "sglang.launch_server"), args=(("model-path", "/models/tiny"), ("device", "cpu"))
    )
    return SGLANG.command(base, Configuration.of(env, args), port=8941, nonce="nonce-abc123")


INFO: dict[str, Any] = json.loads(recorded("server_info.json"))


class TestEffect:
    def test_a_recorded_server_runs_with_what_it_was_started_with(self) -> None:
        asked = command(
            {"NCCL_PROTO": "LL"},
            {
                "max-running-requests": 8,
                "max-total-tokens": 8192,
                "disable-cuda-graph": True,
                "mem-fraction-static": "0.880",
                "model-loader-extra-config": "{}",
                "schedule-policy": "fcfs",
                "moe-runner-backend": "auto",
            },
        )
        assert SGLANG.effect_mismatches(asked, INFO, dict(asked.env), ()) == ()

    def test_an_argument_that_was_rewritten(self) -> None:
        asked = command(args={"speculative-num-draft-tokens": 8, "disable-overlap-schedule": True, "page-size": 16})
        info = INFO | {"speculative_num_draft_tokens": 4}
        found = "\n".join(SGLANG.effect_mismatches(asked, info, dict(asked.env), ()))
        assert "--speculative-num-draft-tokens: asked for 8, the server runs with 4" in found
        assert "--disable-overlap-schedule" in found
        assert "--page-size" in found

    def test_an_older_server_on_the_port(self) -> None:
        asked = command()
        (found,) = SGLANG.effect_mismatches(asked, INFO | {"weight_version": "other"}, {}, (), names=())
        assert "--weight-version" in found

    def test_only_the_named_settings_are_compared(self) -> None:
        asked = command({"NCCL_PROTO": "LL"}, {"page-size": 16, "max-total-tokens": 1})
        (found,) = SGLANG.effect_mismatches(asked, INFO, {"NCCL_PROTO": "LL"}, (), names=["NCCL_PROTO", "page-size"])
        assert "--page-size" in found

    def test_an_environment_that_did_not_arrive(self) -> None:
        asked = command({"NCCL_CUMEM_ENABLE": 1, "NCCL_PROTO": "LL"})
        found = SGLANG.effect_mismatches(asked, INFO, dict(asked.env) | {"NCCL_CUMEM_ENABLE": "0"}, ())
        assert found == ("NCCL_CUMEM_ENABLE: another value in the server's processes: asked for 1, it is 0",)
        lost = {name: value for name, value in asked.env if name != "NCCL_PROTO"}
        assert SGLANG.effect_mismatches(asked, INFO, lost, ()) == ("NCCL_PROTO: not set in the server's processes",)

    def test_nccl_says_that_it_read_something_else(self) -> None:
        lines = SGLANG.nccl_evidence(recorded("nccl_tree_refused.log"))
        asked = command({"NCCL_ALGO": "allreduce:tree", "NCCL_P2P_DISABLE": 1, "NCCL_CUMEM_ENABLE": 0})
        (found,) = SGLANG.effect_mismatches(asked, INFO, dict(asked.env), lines)
        assert found.startswith("NCCL_ALGO: asked for allreduce:tree")
        assert "set by environment to Tree" in found

    def test_a_list_and_another_name_of_an_algorithm(self) -> None:
        asked = command(args={"cuda-graph-bs-decode": "1 2 4", "speculative-algorithm": "nextn"})
        info = INFO | {"cuda_graph_bs_decode": [1, 2, 4], "speculative_algorithm": "EAGLE"}
        assert SGLANG.effect_mismatches(asked, info, dict(asked.env), ()) == ()
        assert SGLANG.effect_mismatches(asked, info | {"cuda_graph_bs_decode": [1, 2]}, dict(asked.env), ()) != ()


class TestNcclEvidence:
    def test_the_telling_lines_each_once(self) -> None:
        lines = SGLANG.nccl_evidence(recorded("nccl_tree_refused.log"))
        text = "\n".join(lines)
        assert sum("NCCL_ALGO set by environment to Tree" in line for line in lines) == 1
        assert "sglang is using nccl==2.28.9" in text
        assert "Enabled NCCL Func/Proto/Algo Matrix:" in text
        assert "    AllReduce |        1         2         1   |             1 " in text
        assert "Channel 00 : 0[0] -> 1[1] via SHM/direct/direct" in text
        assert "Channel 01" not in text
        assert "Proxy" not in text
        assert "allreduce fusion" not in text

    def test_the_algorithm_of_a_collective(self) -> None:  # not recorded: needs NCCL_DEBUG_SUBSYS=TUNING
        line = "vm:1:1 [0] NCCL INFO AllReduce: 14336 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}"
        assert SGLANG.nccl_evidence(f"{line}\n{line}\n") == (line,)

    def test_a_flood_is_cut(self) -> None:
        flood = "".join(f"vm:1:1 [0] NCCL INFO AllReduce: {i} Bytes -> Algo RING proto LL\n" for i in range(5000))
        assert len(SGLANG.nccl_evidence(flood)) == 60


class TestNonce:
    def test_the_recorded_answer(self) -> None:
        assert SGLANG.ready_path == "/model_info"
        assert SGLANG.nonce_in(SGLANG.ready_path, recorded("model_info.json")) == "nonce-abc123"

    @pytest.mark.parametrize(
        "body", ["", "OK", "[]", "null", "{}", '{"weight_version": null}', '{"weight_version": 7}']
    )
    def test_anything_else_is_no_nonce(self, body: str) -> None:
        assert SGLANG.nonce_in("/model_info", body) == ""
