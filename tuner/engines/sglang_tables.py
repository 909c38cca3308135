"""What SGLang has in which version, what may be tuned, and what its log lines mean: the data of `tuner.engines.sglang`.

Read in the wheels 0.5.6, 0.5.9, 0.5.10, 0.5.11, 0.5.14, 0.5.16, 0.5.17, 0.5.18, 0.5.20, 0.5.21 and 0.5.23
(server_args.py, arg_groups/, environ.py). Where a name came or went between two of them, the span is the wider one:
nothing is refused that might be there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.engines.nccl import Release
from tuner.values.failure import FailureClass

OLDEST: Release = (0, 5, 6)
"""First version with ``/model_info``; before it there is nothing that is both current and everywhere."""


@dataclass(frozen=True)
class Span:
    """The versions that have a name.

    Attributes:
        since: first one; ``None``: older than `OLDEST`.
        until: first one without it.
        instead: what took its place, without dashes.
    """

    since: Release | None = None
    until: Release | None = None
    instead: str = ""


_ALWAYS = Span()

TUNABLE_ARGS: Mapping[str, Span] = {
    # Scheduling and memory
    "num-continuous-decode-steps": _ALWAYS,
    "mem-fraction-static": _ALWAYS,
    "max-running-requests": _ALWAYS,
    "max-total-tokens": _ALWAYS,
    "chunked-prefill-size": _ALWAYS,
    "max-prefill-tokens": _ALWAYS,
    "prefill-max-requests": Span(since=(0, 5, 7)),
    "schedule-policy": _ALWAYS,
    "schedule-conservativeness": _ALWAYS,
    "page-size": _ALWAYS,
    "disable-overlap-schedule": _ALWAYS,
    "scheduler-recv-interval": _ALWAYS,
    "enable-mixed-chunk": _ALWAYS,
    "enable-dynamic-chunking": Span(since=(0, 5, 7)),
    "stream-interval": _ALWAYS,
    "batch-notify-size": Span(since=(0, 5, 11)),
    "disable-radix-cache": _ALWAYS,
    "disable-chunked-prefix-cache": _ALWAYS,
    "kv-cache-dtype": _ALWAYS,
    "numa-node": _ALWAYS,
    # Communication
    "disable-custom-all-reduce": _ALWAYS,
    "enable-mscclpp": _ALWAYS,
    "enable-torch-symm-mem": _ALWAYS,
    "enable-symm-mem": _ALWAYS,
    "enable-nccl-nvls": _ALWAYS,
    "pre-warm-nccl": Span(since=(0, 5, 10)),
    "enable-quant-communications": Span(since=(0, 5, 11)),
    "enable-fused-moe-sum-all-reduce": Span(since=(0, 5, 10)),
    "enable-flashinfer-allreduce-fusion": _ALWAYS,
    "enforce-disable-flashinfer-allreduce-fusion": Span(since=(0, 5, 10)),
    "flashinfer-allreduce-fusion-backend": Span(since=(0, 5, 14)),
    # CUDA graphs
    "cuda-graph-max-bs": Span(until=(0, 5, 20), instead="cuda-graph-max-bs-decode"),
    "cuda-graph-bs": Span(until=(0, 5, 20), instead="cuda-graph-bs-decode"),
    "cuda-graph-max-bs-decode": Span(since=(0, 5, 14), instead="cuda-graph-max-bs"),
    "cuda-graph-bs-decode": Span(since=(0, 5, 14), instead="cuda-graph-bs"),
    "cuda-graph-max-bs-prefill": Span(since=(0, 5, 14)),
    "cuda-graph-bs-prefill": Span(since=(0, 5, 14)),
    "cuda-graph-backend-decode": Span(since=(0, 5, 14)),
    "cuda-graph-backend-prefill": Span(since=(0, 5, 14)),
    "disable-cuda-graph": _ALWAYS,
    "disable-decode-cuda-graph": Span(since=(0, 5, 14), instead="disable-cuda-graph"),
    "disable-prefill-cuda-graph": Span(since=(0, 5, 14)),
    "disable-cuda-graph-padding": _ALWAYS,
    # Parallelism
    "tp-size": _ALWAYS,
    "pp-size": _ALWAYS,
    "dp-size": _ALWAYS,
    "ep-size": _ALWAYS,
    "enable-dp-attention": _ALWAYS,
    "enable-dp-lm-head": _ALWAYS,
    "moe-dense-tp-size": _ALWAYS,
    "enable-tp-lm-head-all-to-all": Span(since=(0, 5, 18)),
    "enable-two-batch-overlap": _ALWAYS,
    "enable-single-batch-overlap": _ALWAYS,
    "tbo-token-distribution-threshold": _ALWAYS,
    # Kernels
    "attention-backend": _ALWAYS,
    "prefill-attention-backend": _ALWAYS,
    "decode-attention-backend": _ALWAYS,
    "sampling-backend": _ALWAYS,
    "moe-runner-backend": _ALWAYS,
    "moe-a2a-backend": _ALWAYS,
    "fp8-gemm-backend": Span(since=(0, 5, 7)),
    "fp4-gemm-backend": Span(since=(0, 5, 7)),
    "triton-attention-num-kv-splits": _ALWAYS,
    "triton-attention-split-tile-size": _ALWAYS,
    "flashinfer-mla-disable-ragged": _ALWAYS,
    "disable-flashinfer-autotune": Span(since=(0, 5, 7)),
    "disable-shared-experts-fusion": _ALWAYS,
    "enable-fused-qk-norm-rope": Span(since=(0, 5, 7)),
    "enable-torch-compile": _ALWAYS,
    "torch-compile-max-bs": _ALWAYS,
    # Speculation; the draft model itself is a path and belongs in the study file
    "speculative-algorithm": _ALWAYS,
    "speculative-num-steps": _ALWAYS,
    "speculative-eagle-topk": _ALWAYS,
    "speculative-num-draft-tokens": _ALWAYS,
    "speculative-attention-mode": _ALWAYS,
    "speculative-draft-attention-backend": Span(since=(0, 5, 7)),
    "speculative-draft-window-size": Span(since=(0, 5, 12)),
    "speculative-moe-runner-backend": _ALWAYS,
    "speculative-use-rejection-sampling": Span(since=(0, 5, 14)),
    "speculative-adaptive": Span(since=(0, 5, 11)),
    "speculative-ngram-min-bfs-breadth": _ALWAYS,
    "speculative-ngram-max-bfs-breadth": _ALWAYS,
    "speculative-ngram-match-type": _ALWAYS,
    "speculative-ngram-capacity": _ALWAYS,
    "speculative-ngram-max-trie-depth": Span(since=(0, 5, 10), instead="speculative-ngram-branch-length"),
    "speculative-ngram-branch-length": Span(until=(0, 5, 10), instead="speculative-ngram-max-trie-depth"),
    "speculative-ngram-max-match-window-size": Span(until=(0, 5, 10)),
    "speculative-ngram-min-match-window-size": Span(until=(0, 5, 10)),
}
"""Performance settings that a search space may hold, and the versions that know them."""

OTHER_ARGS: Mapping[str, Span] = {
    "stream-output": Span(until=(0, 5, 20), instead="incremental-streaming-output"),
    "incremental-streaming-output": Span(since=(0, 5, 10), instead="stream-output"),
    "soft-watchdog-timeout": Span(since=(0, 5, 7)),
    "startup-weight-load-mode": Span(since=(0, 5, 18)),
    "cuda-graph-config": Span(since=(0, 5, 14)),
}
"""Names that come and go and are no tuning matter, but stand in people's launch commands."""

