"""The bodies of ``/server_info`` and ``/model_info``: keys and order as recorded from SGLang 0.5.17."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.simulated.machine import Machine
from tuner.simulated.standin.arguments import version_of
from tuner.simulated.standin.capacity import Capacity
from tuner.simulated.standin.frames import Message

_GIB = 1 << 30
_NO_GRAPHS = {
    "prefill": 0.0,
    "decode": 0.0,
    "target_verify": 0.0,
    "draft_prefill": 0.0,
    "draft_decode": 0.0,
    "draft_extend": 0.0,
}

_EMBEDDING_OFF: dict[str, Any] = {
    "family": "none",
    "task": "none",
    "execution": "none",
    "attention": "none",
    "pooling": "model_defined",
    "normalize": False,
    "postprocessor": "none",
    "tokenizer_special_tokens": "model_default",
    "supports_dimensions": False,
    "supports_token_embeddings": False,
    "supports_multimodal": False,
    "requires_embedding_flag": False,
    "auto_enable_embedding": False,
    "bcg_eligibility": "disabled",
    "safe_disable_kv_cache": False,
    "safe_disable_radix_cache": False,
    "safe_disable_chunked_prefill": False,
    "enabled": False,
    "matryoshka_dimensions": [],
}


@dataclass(frozen=True)
class ServerInfo:
    """What the server says of itself.

    Attributes:
        argv: the command line's arguments.
        took: seconds of the start's stages on rank 0, and ``tokenizer_e2e`` of the launcher.
    """

    args: Mapping[str, Any]
    argv: tuple[str, ...]
    machine: Machine
    capacity: Capacity
    took: Mapping[str, float]

    def model(self) -> dict[str, Any]:
        """Body of ``/model_info``."""
        args, model, version = self.args, self.machine.model, version_of(self.machine.engine_version)
        seeing = model.model_type.startswith("kimi_k25")
        info: dict[str, Any] = {"model_path": args["model_path"]}
        if version >= (0, 5, 20):
            info["served_model_name"] = args["served_model_name"]
        info |= {
            "tokenizer_path": args["tokenizer_path"],
            "is_generation": True,
            "preferred_sampling_params": args["preferred_sampling_params"],
            "weight_version": args["weight_version"],
        }
        if version >= (0, 5, 20):
            info |= {
                "load_format": args["load_format"],
                "reasoning_parser": args["reasoning_parser"],
                "tool_call_parser": args["tool_call_parser"],
                "disaggregation_mode": "null",
            }
        info |= {
            "has_image_understanding": seeing,
            "has_audio_understanding": False,
            "model_type": model.model_type,
            "architectures": list(model.architectures),
        }
        if (0, 5, 16) <= version < (0, 5, 20):
            prefill = args["cuda_graph_config"]["prefill"]
            info["embedding"] = {
                **_EMBEDDING_OFF,
                "bcg": {
                    "prefill_backend": prefill["backend"],
                    "enabled": False,
                    "capture_token_budget": prefill["max_bs"],
                    "capture_batch_sizes": prefill["bs"],
                },
                "cache": {
                    "kv_cache_disabled": False,
                    "radix_cache_disabled": args["disable_radix_cache"],
                    "chunked_prefill_disabled": args["chunked_prefill_size"] <= 0,
                },
            }
        return info

    def server(self, state: Message) -> dict[str, Any]:
        """Body of ``/server_info``.

        Args:
            state: rank 0's own account.
        """
        version = version_of(self.machine.engine_version)
        info = dict(self.args)
        if version >= (0, 5, 20):
            info["launch_command"] = " ".join(("python3", "-m", "sglang.launch_server", *self.argv))
        startup = self.startup()
        info |= {
            "status": "ready",
            "max_total_num_tokens": self.capacity.tokens,
            "max_req_input_len": self.capacity.max_input,
            "startup_time": startup,
            "internal_states": [self._internal(state, startup)],
            "version": self.machine.engine_version,
        }
        return info | ({"frontend": "python"} if version >= (0, 5, 20) else {"kv_events": None})

    def startup(self) -> dict[str, Any]:
        """Seconds of the start's stages."""
        took = self.took
        scheduler = {
            "load_weight": took.get("load", 0.0),
            "kv_cache_allocation": 0.0,
            "scheduler_e2e": took.get("scheduler_e2e", 0.0),
            "cuda_graph": {**_NO_GRAPHS, self._phase: took.get("capture", 0.0)},
        }
        return {**scheduler, "tokenizer_e2e": took.get("tokenizer_e2e", 0.0)}

    @property
    def _phase(self) -> str:
        return "target_verify" if self.args["speculative_algorithm"] else "decode"

    def _internal(self, state: Message, startup: Mapping[str, Any]) -> dict[str, Any]:
        internal: dict[str, Any] = {
            **{name: value for name, value in self.args.items() if name != "custom_sigquit_handler"},
            "pp_max_micro_batch_size": self.capacity.running,
            "_resolved_overrides": [["_page_size_default", {"page_size": self.args["page_size"]}]],
            "grpc_worker_threads": 4,
            "_quantization_explicitly_unset": False,
            "_cuda_graph_config_locked": [],
            "_declarations_materialized": True,
            "_mx_config_cache": {},
            "max_speculative_num_draft_tokens": self.args["speculative_num_draft_tokens"],
            "last_gen_throughput": state["last_gen_throughput"],
            "memory_usage": {
                "weight": round(self.capacity.weight_bytes / _GIB, 3),
                "kvcache": round(self.capacity.kv_bytes / _GIB, 3),
                "startup_available": round(self.capacity.after_capture_bytes / _GIB, 3),
                "token_capacity": self.capacity.tokens,
                "token_capacity_swa": None,
                "graph": {**_NO_GRAPHS, self._phase: round(self.capacity.graph_gb, 3)},
            },
            "startup_time": {name: value for name, value in startup.items() if name != "tokenizer_e2e"},
            "effective_max_running_requests_per_dp": self.capacity.running,
        }
        if "avg_spec_accept_length" in state:
            internal["avg_spec_accept_length"] = state["avg_spec_accept_length"]
        return {**internal, "simulated_lateness": state["simulated_lateness"]}
