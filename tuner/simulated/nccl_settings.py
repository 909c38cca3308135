"""What NCCL reads from its environment: names, parsing and clamps of NCCL 2.24 to 2.30.

NCCL never complains about a number: it takes what ``strtoll`` makes of the text. It does complain about words in
``NCCL_ALGO`` and ``NCCL_PROTO``, and then refuses to start. Sources, in NCCL's tree: src/misc/param.cc (numbers),
src/graph/tuning.cc (words, threads), src/graph/connect.cc and src/init.cc (channels, buffers), src/graph/paths.cc
(peer-to-peer level).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
PATHS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
"""Kinds of path between two GPUs, nearest first, as ``NCCL_P2P_LEVEL`` spells them."""

MAX_CHANNELS = 64
_UNSET = -2
_CONFIG_UNSET = -(1 << 31)
_LEGACY_P2P_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")
_DEFAULT_P2P_LEVEL = "PXB"
_DEFAULT_BUFFER_BYTES = {
    "LL": 8 * 512 * 8 * 16,  # lines a thread × threads × steps × bytes of a line
    "LL128": 120 * 640 * 8 * 8,  # elements a thread × threads × steps × bytes of an element
    "Simple": 4 << 20,
}


class NcclRefuses(Exception):
    """NCCL's ``ncclInvalidUsage``; the text is the warning that it prints."""


def strtoll(text: str) -> int | None:
    """What C's ``strtoll(text, NULL, 0)`` returns, or ``None`` where it overflows (NCCL then takes the default).

    Text that does not begin with a number is 0.
    """
    match = re.match(r"[ \t\n\v\f\r]*([+-]?)(0[xX](?=[0-9a-fA-F])[0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", text)
    if match is None:
        return 0
    sign, digits = match.groups()
    base = 16 if digits[:2].lower() == "0x" else 8 if digits[0] == "0" else 10
    value = int(digits[2:] if base == 16 else digits[:40], base)
    value = -value if sign == "-" else value
    return value if -(1 << 63) <= value < 1 << 63 else None


def _number(env: Mapping[str, str], name: str, default: int) -> int:
    """A number of the environment, cut to 32 bits as NCCL's own variables are."""
    text = env.get(name, "")
    value = strtoll(text) if text else None
    if value is None:
        return default
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def _threads(value: int, low: int, high: int, default: int) -> int:
    """NCCL's rule for thread counts: what it cannot use becomes the maximum or the minimum, without a word."""
    if value <= 0:
        return default
    if value % 32 != 0:
        return high
    return max(low, min(high, value))


def _tokens(text: str, separator: str) -> list[tuple[int, str]]:
    """The non-empty pieces between separators, with their positions, as C's ``strtok`` finds them."""
    return [(m.start(), m.group()) for m in re.finditer(f"[^{separator}]+", text)]


def enabled_by(text: str, elements: tuple[str, ...]) -> dict[str, dict[str, bool]]:
    """Which elements a list such as ``ring;allreduce:tree,nvls`` or ``^LL128`` enables, for each function.

    Functions that the list does not mention are absent. The grammar: entries separated by ``;``, each
    ``function:list`` or, the first only, ``list``; a list is separated by commas, ``^`` before it excludes.

    Raises:
        NcclRefuses: a word is not known, or a later entry has no function.
    """
    enabled: dict[str, dict[str, bool]] = {}
    for position, entry in _tokens(text, ";"):
        parts = [part for _, part in _tokens(entry, ":")]
        if not parts:
            continue
        if len(parts) == 1 and position > 0:
            raise NcclRefuses(f'All entries except the first must have a prefix: "{text}"')
        prefix, words = (None, parts[0]) if len(parts) == 1 else (parts[0], parts[1])
        exclude = words.startswith("^")
        names = [name for _, name in _tokens(words.removeprefix("^"), ",")]
        functions = [f for f in FUNCTIONS if prefix is None or f.lower() == prefix.lower()]
        if not functions:
            raise NcclRefuses(f'Unrecognized prefix token "{prefix}" when parsing "{text}"')
        known = {element.lower(): element for element in elements}
        for name in names:
            if name.lower() not in known:
                raise NcclRefuses(f'Unrecognized element token "{name}" when parsing "{text}"')
        listed = {known[name.lower()] for name in names}
        for function in functions:
            enabled[function] = {element: (element in listed) != exclude for element in elements}
    return enabled


def _p2p_level(env: Mapping[str, str]) -> str:
    """The farthest kind of path that GPUs may reach each other over directly. Case matters to NCCL."""
    if (strtoll(env.get("NCCL_P2P_DISABLE", "")) or 0) == 1:
        return "LOC"
    text = env.get("NCCL_P2P_LEVEL", "")
    if text in PATHS:
        return text
    if text[:1].isascii() and text[:1].isdigit():
        return _LEGACY_P2P_LEVELS[max(0, min(len(_LEGACY_P2P_LEVELS) - 1, strtoll(text) or 0))]
    return _DEFAULT_P2P_LEVEL