TUNABLE_ENV: Mapping[str, Span] = {
    "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": Span(since=(0, 5, 21)),
    "SGLANG_PCIE_IPC_MAX_NUMEL": Span(since=(0, 5, 21)),
    "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2": Span(since=(0, 5, 12)),
    "SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB": Span(since=(0, 5, 15)),
    "SGLANG_SYMM_MEM_PREALLOC_GB_SIZE": _ALWAYS,
    "SGLANG_ENABLE_SPEC_V2": Span(until=(0, 5, 14)),
    "SGLANG_ENABLE_OVERLAP_PLAN_STREAM": _ALWAYS,
    "SGLANG_NCCL_ALL_GATHER_IN_OVERLAP_SCHEDULER_SYNC_BATCH": _ALWAYS,
    "SGLANG_SCHEDULER_MAX_RECV_PER_POLL": _ALWAYS,
    "SGLANG_SPEC_TP_SYNC": Span(since=(0, 5, 19)),
}
"""SGLang's own performance variables; NCCL's are in `tuner.engines.nccl`."""

ALIASES: Mapping[str, str] = {
    "tensor-parallel-size": "tp-size",
    "pipeline-parallel-size": "pp-size",
    "data-parallel-size": "dp-size",
    "expert-parallel-size": "ep-size",
    "ep": "ep-size",
    "model": "model-path",
    "speculative-draft-model": "speculative-draft-model-path",
}
"""Second names of arguments → the one that ``/server_info`` uses."""

