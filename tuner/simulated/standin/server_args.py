"""From the arguments given to the arguments that SGLang runs with: its defaults, its rewrites and its refusals."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from tuner.simulated.machine import Machine
from tuner.simulated.standin.arguments import SPECULATIVE_ALGORITHMS, defaults, version_of
from tuner.simulated.standin.log import Log

_EAGLE_FAMILY = ("EAGLE", "EAGLE3", "STANDALONE")
DEFAULT_MEM_FRACTION = 0.88


def resolve(given: Mapping[str, Any], machine: Machine, log: Log) -> dict[str, Any]:
    """All server arguments, with the values that SGLang would end up with.

    Raises:
        AssertionError, TypeError, ValueError: as SGLang does for what it refuses; its process ends with status 1.
    """
    args = defaults()
    args.update(given)
    args["tokenizer_path"] = args["tokenizer_path"] or args["model_path"]
    args["served_model_name"] = args["served_model_name"] or args["model_path"]
    if ":" in args["served_model_name"]:
        raise ValueError("served_model_name cannot contain a colon (':') character.")
    if args["random_seed"] is None:
        args["random_seed"] = random.SystemRandom().randrange(1 << 30)
    args["page_size"] = args["page_size"] or 1
    if args["mem_fraction_static"] is None:
        args["mem_fraction_static"] = DEFAULT_MEM_FRACTION
    if args["chunked_prefill_size"] is None:
        args["chunked_prefill_size"] = 8192
    if args["chunked_prefill_size"] > 0 and args["chunked_prefill_size"] % args["page_size"]:
        raise AssertionError("chunked_prefill_size must be divisible by page_size")
    if args["tp_size"] > machine.gpus:
        raise ValueError(f"tp_size {args['tp_size']} exceeds the {machine.gpus} GPUs that are visible")
    if args["attention_backend"] is None:
        args["attention_backend"] = "fa3" if machine.topology.compute_capability == 90 else "triton"
    if args["speculative_algorithm"] is not None:
        _speculative(args, log)
    _graph(args, machine, given)
    return args


def _speculative(args: dict[str, Any], log: Log) -> None:
    """SGLang's rules among the speculative arguments, in its order."""
    name = args["speculative_algorithm"].upper()
    if name not in SPECULATIVE_ALGORITHMS:
        raise ValueError(f"Unknown speculative algorithm name: {name}")
    name = "EAGLE" if name == "NEXTN" else name
    args["speculative_algorithm"] = name
    if args["max_running_requests"] is None:
        args["max_running_requests"] = 48
        log.line(
            "Max running requests is reset to 48 for speculative decoding. You can override this by explicitly "
            "setting --max-running-requests."
        )
    if args["enable_mixed_chunk"]:
        args["enable_mixed_chunk"] = False
        log.line(f"Mixed chunked prefill is disabled: {name.lower()} speculative decoding does not support it.")
    if name == "NGRAM":
        if args["speculative_num_draft_tokens"] is None:
            args["speculative_num_draft_tokens"] = 12
        return
    if name not in _EAGLE_FAMILY:
        return
    if args["speculative_draft_model_path"] is not None and args["speculative_draft_model_revision"] is None:
        args["speculative_draft_model_revision"] = "main"
    if args["speculative_num_steps"] is None:
        assert args["speculative_eagle_topk"] is None and args["speculative_num_draft_tokens"] is None
        args.update(speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4)
    steps, topk, tokens = (
        args["speculative_num_steps"],
        args["speculative_eagle_topk"],
        args["speculative_num_draft_tokens"],
    )
    if topk > 1 and args["page_size"] > 1 and args["attention_backend"] not in ("flashinfer", "fa3", "triton"):
        raise ValueError("speculative_eagle_topk > 1 with page_size > 1 needs flashinfer, fa3 or triton attention.")
    if topk == 1 and tokens != steps + 1:
        args["speculative_num_draft_tokens"] = steps + 1
        log.line(
            "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1"
        )


def _graph(args: dict[str, Any], machine: Machine, given: Mapping[str, Any]) -> None:
    """Which batch sizes are captured in a CUDA graph."""
    if "cuda_graph_max_bs" in given:
        args["cuda_graph_max_bs_decode"] = args.pop("cuda_graph_max_bs")
    limit = args["cuda_graph_max_bs_decode"] or (512 if args["tp_size"] >= 4 else 256)
    if args["max_running_requests"]:
        limit = min(limit, args["max_running_requests"])
    sizes = args["cuda_graph_bs_decode"] or capture_sizes(limit, speculative=args["speculative_algorithm"] is not None)
    backend = "disabled" if args["disable_cuda_graph"] or args["disable_decode_cuda_graph"] else "full"
    prefill = [4, 8, 12, *range(16, 33, 4), *range(48, 257, 16), *range(288, 513, 32), *range(576, 1025, 64)]
    rest = {"tc_compiler": "eager", "full_prefill_max_req": None, "full_prefill_prefix_chunk_tokens": None}
    args["cuda_graph_config"] = {
        "decode": {"backend": backend, "max_bs": max(sizes), "bs": sizes, **rest},
        "prefill": {"backend": "disabled", "max_bs": args["chunked_prefill_size"], "bs": prefill, **rest},
    }
    if version_of(machine.engine_version) < (0, 5, 14):
        del args["cuda_graph_config"]


def capture_sizes(limit: int, *, speculative: bool) -> list[int]:
    """Batch sizes up to a limit that SGLang captures, always the limit itself among them."""
    if speculative:
        sizes = [*range(1, 9), *range(10, 33, 2), *range(40, 65, 4), *range(72, 257, 8), *range(272, 513, 16)]
    else:
        sizes = [1, 2, 4, 8, 12, *range(16, 257, 8), *range(272, 512, 16), *range(512, 1025, 32)]
    return sorted({size for size in sizes if size <= limit} | {limit})


def model_args(args: Mapping[str, Any]) -> dict[str, str | bool]:
    """The arguments in the form of the performance model: names with dashes, values as text, ``True`` for a flag."""
    return {
        name.replace("_", "-"): value if value is True else str(value)
        for name, value in args.items()
        if value is not None and value is not False and not isinstance(value, dict | list)
    }


def describe(args: Mapping[str, Any]) -> str:
    """The arguments as SGLang logs them."""
    return "ServerArgs(" + ", ".join(f"{name}={value!r}" for name, value in args.items()) + ")"
