"""The command line of SGLang: its flags, by version, and its defaults.

`flags.json` holds the names, kinds and choices that ``--help`` of SGLang 0.5.17 prints, `defaults.json` its server
arguments in order with their defaults on a GPU host; `SINCE` and `UNTIL` say which of the flags other versions lack.
Abbreviations are accepted as argparse does, so ``--cuda-graph-max-bs`` is ambiguous in the version that removed it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

SINCE: dict[str, tuple[int, int, int]] = {
    "--cuda-graph-max-bs-decode": (0, 5, 14),
    "--cuda-graph-max-bs-prefill": (0, 5, 14),
    "--cuda-graph-bs-decode": (0, 5, 14),
    "--cuda-graph-bs-prefill": (0, 5, 14),
    "--cuda-graph-config": (0, 5, 14),
    "--cuda-graph-backend-decode": (0, 5, 14),
    "--cuda-graph-backend-prefill": (0, 5, 14),
    "--disable-decode-cuda-graph": (0, 5, 14),
    "--incremental-streaming-output": (0, 5, 10),
    "--flashinfer-allreduce-fusion-backend": (0, 5, 14),
    "--enforce-disable-flashinfer-allreduce-fusion": (0, 5, 10),
    "--pre-warm-nccl": (0, 5, 10),
    "--enable-quant-communications": (0, 5, 11),
    "--enable-fused-moe-sum-all-reduce": (0, 5, 10),
    "--speculative-draft-load-format": (0, 5, 4),
    "--speculative-draft-model-quantization": (0, 5, 9),
    "--speculative-draft-attention-backend": (0, 5, 9),
    "--speculative-use-rejection-sampling": (0, 5, 14),
    "--speculative-adaptive": (0, 5, 11),
    "--speculative-adaptive-config": (0, 5, 11),
    "--startup-weight-load-mode": (0, 5, 18),
    "--soft-watchdog-timeout": (0, 5, 9),
    "--batch-notify-size": (0, 5, 11),
    "--disable-flashinfer-autotune": (0, 5, 9),
    "--sampling-defaults": (0, 5, 4),
}
"""First version of a flag, where it is not older than those of interest (read in the wheels of 0.5.3 to 0.5.23)."""

UNTIL: dict[str, tuple[int, int, int]] = {
    "--cuda-graph-max-bs": (0, 5, 20),
    "--cuda-graph-bs": (0, 5, 20),
    "--stream-output": (0, 5, 20),
}
"""First version without the flag."""

_ALL_VERSIONS = ({"names": ["--startup-weight-load-mode"], "dest": "startup_weight_load_mode", "kind": "str"},)
"""Flags of later versions than the one whose help was recorded."""

SPECULATIVE_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM", "DFLASH", "DSPARK", "UNO")


def version_of(text: str) -> tuple[int, int, int]:
    """``0.5.4.post1`` → (0, 5, 4)."""
    parts = [int(part) for part in text.split(".")[:3] if part.isdigit()]
    return (*parts, 0, 0, 0)[:3]  # type: ignore[return-value]


def _data(name: str) -> Any:
    return json.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))


def defaults() -> dict[str, Any]:
    """Every server argument with its default, in SGLang's order."""
    values: dict[str, Any] = _data("defaults.json")
    return values


def parser(version: str) -> argparse.ArgumentParser:
    """The parser of a version."""
    number = version_of(version)
    prog = "sglang serve" if number >= (0, 5, 11) else "launch_server.py"
    result = argparse.ArgumentParser(prog=prog, allow_abbrev=True, argument_default=argparse.SUPPRESS)
    kinds: dict[str, Any] = {"int": int, "float": float, "str": str}
    for flag in (*_data("flags.json"), *_ALL_VERSIONS):
        name = flag["names"][0]
        if number < SINCE.get(name, number) or number >= UNTIL.get(name, (9, 0, 0)):
            continue
        if flag["kind"] == "flag":
            result.add_argument(*flag["names"], dest=flag["dest"], action="store_true")
            continue
        options: dict[str, Any] = {"dest": flag["dest"], "type": kinds[flag["kind"]]}
        if "choices" in flag:
            options["choices"] = [options["type"](choice) for choice in flag["choices"]]
        if "nargs" in flag:
            options["nargs"] = flag["nargs"]
        if flag.get("required"):
            options["required"] = True
        if name == "--speculative-algorithm" and number < (0, 5, 10):
            options["choices"] = list(SPECULATIVE_ALGORITHMS[:5])
        result.add_argument(*flag["names"], **options)
    return result


def parse(argv: Sequence[str], version: str) -> dict[str, Any]:
    """Server arguments of a command line: those given, by their field's name.

    Raises:
        SystemExit: with status 2 and argparse's message, as SGLang ends.
    """
    return vars(parser(version).parse_args(argv))
