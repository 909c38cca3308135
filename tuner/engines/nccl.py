"""NCCL's environment, for every engine that uses it: which names may be tuned, and what a version makes of a value.

NCCL reads known names only and reports next to nothing: a misspelt name, a number that is none, a lower-case
``NCCL_P2P_LEVEL`` are ignored without a word, and a launch is wasted on the default. So they are refused here.

Sources: NCCL's user guide (environment variables) and, of its source, src/misc/param.cc (numbers), src/graph/tuning.cc
(lists, threads), src/graph/connect.cc and src/init.cc (channels), src/graph/paths.cc (P2P level), src/enqueue.cc
("no algorithm/protocol available"). One refusal was measured: plain ``Tree`` on NCCL 2.28.9 under SGLang 0.5.17.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

Release = tuple[int, ...]
"""The numbers of a version: ``(2, 28, 9)``."""


def release_of(version: str | None) -> Release | None:
    """The numbers of a version's text; ``None`` if it is unknown, no version, or the ``0.0.0`` of a source build."""
    try:
        release = Version(version or "").release
    except InvalidVersion:
        return None
    return release if any(release) else None


@dataclass(frozen=True)
class Variable:
    """One variable that may be tuned.

    Attributes:
        low, high: bounds of a number; ``None`` for a variable that is no number.
        words: the only values, if it takes words. Case matters.
        step: a number must be a multiple of it.
        also: single numbers outside of the bounds that mean something, such as -2 = automatic.
        since: first NCCL that reads it, if newer than 2.18.
        until: first NCCL that does not read it any more.
    """

    name: str
    low: int | None = None
    high: int | None = None
    words: tuple[str, ...] = ()
    step: int = 1
    also: tuple[int, ...] = ()
    since: Release | None = None
    until: Release | None = None


def _switch(name: str, since: Release | None = None, until: Release | None = None) -> Variable:
    return Variable(name, 0, 1, since=since, until=until)


_ANY = 2**62
_P2P_LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")

_VARIABLES = (
    Variable("NCCL_ALGO"),
    Variable("NCCL_PROTO"),
    Variable("NCCL_MIN_NCHANNELS", 1, 64),
    Variable("NCCL_MAX_NCHANNELS", 1, 64),
    Variable("NCCL_MIN_CTAS", 1, 64),
    Variable("NCCL_MAX_CTAS", 1, 64),
    Variable("NCCL_NTHREADS", 64, 512, step=32),
    Variable("NCCL_LL128_NTHREADS", 160, 640, step=32),
    Variable("NCCL_THREAD_THRESHOLDS"),
    Variable("NCCL_BUFFSIZE", 1, _ANY),
    Variable("NCCL_LL_BUFFSIZE", 1, _ANY),
    Variable("NCCL_LL128_BUFFSIZE", 1, _ANY),
    Variable("NCCL_P2P_LEVEL", words=(*_P2P_LEVELS, "0", "1", "2", "3", "4", "5")),
    _switch("NCCL_P2P_DISABLE"),
    _switch("NCCL_P2P_DIRECT_DISABLE"),
    _switch("NCCL_P2P_READ_ENABLE"),
    _switch("NCCL_P2P_USE_CUDA_MEMCPY"),
    _switch("NCCL_SHM_DISABLE"),
    Variable("NCCL_SHM_LOCALITY", 1, 2),
    _switch("NCCL_SHM_USE_CUDA_MEMCPY", until=(2, 30)),
    Variable("NCCL_CUMEM_ENABLE", 0, 1, also=(-2,)),
    _switch("NCCL_CUMEM_HOST_ENABLE", since=(2, 23)),
    Variable("NCCL_NVLS_ENABLE", 0, 2),
    Variable("NCCL_LAUNCH_MODE", words=("PARALLEL", "GROUP")),
    Variable("NCCL_WORK_FIFO_DEPTH", 1, _ANY, until=(2, 22)),
    Variable("NCCL_WORK_FIFO_BYTES", 1, _ANY, since=(2, 22)),
    Variable("NCCL_WORK_ARGS_BYTES", 1, _ANY, since=(2, 22)),
    _switch("NCCL_GRAPH_REGISTER"),
    _switch("NCCL_LOCAL_REGISTER", since=(2, 19)),
    _switch("NCCL_LEGACY_CUDA_REGISTER", since=(2, 24)),
    _switch("NCCL_RUNTIME_CONNECT", since=(2, 22)),
    _switch("NCCL_IGNORE_CPU_AFFINITY"),
    Variable("NCCL_CGA_CLUSTER_SIZE", 0, 8),
    _switch("NCCL_MEM_SYNC_DOMAIN"),
    Variable("NCCL_LAUNCH_ORDER_IMPLICIT", 0, 2, since=(2, 26)),
    _switch("NCCL_WIN_ENABLE", since=(2, 27)),
    Variable("NCCL_CTA_POLICY", since=(2, 27)),
    Variable("NCCL_SYM_CTAS", 1, 64, since=(2, 27)),
)