@dataclass(frozen=True)
class NcclSettings:
    """NCCL's environment as NCCL understands it.

    Attributes:
        algorithm_text: ``NCCL_ALGO`` as given; ``None`` if unset.
        protocol_text: ``NCCL_PROTO`` as given.
        algorithms: function → algorithm → enabled, for the functions that ``NCCL_ALGO`` mentions.
        protocols: the same for ``NCCL_PROTO``.
        max_channels: applied first.
        min_channels: applied next, so that it wins where it is the larger.
        threads: ``NCCL_NTHREADS`` as given; 0 if unset.
        ll128_threads: ``NCCL_LL128_NTHREADS`` as given; 0 if unset.
        buffer_bytes: protocol → size of one connection's buffer.
        thread_thresholds: (algorithm, protocol) → bytes a thread should have, where set.
        p2p_level: farthest kind of path with direct access between GPUs.
    """

    algorithm_text: str | None
    protocol_text: str | None
    algorithms: Mapping[str, Mapping[str, bool]]
    protocols: Mapping[str, Mapping[str, bool]]
    max_channels: int
    min_channels: int
    threads: int
    ll128_threads: int
    buffer_bytes: Mapping[str, int]
    thread_thresholds: Mapping[tuple[str, str], int]
    p2p_level: str

    @classmethod
    def of(cls, env: Mapping[str, str]) -> NcclSettings:
        """Reads an environment; names that NCCL does not know are ignored.

        Raises:
            NcclRefuses: ``NCCL_ALGO`` or ``NCCL_PROTO`` is malformed.
        """
        protocols = enabled_by(env.get("NCCL_PROTO", ""), PROTOCOLS)
        algorithms = enabled_by(env.get("NCCL_ALGO", ""), ALGORITHMS)
        low, high = _channels(env)
        return cls(
            algorithm_text=env.get("NCCL_ALGO"),
            protocol_text=env.get("NCCL_PROTO"),
            algorithms=algorithms,
            protocols=protocols,
            max_channels=high,
            min_channels=low,
            threads=_number(env, "NCCL_NTHREADS", 0),
            ll128_threads=_number(env, "NCCL_LL128_NTHREADS", 0),
            buffer_bytes=_buffers(env),
            thread_thresholds=_thresholds(env.get("NCCL_THREAD_THRESHOLDS", "")),
            p2p_level=_p2p_level(env),
        )

    def max_threads(self, algorithm: str, protocol: str, ring_simple_default: int) -> int:
        """Threads of a block before small messages reduce them (src/graph/tuning.cc, ncclTopoTuneModel)."""
        if protocol == "LL128":
            return _threads(self.ll128_threads, 160, 640, 640)
        default = ring_simple_default if (algorithm, protocol) == ("Ring", "Simple") else 512
        return _threads(self.threads, 64, 512, default)


def _channels(env: Mapping[str, str]) -> tuple[int, int]:
    """(minimum, maximum) of channels, from the NCHANNELS names and the CTAS names together."""
    high = _number(env, "NCCL_MAX_NCHANNELS", _UNSET)
    high = MAX_CHANNELS if high == _UNSET else max(1, min(MAX_CHANNELS, high))
    low = _number(env, "NCCL_MIN_NCHANNELS", _UNSET)
    low = 0 if low == _UNSET else max(0, min(MAX_CHANNELS, low))
    most = _number(env, "NCCL_MAX_CTAS", _CONFIG_UNSET)
    most = MAX_CHANNELS if most <= 0 else min(MAX_CHANNELS, most)
    least = _number(env, "NCCL_MIN_CTAS", _CONFIG_UNSET)
    least = 1 if least <= 0 else min(MAX_CHANNELS, least, most)
    return max(low, least), min(high, most)


def _buffers(env: Mapping[str, str]) -> dict[str, int]:
    """Sizes of a connection's buffers. NCCL checks none; below 1 KiB it would crash, and here it gets 1 KiB."""
    names = {"LL": "NCCL_LL_BUFFSIZE", "LL128": "NCCL_LL128_BUFFSIZE", "Simple": "NCCL_BUFFSIZE"}
    sizes = {protocol: _number(env, name, _UNSET) for protocol, name in names.items()}
    return {p: _DEFAULT_BUFFER_BYTES[p] if size == _UNSET else max(1024, size) for p, size in sizes.items()}


def _thresholds(text: str) -> dict[tuple[str, str], int]:
    """``NCCL_THREAD_THRESHOLDS``: six numbers, Tree's LL, LL128 and Simple, then Ring's; negative: the default."""
    found: dict[tuple[str, str], int] = {}
    keys = [(algorithm, protocol) for algorithm in ("Tree", "Ring") for protocol in PROTOCOLS]
    for key, word in zip(keys, text.split(), strict=False):
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", word):
            break
        if int(word) >= 0:
            found[key] = int(word)
    return found