LISTS = frozenset(
    {
        "bucket-e2e-request-latency",
        "bucket-inter-token-latency",
        "bucket-time-to-first-token",
        "cuda-graph-bs",
        "cuda-graph-bs-decode",
        "cuda-graph-bs-prefill",
        "custom-weight-loader",
        "debug-tensor-dump-layers",
        "flashinfer-autotune-skip-ops",
        "gc-threshold",
        "generation-tokens-buckets",
        "log-requests-target",
        "lora-paths",
        "lora-target-modules",
        "numa-node",
        "piecewise-cuda-graph-tokens",
        "prefill-delayer-forward-passes-buckets",
        "prefill-delayer-wait-seconds-buckets",
        "prompt-tokens-buckets",
        "tokenizer-metrics-allowed-custom-labels",
        "uvicorn-access-log-exclude-prefixes",
    }
)
"""Arguments that take several words (``nargs``): a study file writes them as one text with blanks, ``"1 2 4 8"``."""

OWN_ARGS = ("host", "port", "weight-version")
"""What the tuner gives every launch itself."""

OWN_ENV = ("TUNER_NONCE", "SPT_NOENV")

UNWORKABLE: Mapping[str, str] = {
    "api-key": "the tuner sends no key: it reaches the server on the host's loopback only",
    "admin-api-key": "the tuner sends no key: it reaches the server on the host's loopback only",
    "ssl-certfile": "the tuner speaks plain HTTP: it reaches the server through SSH",
    "ssl-keyfile": "the tuner speaks plain HTTP: it reaches the server through SSH",
    "grpc-mode": "the tuner measures over HTTP",
    "smg-grpc-mode": "the tuner measures over HTTP",
    "skip-tokenizer-init": "the tuner sends text, which needs the tokenizer",
    "is-embedding": "the tuner measures generated tokens, of which an embedding server has none",
}
"""Arguments of a study file's launch with which nothing can be measured, and why."""