TUNABLE: Mapping[str, Variable] = {variable.name: variable for variable in _VARIABLES}
"""Performance variables of one node. Absent on purpose: files, plug-ins, networks, logging, and
``NCCL_GRAPH_MIXING_SUPPORT``, whose 0 is unsafe where captured and eager collectives mix, as in an inference engine."""

_FUNCTIONS = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
_ALGORITHMS = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
_PROTOCOLS = ("ll", "ll128", "simple")

_IMPLEMENTED: Mapping[str, frozenset[str]] = {
    "broadcast": frozenset({"ring"}),
    "reduce": frozenset({"ring"}),
    # CollNet and PAT need more than one node; NVLS stands in for Ring only where there is an NVSwitch.
    "allgather": frozenset({"ring", "nvls"}),
    "reducescatter": frozenset({"ring", "nvls"}),
    "allreduce": frozenset(_ALGORITHMS) - {"pat"},
}
"""Function → algorithms that can carry it on one node."""

_NUMBER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|[1-9][0-9]*|0)", re.ASCII)


def refusals(env: Mapping[str, str], nccl: Release | None) -> Iterator[str]:
    """Why NCCL would refuse, ignore or rewrite an environment, one sentence each.

    Args:
        env: everything that is set, other names included.
        nccl: its version; ``None`` if unknown: then only what holds for all versions is told.
    """
    for name, variable in TUNABLE.items():
        if name in env:
            yield from _value_refusals(variable, env[name])
    for name, elements in (("NCCL_ALGO", _ALGORITHMS), ("NCCL_PROTO", _PROTOCOLS)):
        if name in env:
            yield from _list_refusals(name, env[name], elements, nccl)
    for low, high in (("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"), ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS")):
        least, most = _number(env.get(low)), _number(env.get(high))
        if least is not None and most is not None and least > most:
            yield f"{low}={least} is above {high}={most}: NCCL then drops one of the two without a word. Swap them."


def _number(text: str | None) -> int | None:
    return int(text, 0) if text is not None and _NUMBER.fullmatch(text) else None


def _value_refusals(variable: Variable, text: str) -> Iterator[str]:
    """What is wrong with one value by itself; ``NCCL_ALGO`` and ``NCCL_PROTO`` are looked at by `_list_refusals`."""
    name, value = variable.name, _number(text)
    if variable.words:
        if text not in variable.words:
            right = text.upper() if text.upper() in variable.words else f"one of {', '.join(variable.words)}"
            yield f"{name}={text}: NCCL compares it letter by letter and ignores what it does not know. Write {right}."
    elif name == "NCCL_THREAD_THRESHOLDS":
        if not re.fullmatch(r"-?\d+( -?\d+)*", text, re.ASCII):
            yield f"{name}={text}: expected whole numbers with single blanks between them; NCCL reads no further."
    elif variable.low is not None and variable.high is not None:
        if value is None:
            yield f"{name}={text}: no whole number; NCCL would silently read what it begins with, or 0. Write it out."
        elif value not in variable.also and not variable.low <= value <= variable.high:
            bounds = f"from {variable.low}" if variable.high == _ANY else f"{variable.low} to {variable.high}"
            yield f"{name}={text}: NCCL would ignore or cut it. Expected {bounds}."
        elif value not in variable.also and value % variable.step:
            yield f"{name}={text}: no multiple of {variable.step}; NCCL would take the maximum instead."


def selected(text: str, elements: Sequence[str]) -> dict[str, frozenset[str]]:
    """What a list such as ``ring;allreduce:tree`` or ``^LL128`` leaves enabled, for each function that it mentions.

    Raises:
        ValueError: NCCL's reader would refuse the list, or misread it; the text says why.
    """
    chosen: dict[str, frozenset[str]] = {}
    for index, entry in enumerate(text.split(";")):
        prefix, colon, words = entry.rpartition(":")
        if index and not colon:
            raise ValueError(f"only the first entry may lack a function, and {entry!r} lacks one")
        if colon and prefix.lower() not in _FUNCTIONS:
            raise ValueError(f"{prefix!r} is no function: write one of {', '.join(_FUNCTIONS)}")
        names = words.removeprefix("^").lower().split(",")
        for name in names:
            if name not in elements:
                raise ValueError(f"{name!r} is none of {', '.join(elements)}")
        listed = frozenset(names)
        enabled = frozenset(elements) - listed if words.startswith("^") else listed
        for function in (prefix.lower(),) if colon else _FUNCTIONS:
            chosen[function] = enabled
    return chosen


def _list_refusals(name: str, text: str, elements: Sequence[str], nccl: Release | None) -> Iterator[str]:
    try:
        chosen = selected(text, elements)
    except ValueError as error:
        yield f"{name}={text}: {error}. NCCL stops with 'invalid usage'; leave it unset (null) for NCCL's own choice."
        return
    if nccl is not None and nccl < (2, 24):
        if ":" in text or ";" in text:
            yield f"{name}={text}: lists by function need NCCL 2.24, and this is {_text(nccl)}. Write a plain list."
        return
    needed = _IMPLEMENTED if name == "NCCL_ALGO" else dict.fromkeys(_FUNCTIONS, frozenset(elements))
    missing = [function for function in _FUNCTIONS if not needed[function] & chosen.get(function, needed[function])]
    # Older ones fall back to ring silently; where the version is unknown the launch itself will tell.
    if missing and (nccl is not None or missing == ["allreduce"]):
        yield (
            f"{name}={text}: leaves nothing for {', '.join(missing)}, and NCCL {_text(nccl)} then stops with 'no "
            f"algorithm/protocol available'. {_instead(name, chosen)}"
        )


def _instead(name: str, chosen: Mapping[str, frozenset[str]]) -> str:
    if name != "NCCL_ALGO":
        return "Leave at least one protocol."
    able = sorted(_IMPLEMENTED["allreduce"] & chosen.get("allreduce", frozenset()))
    return f"Name the function: allreduce:{','.join(able)}." if able else "Name one that can: ring, or allreduce:tree."


def _text(release: Release | None) -> str:
    return ".".join(map(str, release)) if release else "(version unknown)"


def inert(env: Mapping[str, str], nccl: Release | None) -> dict[str, str]:
    """Name → why NCCL never acts on it. Only what is certain is told.

    Args:
        env: everything that is set, other names included.
    """
    found: dict[str, str] = {}
    for name, variable in TUNABLE.items():
        if name not in env or nccl is None:
            continue
        if variable.since is not None and nccl < variable.since:
            found[name] = f"NCCL reads it from {_text(variable.since)} on, and this is {_text(nccl)}"
        elif variable.until is not None and nccl >= variable.until:
            found[name] = f"NCCL stopped reading it in {_text(variable.until)}, and this is {_text(nccl)}"
    if env.get("NCCL_P2P_DISABLE") == "1":
        for name in ("NCCL_P2P_LEVEL", "NCCL_P2P_DIRECT_DISABLE", "NCCL_P2P_READ_ENABLE", "NCCL_P2P_USE_CUDA_MEMCPY"):
            if name in env:
                found.setdefault(name, "NCCL_P2P_DISABLE=1 switches peer-to-peer off altogether")
    if env.get("NCCL_SHM_DISABLE") == "1":
        for name in ("NCCL_SHM_LOCALITY", "NCCL_SHM_USE_CUDA_MEMCPY"):
            if name in env:
                found.setdefault(name, "NCCL_SHM_DISABLE=1 switches the shared-memory transport off")
    return found


_TELLING = re.compile(
    r"NCCL version |using nccl==| set by environment to |NCCL WARN "
    r"|Enabled NCCL Func/Proto/Algo Matrix|: \d+ Bytes -> Algo "
)
_CHANNEL = re.compile(r"Channel (\d+)(?:/\d+)? : .* via ")
_MATRIX_ROW = re.compile(rf"\s*(?:Function|{'|'.join(_FUNCTIONS)}) \|", re.IGNORECASE)
_WHO = re.compile(r"^.*?NCCL (?:INFO|WARN) ")
_SET = re.compile(r"(NCCL_[A-Z0-9_]+) set by environment to (.*?)\.?\s*$")

MOST_LINES = 60
"""Lines of evidence that are kept: a start with everything set has about 30."""


def evidence(log: str) -> tuple[str, ...]:
    """Lines of a log that say what NCCL took, in order, each said once however many ranks said it.

    Of the channels only number 0 is kept; the others have the same path.
    """
    found: dict[str, str] = {}
    for line in log.splitlines():
        if len(found) == MOST_LINES:
            break
        channel = _CHANNEL.search(line)
        if (channel and int(channel[1]) == 0) or (not channel and (_TELLING.search(line) or _MATRIX_ROW.match(line))):
            found.setdefault(_WHO.sub("", line).strip(), line.rstrip())
    return tuple(found.values())


def contradictions(env: Mapping[str, str], lines: Sequence[str]) -> Iterator[str]:
    """Variables of which NCCL's own lines say that it read another value.

    A variable without a line is no contradiction: NCCL reads some of them late, or not at all.
    """
    for line in lines:
        match = _SET.search(line)
        if match and match[1] in env and not _same(env[match[1]], match[2]):
            yield f"{match[1]}: asked for {env[match[1]]}, NCCL says: {line.strip()}"


def _same(asked: str, said: str) -> bool:
    number = _number(asked)
    return asked == said or (number is not None and number == _number(said))
