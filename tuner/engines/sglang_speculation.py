"""SGLang's rules among speculative settings, each a small function, so that none of them costs a launch.

Source: ``arg_groups/speculative_hook.py`` and ``speculative/eagle_utils.py`` of SGLang 0.5.9 to 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tuner.engines.nccl import Release
from tuner.values.configuration import Scalar

_EAGLES = frozenset({"EAGLE", "EAGLE3"})
_CHAINED = _EAGLES | {"STANDALONE"}
"""Algorithms with steps, top-k and draft tokens."""

_ALGORITHMS = _CHAINED | {"NGRAM", "DFLASH", "DSPARK", "UNO"}
_TRIPLE = ("speculative-num-steps", "speculative-eagle-topk", "speculative-num-draft-tokens")


@dataclass(frozen=True)
class Speculation:
    """The settings that the rules look at.

    Attributes:
        args: canonical names → values, base and configuration together.
        algorithm: in capitals, NEXTN as the EAGLE that SGLang makes of it; empty without speculation.
        steps, topk, tokens: whole numbers, or ``None`` where unset.
        version: of SGLang; ``None`` if unknown.
    """

    args: Mapping[str, Scalar]
    env: Mapping[str, str]
    version: Release | None
    algorithm: str
    steps: int | None
    topk: int | None
    tokens: int | None

    @classmethod
    def of(cls, args: Mapping[str, Scalar], env: Mapping[str, str], version: Release | None) -> Speculation:
        """Reads the settings; a number that is none counts as unset, SGLang's own parser names it."""
        algorithm = str(args.get("speculative-algorithm") or "").upper()
        steps, topk, tokens = (_whole(args.get(name)) for name in _TRIPLE)
        return cls(args, env, version, "EAGLE" if algorithm == "NEXTN" else algorithm, steps, topk, tokens)

    @property
    def adaptive(self) -> bool:
        """Whether SGLang varies the steps itself."""
        return self.args.get("speculative-adaptive") is True


def speculation_refusals(args: Mapping[str, Scalar], env: Mapping[str, str], version: Release | None) -> Iterator[str]:
    """Why SGLang would refuse or rewrite speculative settings, one sentence each; none without speculation."""
    speculation = Speculation.of(args, env, version)
    if speculation.algorithm:
        yield from (reason for rule in RULES if (reason := rule(speculation)) is not None)


def known_algorithm(s: Speculation) -> str | None:
    """An unknown name ends the start with a ValueError (exit 1)."""
    if s.algorithm in _ALGORITHMS:
        return None
    return f"--speculative-algorithm {s.algorithm}: unknown. Write one of {', '.join(sorted(_ALGORITHMS))} or NEXTN."


def all_three_or_none(s: Speculation) -> str | None:
    """A part of the triple is an assertion without a text, or ``None > 1``; with none of it SGLang chooses."""
    given = [name for name in _TRIPLE if s.args.get(name) is not None]
    if s.algorithm not in _CHAINED or s.adaptive or len(given) in (0, 3):
        return None
    missing = " and ".join(f"--{name}" for name in _TRIPLE if name not in given)
    return f"{' and '.join(f'--{name}' for name in given)} without {missing}: SGLang stops. Give all three or none."


def at_least_one(s: Speculation) -> str | None:
    """Steps and top-k are counts."""
    if s.algorithm not in _CHAINED:
        return None
    wrong = [
        f"{name} {value}" for name, value in (("steps", s.steps), ("topk", s.topk)) if value is not None and value < 1
    ]
    return f"speculation with {' and '.join(wrong)}: expected at least 1." if wrong else None


def chain_length(s: Speculation) -> str | None:
    """With top-k 1 the draft is a chain, and SGLang sets the draft tokens to steps + 1 with only a warning."""
    if s.algorithm not in _CHAINED or s.topk != 1 or s.steps is None or s.tokens is None or s.adaptive:
        return None
    if s.tokens == s.steps + 1:
        return None
    return (
        f"--speculative-num-draft-tokens {s.tokens} with topk 1 and {s.steps} steps: SGLang makes it {s.steps + 1}, so "
        f"this would measure another configuration. Write {s.steps + 1}."
    )