ENV_REASONS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"LD_.*|DYLD_.*"), "tells the loader which code to run"),
    (re.compile(r"PYTHON.*|PATH|HOME|VIRTUAL_ENV|SHELL|IFS|BASH_ENV|ENV"), "decides which code is run"),
    (re.compile(r".*(PLUGIN|SO_PATH|PRELOAD|_LIB|LIBRARY).*|NCCL_NET"), "loads code"),
    (re.compile(r".*(FILE|PATH|DIR|FOLDER|CACHE|SOCKET).*"), "names a file, a folder or an address"),
    (re.compile(r"NCCL_DEBUG.*"), "is set by the tuner, which reads in NCCL's log what it took"),
    (re.compile(r"NCCL_GRAPH_MIXING_SUPPORT"), "is unsafe: SGLang mixes captured decode steps with eager prefills"),
    (re.compile(r"NCCL_(IB|NET|PXN|CROSS_NIC|NSOCKS|SOCKET).*"), "has no effect on one node"),
    (re.compile(r"SGLANG_SIMULATE_.*|SGLANG_TEST_.*"), "makes the server's output wrong on purpose"),
    (re.compile(r"CUDA_DEVICE_MAX_CONNECTIONS"), "is overwritten by SGLang at every start"),
)
ARG_REASONS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"trust-remote-code|.*(loader|weight-load|load-format|plugin|hook|import|stat-loggers).*"),
        "runs code",
    ),
    (re.compile(r".*(host|port|addr|url|ip|endpoint|socket|ssl|api-key|ray).*"), "decides who can reach the server"),
    (
        re.compile(r".*(path|file|folder|dir|config|template|dump|download|revision|model|version|json).*"),
        "names a file, a model or a place to write to",
    ),
    (re.compile(r"speculative-accept-threshold.*|.*(dtype|quantization|torchao).*"), "changes what the model answers"),
)
"""Why a name is not tunable, by what it looks like. For the message only: what is not listed is refused anyway."""


@dataclass(frozen=True)
class Phrase:
    """A line that a failure leaves in the log.

    Attributes:
        failure_class: the class, or ``memory`` and ``hang``, whose class depends on when it happened.
        remedy: in place of the class's own.
    """

    pattern: re.Pattern[str]
    failure_class: FailureClass | str
    remedy: str = ""


def _phrase(pattern: str, failure_class: FailureClass | str, remedy: str = "") -> Phrase:
    return Phrase(re.compile(pattern), failure_class, remedy)


_SHM_FULL = (
    "A file system of the host is full, most often /dev/shm: remove what old servers left there (nccl-*, "
    "sgl_shm_mm_*), or enlarge it."
)

CAUSES: tuple[Phrase, ...] = (
    _phrase(
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "memory",
        "Raise --mem-fraction-static: the weights leave no room for the KV cache within it.",
    ),
    _phrase(r"The memory capacity is unbalanced\.", FailureClass.GPU_BUSY),
    _phrase(r"OutOfMemoryError\b|CUDA out of memory|CUBLAS_STATUS_ALLOC_FAILED", "memory"),
    _phrase(
        r"CUDA error: out of memory|Cuda failure (?:\d+ )?'out of memory'|Failed to CUDA [\w ]+ \d+ bytes", "memory"
    ),
    _phrase(r"(?:Decode|Prefill) out of memory\.|alloc_req_slots runs out of memory", FailureClass.OUT_OF_MEMORY_RUN),
    _phrase(r"No space left on device|Bus error", FailureClass.CRASHED, _SHM_FULL),
    _phrase(r"o algorithm/protocol available for function", FailureClass.NCCL_REFUSED),
    _phrase(r"Unrecognized (?:element|prefix) token", FailureClass.NCCL_REFUSED),
    _phrase(r"All entries except the first must have a prefix", FailureClass.NCCL_REFUSED),
    _phrase(r"Watchdog caught collective operation timeout: WorkNCCL", "hang"),
    _phrase(r"Scheduler watchdog timeout \((?!.*self\.soft=True)", "hang"),
    _phrase(r"Health check failed\. Server couldn't get a response", "hang"),
    _phrase(r"NCCL error: |NCCL error in: |ncclInvalidUsage|ncclInvalidArgument", FailureClass.NCCL_REFUSED),
    _phrase(r"error while attempting to bind on address|EADDRINUSE|OSError: \[Errno 98\]", FailureClass.PORT_TAKEN),
    _phrase(r"is not available in \d+ seconds|is used by a process already", FailureClass.PORT_TAKEN),
    _phrase(
        r": error: (?:unrecognized arguments|ambiguous option|argument |the following arguments)",
        FailureClass.BAD_FLAG,
    ),
    _phrase(r"Unknown speculative algorithm name", FailureClass.BAD_FLAG),
    _phrase(
        r"selected index k out of range",
        FailureClass.DRAFT_MISMATCH,
        "The draft tree is too small for the tokens asked of it: lower --speculative-num-draft-tokens, or raise "
        "--speculative-num-steps or --speculative-eagle-topk.",
    ),
    _phrase(r"EAGLE3 currently only supports 1 layer|MTP draft .* must match the target", FailureClass.DRAFT_MISMATCH),
    # Ended from outside: by TERM, or a child by KILL without a word of its own before.
    _phrase(r"SIGTERM received\. signum=", FailureClass.KILLED),
    _phrase(r"Subprocess \S+ \(pid=\d+\) crashed with exit code -(?:9|15)\.", FailureClass.KILLED),
    _phrase(r"died during initialization \(exit code: -9\)|\] Exit code: -9$", FailureClass.KILLED),
)
"""Root causes. The first line of a log that matches one decides, so what follows from it does not count."""

