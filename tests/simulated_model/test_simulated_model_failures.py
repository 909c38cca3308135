"""Starts that do not succeed, and that nothing in an environment breaks the model itself."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.simulated import memory
from tuner.simulated.machine import MACHINES, machine
from tuner.simulated.nccl_settings import NcclSettings
from tuner.simulated.timing import ModelledFailure, StepTimes

ROOT = Path(__file__).parents[2]
DEFAULT_ARGS: dict[str, str | bool] = {"mem-fraction-static": "0.88", "trust-remote-code": True}
P2P = {"NCCL_P2P_LEVEL": "SYS"}


def failure(name: str, env: dict[str, str], **args: str) -> ModelledFailure | None:
    merged = DEFAULT_ARGS | {key.replace("_", "-"): value for key, value in args.items()}
    return StepTimes(machine(name), env, merged, seed=0).failure()


@pytest.mark.parametrize("name", MACHINES)
def test_the_default_starts(name: str) -> None:
    assert failure(name, {}) is None


@pytest.mark.parametrize("name", MACHINES)
def test_plain_tree_is_refused_in_the_words_of_the_real_log(name: str) -> None:
    found = failure(name, {"NCCL_ALGO": "Tree"})
    assert found == ModelledFailure(
        "nccl_refused",
        "capture",
        "Error : no algorithm/protocol available for function AllGather with datatype ncclInt8. "
        "NCCL_ALGO was set to Tree.",
        "NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)",
    )
    assert failure(name, {"NCCL_ALGO": "allreduce:tree"}) is None
    assert failure(name, {"NCCL_ALGO": "ring;allreduce:tree"}) is None


@pytest.mark.parametrize(
    ("env", "function"),
    [
        ({"NCCL_ALGO": "NVLS"}, "AllReduce"),
        ({"NCCL_PROTO": "^LL,LL128,Simple"}, "AllReduce"),
        ({"NCCL_ALGO": "^ring"}, "AllGather"),
        ({"NCCL_PROTO": "allgather:^LL,LL128,Simple"}, "AllGather"),
    ],
)
def test_what_leaves_a_function_without_a_pair_is_refused(env: dict[str, str], function: str) -> None:
    found = failure("h200x2-shm", env)
    assert found is not None
    assert (found.kind, found.stage) == ("nccl_refused", "capture")
    assert f"for function {function} with datatype" in found.nccl_warning
    ((name, words),) = env.items()
    assert found.nccl_warning.endswith(f"{name} was set to {words}.")


def test_malformed_words_are_refused_before_anything_is_loaded() -> None:
    found = failure("pcie8-failed-search", {"NCCL_ALGO": "allreduce:trea"})
    assert found is not None
    assert (found.kind, found.stage) == ("nccl_refused", "init")
    assert found.nccl_warning == 'Unrecognized element token "trea" when parsing "allreduce:trea"'


def test_large_buffers_on_many_channels_run_out_of_memory_with_a_high_fraction() -> None:
    large = P2P | {"NCCL_BUFFSIZE": str(64 << 20), "NCCL_MIN_NCHANNELS": "32", "NCCL_ALGO": "allreduce:tree"}
    found = failure("pcie8-failed-search", large)
    assert found is not None
    assert (found.kind, found.stage) == ("out_of_memory_capture", "capture")
    assert found.message.startswith("CUDA out of memory. Tried to allocate ")
    assert failure("pcie8-failed-search", large, mem_fraction_static="0.75") is None, "a lower fraction leaves room"
    assert failure("pcie8-failed-search", large | {"NCCL_BUFFSIZE": "65536"}) is None, "smaller buffers fit"
    assert failure("pcie8-failed-search", large | {"NCCL_MIN_NCHANNELS": "2"}) is None, "fewer channels fit"
    del large["NCCL_P2P_LEVEL"]
    assert failure("pcie8-failed-search", large) is None, "through host memory the buffers are not on the GPU"


def test_the_largest_buffers_of_the_shipped_space_fail_only_with_a_high_fraction() -> None:
    env = P2P | {"NCCL_BUFFSIZE": str(16 << 20), "NCCL_MIN_NCHANNELS": "32", "NCCL_ALGO": "allreduce:tree"}
    assert failure("pcie8-failed-search", env, mem_fraction_static="0.88") is None
    assert failure("pcie8-failed-search", env, mem_fraction_static="0.92") is not None


def test_nccl_bytes_by_hand() -> None:
    here = machine("pcie8-failed-search")
    settings_ = NcclSettings.of(P2P | {"NCCL_MIN_NCHANNELS": "4"})
    buffers = (512 << 10) + 4_915_200 + (4 << 20)
    assert memory.nccl_bytes(here, here.belief(settings_), tree=False) == 2 * 4 * 1 * buffers
    assert memory.nccl_bytes(here, here.belief(settings_), tree=True) == 2 * 4 * 3 * buffers
    partly = NcclSettings.of({"NCCL_P2P_LEVEL": "PHB", "NCCL_MIN_NCHANNELS": "4"})
    assert memory.nccl_bytes(here, here.belief(partly), tree=False) == 6 * buffers
    assert memory.nccl_bytes(here, here.belief(NcclSettings.of({})), tree=True) == 0


@pytest.mark.parametrize("fraction", ["0.97", "0.99"])
def test_too_high_a_fraction_fails_at_capture(fraction: str) -> None:
    found = failure("pcie8-failed-search", {}, mem_fraction_static=fraction)
    assert found is not None
    assert found.kind == "out_of_memory_capture"


def test_too_low_a_fraction_fails_while_loading() -> None:
    found = failure("pcie8-failed-search", {}, mem_fraction_static="0.7")
    assert found is not None
    assert (found.kind, found.stage) == ("out_of_memory_load", "load")
    assert found.message.startswith("Not enough memory. Please try to increase --mem-fraction-static.")


def test_weights_that_do_not_fit_at_all() -> None:
    here = machine("pcie8-failed-search")
    larger = replace(here, model=replace(here.model, weights_bytes=here.model.weights_bytes * 2))
    found = StepTimes(larger, {}, DEFAULT_ARGS, seed=0).failure()
    assert found is not None
    assert (found.kind, found.stage) == ("out_of_memory_load", "load")
    assert found.message.startswith("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate")


def test_the_measured_kv_cache() -> None:
    """SGLang 0.5.17 on H200 with --mem-fraction-static 0.5: 64.56 GB, 2,219,432 tokens."""
    here = machine("h200x2-shm")
    planned = memory.plan(here, NcclSettings.of({}), {"mem-fraction-static": "0.5"}, tree=False)
    assert planned.kv_bytes / (1 << 30) == pytest.approx(64.56, rel=0.001)
    assert planned.kv_bytes // here.model.kv_bytes_per_token == pytest.approx(2_219_432, rel=0.001)


def test_the_start_that_did_not_finish() -> None:
    env = {"NCCL_ALGO": "allreduce:tree", "NCCL_PROTO": "LL", "NCCL_MAX_NCHANNELS": "1", "NCCL_NTHREADS": "256"}
    assert failure("h200x2-shm", env) == ModelledFailure("hang_load", "capture", "", "")
    for name, other in (("NCCL_NTHREADS", "128"), ("NCCL_MAX_NCHANNELS", "2"), ("NCCL_PROTO", "LL128")):
        assert failure("h200x2-shm", env | {name: other}) is None
    assert failure("pcie8-failed-search", env) is None, "nobody has seen it there"


def test_deterministic_inference_overwrites_the_algorithm() -> None:
    env = {"NCCL_ALGO": "Tree"}
    here = StepTimes(machine("h200x2-shm"), env, {"enable-deterministic-inference": True}, seed=0)
    assert here.failure() is None
    assert here.chosen(14336)[0] == "Tree"


NAMES = [
    *("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS"),
    *("NCCL_NTHREADS", "NCCL_LL128_NTHREADS", "NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE"),
    *("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_THREAD_THRESHOLDS", "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"),
]
WORDS = st.sampled_from(["Tree", "ring", "LL128", "^LL", "allreduce:tree", ":", ";", ",", ":ring", "SYS", "1", "-2"])
TEXTS = st.one_of(
    WORDS,
    st.integers(-(1 << 70), 1 << 70).map(str),
    st.text(),
    st.lists(st.one_of(WORDS, st.sampled_from(";:,^ ")), max_size=6).map("".join),
    st.lists(st.integers(-9, 1 << 66).map(str), max_size=7).map(" ".join),
)


@settings(max_examples=250, deadline=None)
@given(
    st.sampled_from(sorted(MACHINES)),
    st.dictionaries(st.sampled_from(NAMES), TEXTS, max_size=8),
    st.dictionaries(st.sampled_from(["mem-fraction-static", "tp-size"]), st.one_of(st.text(), st.just(True))),
    st.integers(1, 512),
)
def test_no_environment_breaks_the_model(
    name: str, env: dict[str, str], args: dict[str, str | bool], batch: int
) -> None:
    newest = replace(machine(name), engine_version="0.5.23")
    here = StepTimes(newest, env, args, seed=1)
    here.failure()
    for seconds in (here.steady_step_s(batch), here.step_s(batch, 12.5), here.prefill_s(batch * 16)):
        assert math.isfinite(seconds)
        assert seconds > 0
    algorithm, protocol, channels = here.chosen(newest.model.message_bytes(batch))
    assert algorithm in ("Ring", "Tree")
    assert protocol in ("LL", "LL128", "Simple")
    assert 1 <= channels <= 64


def test_only_the_standard_library_is_loaded() -> None:
    """Every process of the stand-in imports the model, on a host that may have nothing else."""
    code = (
        "import sys; before = set(sys.modules); import tuner.simulated.timing\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - sys.stdlib_module_names - {'tuner'}), 'asyncio' in new)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split("\n")[0] == "[] False"