def tree_size(s: Speculation) -> str | None:
    """A tree of `steps` levels with `topk` branches yields too few candidates for so many draft tokens.

    The graph capture fails when draft tokens - 1 > topk + (steps - 1)·topk². Held here is the stricter
    draft tokens <= steps·topk + 1 that SGLang's own benchmark keeps to: beyond it the tree is mostly unlikely branches.
    """
    if s.algorithm not in _CHAINED or s.topk is None or s.topk < 2 or s.steps is None or s.tokens is None:
        return None
    most = s.steps * s.topk + 1
    if s.tokens <= most:
        return None
    return (
        f"--speculative-num-draft-tokens {s.tokens}: {s.steps} steps with topk {s.topk} carry at most {most}. Lower it."
    )


def paged_tree(s: Speculation) -> str | None:
    """A tree over pages of several tokens needs an attention backend that can express it."""
    page, backend = _whole(s.args.get("page-size")) or 1, s.args.get("attention-backend")
    if s.algorithm not in _CHAINED or (s.topk or 1) < 2 or page < 2 or backend is None:
        return None
    able = (
        ["flashinfer", "fa3"] if s.version is not None and s.version <= (0, 5, 10) else ["flashinfer", "fa3", "triton"]
    )
    if backend in able:
        return None
    return f"topk {s.topk} with --page-size {page} needs an attention backend of {', '.join(able)}, this is {backend}."


def trtllm_is_a_chain(s: Speculation) -> str | None:
    """trtllm_mha verifies chains only."""
    backends = {s.args.get(f"{kind}attention-backend") for kind in ("", "decode-", "prefill-")}
    if s.algorithm not in _CHAINED or (s.topk or 1) < 2 or "trtllm_mha" not in backends:
        return None
    return f"topk {s.topk} with attention backend trtllm_mha: it supports topk 1 only."


def no_mixed_chunk(s: Speculation) -> str | None:
    """SGLang switches mixed chunks off, with a warning."""
    if s.args.get("enable-mixed-chunk") is not True:
        return None
    return "--enable-mixed-chunk with speculation: SGLang switches it off. Remove one of the two."


def no_data_parallel_attention(s: Speculation) -> str | None:
    """Two of the algorithms do not know it."""
    if s.algorithm not in ("STANDALONE", "NGRAM") or s.args.get("enable-dp-attention") is not True:
        return None
    return f"{s.algorithm} with --enable-dp-attention: SGLang stops. Remove one of the two."


def rejection_sampling(s: Speculation) -> str | None:
    """Implemented for EAGLE chains with exact thresholds only."""
    if s.args.get("speculative-use-rejection-sampling") is not True:
        return None
    loose = any(
        s.args.get(f"speculative-accept-threshold-{kind}") not in (None, 1, 1.0, "1", "1.0")
        for kind in ("single", "acc")
    )
    if s.algorithm in _EAGLES and s.topk in (None, 1) and not loose:
        return None
    return (
        "--speculative-use-rejection-sampling needs EAGLE or EAGLE3, topk 1 and accept thresholds of 1: SGLang stops."
    )


def adaptive_chain(s: Speculation) -> str | None:
    """Adaptive steps are for EAGLE chains, and choose the steps themselves."""
    if not s.adaptive or (s.algorithm in _EAGLES and s.topk in (None, 1)):
        return None
    return "--speculative-adaptive needs EAGLE or EAGLE3 with topk 1. Remove one of the two."


def overlapped_chain(s: Speculation) -> str | None:
    """Until 0.5.10 the overlapping worker is switched on by hand and knows chains only."""
    on = s.env.get("SGLANG_ENABLE_SPEC_V2", "").lower() in ("1", "true", "yes")
    if not on or (s.topk or 1) < 2 or s.version is None or s.version > (0, 5, 10):
        return None
    return f"SGLANG_ENABLE_SPEC_V2 with topk {s.topk}: until SGLang 0.5.10 it supports topk 1 only."


RULES: tuple[Callable[[Speculation], str | None], ...] = (
    known_algorithm,
    all_three_or_none,
    at_least_one,
    chain_length,
    tree_size,
    paged_tree,
    trtllm_is_a_chain,
    no_mixed_chunk,
    no_data_parallel_attention,
    rejection_sampling,
    adaptive_chain,
    overlapped_chain,
)


def _whole(value: Scalar) -> int | None:
    try:
        return None if value is None or isinstance(value, bool) else int(value)
    except ValueError:
        return None