CASCADE = re.compile(
    r"Subprocess \S+ \(pid=\d+\) crashed with exit code|scheduler died during initialization|scheduler is dead\."
    r"|Received sigquit from a child|SIGQUIT received\.|Initialization failed\.|kill_process_tree called"
)
"""What SGLang says when one of its processes has failed: evidence only where nothing else is."""

REMEDIES: Mapping[FailureClass, str] = {
    FailureClass.OUT_OF_MEMORY_LOAD: "Lower --mem-fraction-static or --max-total-tokens, or use more GPUs.",
    FailureClass.OUT_OF_MEMORY_CAPTURE: "Lower --mem-fraction-static, capture fewer batch sizes, or give NCCL fewer "
    "channels or smaller buffers.",
    FailureClass.OUT_OF_MEMORY_RUN: "Lower --mem-fraction-static, --max-running-requests or the concurrency.",
    FailureClass.NCCL_REFUSED: "Take the NCCL setting that the line names out of the space, or name the function it is "
    "meant for, such as NCCL_ALGO=allreduce:tree.",
    FailureClass.HANG_START: "If larger models start slowly here, raise start_deadline_s or no_progress_s.",
    FailureClass.HANG_RUN: "With NCCL_P2P_LEVEL=SYS look at IOMMU and ACS on the host.",
    FailureClass.BAD_FLAG: "Look up the flag in the --help of the version on the host.",
    FailureClass.DRAFT_MISMATCH: "Use a draft model that was trained for this target model.",
    FailureClass.PORT_TAKEN: "Stop the server that holds the port, or give the host another port.",
    FailureClass.GPU_BUSY: "Another process holds memory on some GPUs: see nvidia-smi on the host.",
    FailureClass.KILLED: "Not by the tuner: look for the host's OOM killer (dmesg -T | grep -i oom) or for a person.",
}

STAGES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"Capturing batches .*?(\d+)/(\d+) \["), "graph capture {0}/{1}"),
    (re.compile(r"shards:\s+(\d+)% Completed"), "weights {0} %"),
    (re.compile(r"Capture .*graph (?:begin|end)"), "graph capture"),
    (re.compile(r"Load weight (?:begin|end)"), "weights"),
    (re.compile(r"KV Cache is allocated|Memory pool end"), "KV cache"),
    (re.compile(r"Init (?:torch distributed|parallel) (?:begin|ends)|using nccl=="), "communicators"),
    (re.compile(r"max_total_num_tokens=\d|Started server process|Application startup|Uvicorn running"), "warm-up"),
    (re.compile(r"server_args=ServerArgs\("), "imports"),
)
"""What SGLang is doing, by the last line that tells. Before the first it imports Python modules."""

FIRED_UP = "The server is fired up and ready to roll!"
