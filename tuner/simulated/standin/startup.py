"""What a scheduler does before it serves: communicators, weights, KV cache, graph capture; and how that fails."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from tuner.simulated.standin import gpu_registry
from tuner.simulated.standin.capacity import Capacity
from tuner.simulated.standin.log import Log
from tuner.simulated.standin.nccl_log import NcclLog
from tuner.simulated.standin.settings import Settings
from tuner.simulated.timing import ModelledFailure, StepTimes

_GIB = 1 << 30
_DRAFT_ARCHITECTURE = "LlamaForCausalLMEagle3"
_SHARE = {"init": 0.2, "load": 0.3, "capture": 0.5}
"""How the loading time is divided."""

_TRACE = {
    "init": [
        ("managers/scheduler.py", 4931, "run_scheduler_process", "scheduler = Scheduler("),
        ("managers/scheduler.py", 985, "init_model_worker", "self.init_tp_model_worker()"),
        ("distributed/parallel_state.py", 640, "__init__", "self.pynccl_comm = PyNcclCommunicator("),
    ],
    "load": [
        ("managers/scheduler.py", 4931, "run_scheduler_process", "scheduler = Scheduler("),
        ("managers/scheduler.py", 985, "init_model_worker", "self.init_tp_model_worker()"),
        ("model_executor/model_runner.py", 1041, "initialize", "self.init_memory_pool("),
    ],
    "capture": [
        ("managers/scheduler.py", 4931, "run_scheduler_process", "scheduler = Scheduler("),
        ("managers/scheduler.py", 985, "init_model_worker", "self.init_all_cuda_graphs()"),
        ("model_executor/runner/decode_cuda_graph_runner.py", 417, "__init__", "raise Exception("),
    ],
}
"""Where a start fails in SGLang 0.5.17: file, line, function, source; shortened to the frames that tell the stage."""

_SOLUTIONS = (
    "Possible solutions:\n"
    "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)\n"
    "2. set --cuda-graph-max-bs-decode to a smaller value (e.g., 16)\n"
    "3. disable decode CUDA graph by --cuda-graph-backend-decode=disabled. (Not recommended. Huge performance loss)\n"
    "Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose \n"
)


class Startup:
    """The start of one scheduler.

    Args:
        args: resolved server arguments.
        env: environment of the process.
    """

    def __init__(
        self,
        rank: int,
        args: Mapping[str, Any],
        env: Mapping[str, str],
        settings: Settings,
        times: StepTimes,
        capacity: Capacity,
    ) -> None:
        self._rank = rank
        self._args = args
        self._settings = settings
        self._times = times
        self._capacity = capacity
        self._log = Log(rank)
        self._nccl = NcclLog(env, os.getpid(), rank, args["tp_size"], times)
        self._failure = times.failure()
        self._began_s = time.monotonic()
        self.took: dict[str, float] = {}

    def run(self) -> None:
        """Returns when the scheduler can serve. A start that the model says must fail ends the process."""
        self._stage("init", self._init)
        self._stage("load", self._load)
        self._stage("capture", self._capture)
        self.took["scheduler_e2e"] = time.monotonic() - self._began_s

    def _stage(self, name: str, body: Any) -> None:
        begun = time.monotonic()
        body(self._settings.load_s * _SHARE[name])
        self.took[name] = time.monotonic() - begun

    def _wait(self, stage: str, seconds: float) -> None:
        """Time passes; the failure of this stage, if there is one, happens at the end of it."""
        time.sleep(seconds)
        self._fail_if(stage)

    def _fail_if(self, point: str) -> None:
        """Fails where the model says so. Of what fails while loading, only the allocator does so in the weights."""
        if self._failure is None:
            return
        where: str = self._failure.stage
        if where == "load" and "torch.OutOfMemoryError" not in self._failure.message:
            where = "memory pool"
        if where == point:
            self._fail(self._failure)

    def _init(self, seconds: float) -> None:
        self._log.line("Init torch distributed begin.")
        if self._rank == 0:
            self._log.line(f"sglang is using nccl=={self._times.machine.nccl_version}")
        self._log.raw(self._nccl.init(), fd=1)
        self._wait("init", seconds)
        used = self._capacity.gpu_bytes - self._capacity.before_weights_bytes
        self._log.line(f"Init torch distributed ends. elapsed={seconds:.2f} s, mem usage={used / _GIB:.2f} GB")

    def _load(self, seconds: float) -> None:
        room, model = self._capacity, self._times.machine.model
        used = room.gpu_bytes - max(0, room.after_weights_bytes)
        gpu_registry.register(self._settings.state_dir, self._rank, used)
        self._log.line(f"Load weight begin. avail mem={room.before_weights_bytes / _GIB:.2f} GB")
        if "hang_load" in self._settings.faults:
            _hang()
        half = seconds / 2
        if self._rank == 0 and self._args["load_format"] != "dummy":
            self._log.raw("\nLoading safetensors checkpoint shards:   0% Completed | 0/64 [00:00<?, ?it/s]\n")
            time.sleep(half)
            self._log.raw("\nLoading safetensors checkpoint shards:  50% Completed | 32/64 [00:00<00:00, 64.0it/s]\n")
            half = seconds - half
        else:
            half = seconds
        self._wait("load", half)
        self._log.line(
            f"Load weight end. elapsed={seconds:.2f} s, type={model.architectures[0]}, "
            f"avail mem={room.after_weights_bytes / _GIB:.2f} GB, mem usage={room.weight_bytes / _GIB:.2f} GB."
        )
        if room.plan.draft_bytes:
            after = room.after_weights_bytes - room.plan.draft_bytes
            self._log.line(f"Load weight begin. avail mem={room.after_weights_bytes / _GIB:.2f} GB")
            self._log.line(
                f"Load weight end. elapsed=0.01 s, type={_DRAFT_ARCHITECTURE}, avail mem={after / _GIB:.2f} GB, "
                f"mem usage={room.plan.draft_bytes / _GIB:.2f} GB."
            )
        self._fail_if("memory pool")
        self._log.line(
            f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {room.tokens}, "
            f"K size: {room.kv_bytes / 2 / _GIB:.2f} GB, V size: {room.kv_bytes / 2 / _GIB:.2f} GB"
        )
        self._log.line(f"Memory pool end. avail mem={room.after_pool_bytes / _GIB:.2f} GB")

    def _capture(self, seconds: float) -> None:
        room, faults = self._capacity, self._settings.faults
        stuck = float("inf") if "gpu_memory_stuck" in faults else 1.0 if "gpu_memory_late" in faults else None
        gpu_registry.register(self._settings.state_dir, self._rank, room.used_bytes, stuck_s=stuck)
        graph = self._args.get("cuda_graph_config")
        if graph is not None and graph["decode"]["backend"] == "disabled":
            self._log.line("Disable decode CUDA graph because cuda_graph_config resolved decode.backend='disabled'")
            return
        speculative = self._args["speculative_algorithm"] is not None
        sizes: list[int] = graph["decode"]["bs"] if graph is not None else [1, 2, 4, 8]
        self._log.line(
            f"Capture target {'verify' if speculative else 'decode'} CUDA graph begin. backend=full, "
            f"num_tokens_per_req={self._args['speculative_num_draft_tokens'] if speculative else 1}, bs={sizes}, "
            f"avail mem={room.after_pool_bytes / _GIB:.2f} GB"
        )
        tokens = self._times.speculation.tokens if self._times.speculation is not None else 1
        self._log.raw(self._nccl.chosen([size * tokens for size in sizes]), fd=1)
        self._progress(sizes, seconds)
        self._log.line(
            f"Capture target {'verify' if speculative else 'decode'} CUDA graph end. elapsed={seconds:.2f} s, "
            f"mem usage={room.graph_gb:.2f} GB, avail mem={room.after_capture_bytes / _GIB:.2f} GB."
        )
        if room.plan.draft_bytes:
            self._draft_captures(sizes)

    def _draft_captures(self, sizes: Sequence[int]) -> None:
        """The drafter's own graphs; what they take is in the memory plan as a whole."""
        avail = f"avail mem={self._capacity.after_capture_bytes / _GIB:.2f} GB"
        tokens = self._args["speculative_num_draft_tokens"]
        for name, per_request, used_gb in (
            ("decode", self._args["speculative_eagle_topk"], 0.05),
            ("extend", tokens, 0.08),
        ):
            self._log.line(
                f"Capture draft {name} CUDA graph begin. backend=full, num_tokens_per_req={per_request}, "
                f"bs={list(sizes)}, {avail}"
            )
            self._log.line(f"Capture draft {name} CUDA graph end. elapsed=0.01 s, mem usage={used_gb:.2f} GB, {avail}.")

    def _progress(self, sizes: Sequence[int], seconds: float) -> None:
        """The progress bar of rank 0, at a few of its stages."""
        left = sorted(sizes, reverse=True)
        stages = min(4, len(left)) if self._rank == 0 else 1
        for stage in range(stages):
            done = stage * len(left) // stages
            if self._rank == 0:
                avail = self._capacity.after_pool_bytes / _GIB
                share = 100 * done // len(left)
                self._log.raw(
                    f"\rCapturing batches (bs={left[done]} avail_mem={avail:.2f} GB): {share:3d}%| {done}/{len(left)}\n"
                )
            self._wait("capture" if stage == stages - 1 else "", seconds / stages)

    def _fail(self, failure: ModelledFailure) -> None:
        if failure.kind == "hang_load":
            _hang()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self._log.raw(self._nccl.warning(stamp, failure.nccl_warning), fd=1)
        if failure.stage == "capture":
            cause = "torch.OutOfMemoryError" if failure.kind == "out_of_memory_capture" else "RuntimeError"
            raise_scheduler(
                self._log,
                "capture",
                f"Exception: Capture cuda graph failed: {failure.message}\n{_SOLUTIONS}",
                during=f"{cause}: {failure.message}",
            )
        text = failure.message if _names_exception(failure.message) else f"RuntimeError: {failure.message}"
        raise_scheduler(self._log, failure.stage, text)


def _names_exception(message: str) -> bool:
    head = message.split(":")[0]
    return head.replace(".", "").isidentifier() and head.endswith(("Error", "Exception"))


def raise_scheduler(log: Log, stage: str, text: str, *, during: str = "") -> NoReturn:
    """Ends a scheduler as a Python exception in it does: the traceback, then SIGQUIT to the launcher.

    Args:
        stage: ``init``, ``load``, ``capture``, or another name for no frames but the outermost.
        text: last line(s) of the traceback: the exception and its message.
        during: the exception that was being handled.
    """
    frames = _TRACE.get(stage, _TRACE["init"][:1])
    lines = "".join(
        f'  File "<site-packages>/sglang/srt/{file}", line {line}, in {function}\n    {source}\n'
        for file, line, function, source in frames
    )
    head = "Traceback (most recent call last):\n"
    if during:
        head += f"{during}\n\nDuring handling of the above exception, another exception occurred:\n\n{head}"
    log.line(f"Scheduler hit an exception: {head}{lines}{text}\n")
    os.kill(os.getppid(), signal.SIGQUIT)
    time.sleep(5)  # the launcher kills its children; nobody here may go on
    os._exit(1)


def _hang() -> NoReturn:
    while True:
        time.sleep(3600)
