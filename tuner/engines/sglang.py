"""SGLang's rules: what may be tuned, how it is started, what it refuses, and what its log says.

Plain data and pure functions, with what changes from version to version in `tuner.engines.sglang_tables` and NCCL's
part in `tuner.engines.nccl`. Facts are from the source of SGLang 0.5.6 to 0.5.23 and from recorded logs of 0.5.17.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.engines import nccl, sglang_log
from tuner.engines import sglang_tables as tables
from tuner.engines.command_line import (
    ARG_NAME,
    ENV_NAME,
    argument_words,
    arguments_in,
    env_text,
    laid_over,
    shell_words,
)
from tuner.engines.nccl import Release, release_of
from tuner.engines.sglang_speculation import speculation_refusals
from tuner.errors import InputError
from tuner.values.configuration import Configuration, Scalar
from tuner.values.failure import Failure
from tuner.values.host import HostFacts
from tuner.values.launch import LaunchBase, LaunchCommand, Phase

_TUNABLE_ENV = frozenset({*nccl.TUNABLE, *tables.TUNABLE_ENV})


LATE_LIMIT = 0.001
"""Lateness of its last token, relative to a window, from which on a stand-in's window is not its model's."""


@dataclass(frozen=True)
class SGLang:
    """SGLang, started as ``python3 -m sglang.launch_server`` or ``sglang serve``, 0.5.6 or newer."""

    name: str = "sglang"
    distributions: tuple[str, ...] = ("sglang", "nvidia-nccl-cu13", "nvidia-nccl-cu12")
    worker_titles: tuple[str, ...] = ("sglang::scheduler",)
    ready_path: str = "/model_info"
    server_info_path: str = "/server_info"
    flush_path: str = "/flush_cache"

    # ── What a search space may set ─────────────────────────────────────────────────────────────────────────────────

    def problems(self, env: Sequence[str], args: Sequence[str], allow: Sequence[str]) -> tuple[str, ...]:
        """What a space must not set, in words with the remedy; see `tuner.ports.Engine.problems`.

        Names count as they stand: SGLang's argument parser takes ``--tru`` for ``--trust-remote-code``, so a name that
        is not listed whole is refused.
        """
        allowed = {name.removeprefix("--") for name in allow}
        found = []
        for name in env:
            if name in tables.OWN_ENV:
                found.append(f"env {name}: the tuner sets it itself in every launch. Remove it from the space.")
            elif not ENV_NAME.fullmatch(name):
                found.append(f"env {name!r}: not the name of an environment variable. Use letters, digits and _.")
            elif name not in _TUNABLE_ENV and name not in allowed:
                found.append(_not_tunable("env", name, sorted(_TUNABLE_ENV), tables.ENV_REASONS))
        for name in args:
            if not ARG_NAME.fullmatch(name):
                found.append(f"args {name!r}: not the name of an argument. Write it as in --help, without the dashes.")
            elif any(own.startswith(name) for own in tables.OWN_ARGS):  # abbreviations are understood too
                found.append(f"args {name}: the tuner sets it itself in every launch. Remove it from the space.")
            elif name not in tables.TUNABLE_ARGS and name not in allowed:
                found.append(_not_tunable("args", name, list(tables.TUNABLE_ARGS), tables.ARG_REASONS))
        return tuple(found)

    # ── What a launch must not be ───────────────────────────────────────────────────────────────────────────────────

    def launch_problems(self, base: LaunchBase) -> tuple[str, ...]:
        """What in a study file's launch this tuner cannot work with, in words with the remedy.

        Host, port and weight version are no problem: each launch gets the tuner's own in their place, on the loopback,
        and `shell_line` prints the file's.
        """
        found = [f"{name}: {why}" for name, why in _malformed(base.args, base.env)]
        for name, value in base.args:
            why = tables.UNWORKABLE.get(name)
            if why and value is not False:
                found.append(f"args {name}: {why}. Remove it for the study; add it to the winning command afterwards.")
        engine_at = max((i for i, word in enumerate(base.command) if "sglang" in word), default=len(base.command))
        for word in base.command[engine_at + 1 :]:
            if word.startswith("--"):
                found.append(f"command: {word} stands in it. Write it under `args:`, where it is checked and compared.")
        args = {tables.ALIASES.get(name, name): value for name, value in base.args}
        if (_integer(args.get("nnodes")) or 1) > 1:
            found.append("args nnodes: one server on one host is measured, this is one over several. Remove it.")
        if args.get("disaggregation-mode", "null") != "null":
            found.append("args disaggregation-mode: half a server cannot be measured. Remove it.")
        found += [f"env {name}: the tuner sets it itself. Remove it." for name, _ in base.env if name in tables.OWN_ENV]
        return tuple(found)

    def refused(self, configuration: Configuration, facts: HostFacts, base: LaunchBase) -> tuple[str, ...]:
        """Reasons not to spend a launch; see `tuner.ports.Engine.refused`."""
        version, library = release_of(facts.engine_version), release_of(facts.nccl_version)
        args, env = _merged_args(base, configuration), _merged_env(base, configuration)
        settings = {name: value for name, (_, value) in args.items() if value is not None and value is not False}
        found = list(self.launch_problems(base))
        found += [f"{name}: {why}" for name, why in _malformed(configuration.args, configuration.env)]
        if version is not None and version < tables.OLDEST:
            found.append(
                f"SGLang {facts.engine_version} is too old: it has no {self.ready_path}. Install 0.5.6 or newer."
            )
        found += _forbidden(base.forbid, settings, env)
        found += _version_refusals(args, version, facts.engine_version)
        found += _placement_refusals(settings, facts)
        found += speculation_refusals(settings, env, version)
        found += _rewritten(settings, env)
        found += nccl.refusals(env, library)
        return tuple(found)

    def inert(self, configuration: Configuration, facts: HostFacts, base: LaunchBase | None = None) -> dict[str, str]:
        """Name → why no process ever acts on it; see `tuner.ports.Engine.inert`."""
        version, library = release_of(facts.engine_version), release_of(facts.nccl_version)
        base = base or LaunchBase(command=())
        chosen = {name for name, _ in (*configuration.env, *configuration.args)}
        found = nccl.inert(_merged_env(base, configuration), library)
        if "num-continuous-decode-steps" in chosen:
            found["num-continuous-decode-steps"] = "SGLang declares it and reads it nowhere"
        for name in chosen & set(tables.TUNABLE_ENV):
            span = tables.TUNABLE_ENV[name]
            if version is not None and not _within(version, span):
                found[name] = f"SGLang {facts.engine_version} does not read it"
        return {name: why for name, why in found.items() if name in chosen}

    # ── How it is started ───────────────────────────────────────────────────────────────────────────────────────────

    def command(self, base: LaunchBase, configuration: Configuration, *, port: int, nonce: str) -> LaunchCommand:
        """The exact command; see `tuner.ports.Engine.command`.

        Raises:
            InputError: a name that is no name, or a value that no process can be given.
        """
        malformed = [*_malformed(base.args, base.env), *_malformed(configuration.args, configuration.env)]
        if malformed:
            raise InputError([f"{name}: {why}" for name, why in malformed])
        args = _merged_args(base, configuration)
        words = [word for key, (name, value) in args.items() if key not in tables.OWN_ARGS
                 for word in argument_words(name, value, tables.LISTS)]  # fmt: skip
        # Last, so that they also win over an abbreviation of theirs in the study file.
        words += ["--host", "127.0.0.1", "--port", str(port), "--weight-version", nonce]
        env = _merged_env(base, configuration)
        env |= _nccl_logging(env, args)
        # A scheduler retitles itself, which would overwrite its environment in /proc: SPT_NOENV keeps that readable.
        env |= {"SPT_NOENV": "1", "TUNER_NONCE": nonce}
        return LaunchCommand((*base.command, *words), tuple(env.items()), port, nonce)

    def shell_line(self, base: LaunchBase, configuration: Configuration) -> str:
        """The launch as a person would type it; see `tuner.ports.Engine.shell_line`."""
        args, env = _merged_args(base, configuration), _merged_env(base, configuration)
        words = [word for name, value in args.values() for word in argument_words(name, value, tables.LISTS)]
        own = {name for name, _ in configuration.env} | {tables.ALIASES.get(n, n) for n, _ in configuration.args}
        # Only the study file's values are references: `$NAME` in a space is plain text, perhaps a stranger's.
        strangers = {str(value) for _, value in (*configuration.env, *configuration.args)}
        references = {env[name] for name, _ in base.env if name not in own}
        references |= {str(value) for name, (_, value) in args.items() if name not in own}
        return shell_words(env.items(), (*base.command, *words), references - strangers)

    # ── Whether it is ours, and runs with what was asked ────────────────────────────────────────────────────────────

    def nonce_in(self, path: str, body: str) -> str:
        """The nonce in the answer of `ready_path`; see `tuner.ports.Engine.nonce_in`."""
        try:
            answer = json.loads(body)
        except ValueError:
            return ""
        nonce = answer.get("weight_version") if isinstance(answer, dict) else None
        return nonce if isinstance(nonce, str) else ""

    def effect_mismatches(
        self,
        command: LaunchCommand,
        server_info: Mapping[str, Any],
        environ: Mapping[str, str],
        nccl_lines: Sequence[str],
        names: Sequence[str] | None = None,
    ) -> tuple[str, ...]:
        """What differs from the command; see `tuner.ports.Engine.effect_mismatches`."""
        asked = {name: value for name, value in command.env if names is None or name in names}
        found = []
        for name, value in asked.items():
            has = environ.get(name)
            if has is None:
                found.append(f"{name}: not set in the server's processes")
            elif has != value:  # values of other names may be secrets
                detail = f": asked for {value}, it is {has}" if name in _TUNABLE_ENV else ""
                found.append(f"{name}: another value in the server's processes{detail}")
        found += nccl.contradictions(asked, nccl_lines)
        for name, words in arguments_in(command.argv).items():
            if (names is None or name in names or name in tables.OWN_ARGS) and name not in _RENAMED:
                found += _info_mismatches(name, words, server_info)
        return tuple(found)

    def window_problems(self, server_info: Mapping[str, Any]) -> tuple[str, ...]:
        """See `tuner.ports.Engine`: a server that reports its own lateness was not as quick as it says it is."""
        states = server_info.get("internal_states")
        reports = [state.get("simulated_lateness") for state in states or () if isinstance(state, Mapping)]
        late = max(
            (float(report.get("late_fraction", 0)) for report in reports if isinstance(report, Mapping)), default=0
        )
        if late <= LATE_LIMIT:
            return ()
        return (f"the server's tokens left {late:.2%} later than its model says; the machine is too busy for it",)

    def nccl_evidence(self, log: str) -> tuple[str, ...]:
        """Lines of the log in which NCCL says what it took; see `tuner.ports.Engine.nccl_evidence`."""
        return nccl.evidence(log)

    # ── What its log says ───────────────────────────────────────────────────────────────────────────────────────────

    def stage_of(self, log: str) -> str:
        """What the server is doing; see `tuner.ports.Engine.stage_of`."""
        return sglang_log.stage_of(log)

    def classify(self, log: str, exit_status: int | None, phase: Phase) -> Failure:
        """The class of a failed start or a death; see `tuner.ports.Engine.classify`."""
        return sglang_log.failure_of(log, exit_status, phase)


# ── Names ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _not_tunable(kind: str, name: str, known: Sequence[str], reasons: Sequence[tuple[re.Pattern[str], str]]) -> str:
    why = next((why for pattern, why in reasons if pattern.fullmatch(name)), "")
    if why:
        return (
            f"{kind} {name}: {why}, so a search space must not set it. Remove it, or, if you trust this space, name "
            f"it under `allow:` in your study file."
        )
    whole = [other for other in known if other.startswith(name)] if kind == "args" else []
    near = whole or difflib.get_close_matches(name.upper() if kind == "env" else name.lower(), known, n=1, cutoff=0.6)
    guess = f" Did you mean {near[0]}?" if near else ""
    return (
        f"{kind} {name}: not known as a performance setting; unknown names are ignored or refused at the start.{guess} "
        f"If it is one, name it under `allow:` in your study file."
    )


def _malformed(args: Sequence[tuple[str, Scalar]], env: Sequence[tuple[str, Scalar]]) -> Iterator[tuple[str, str]]:
    """Names and values that no process can be given as what they are meant to be."""
    for kind, pairs, pattern in (("args", args, ARG_NAME), ("env", env, ENV_NAME)):
        for name, value in pairs:
            if not pattern.fullmatch(name):
                yield f"{kind} {name!r}", "not a name. Write it without dashes, blanks and '='."
            elif isinstance(value, str) and "\0" in value:
                yield f"{kind} {name}", "the value holds a zero character, which no process can be given. Remove it."
            elif isinstance(value, str) and name in tables.LISTS and any(w.startswith("-") for w in value.split()):
                yield f"{kind} {name}", f"{value!r} holds a word with a dash, which would be read as a flag. Remove it."


# ── Merging ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _merged_args(base: LaunchBase, configuration: Configuration) -> dict[str, tuple[str, Scalar]]:
    return laid_over(base.args, configuration.args, tables.ALIASES)


def _merged_env(base: LaunchBase, configuration: Configuration) -> dict[str, str]:
    return {**dict(base.env), **{name: env_text(value) for name, value in configuration.env if value is not None}}


def _nccl_logging(env: Mapping[str, str], args: Mapping[str, tuple[str, Scalar]]) -> dict[str, str]:
    """Variables that make NCCL say what it took, unless the user decided about its log.

    INIT and ENV print while communicators are made, never later. TUNING adds the table of what is enabled and one
    line on rank 0 for each collective that the host enqueues. A decode step replays a CUDA graph, in which the host
    enqueues none, so its speed does not change; where graphs are off every step would print: TUNING is left out.
    """
    if "NCCL_DEBUG" in env:
        return {}
    settings = {name: value for name, (_, value) in args.items()}
    eager = (
        settings.get("disable-cuda-graph") is True
        or settings.get("disable-decode-cuda-graph") is True
        or settings.get("cuda-graph-backend-decode") == "disabled"
    )
    subsystems = "INIT,ENV" if eager else "INIT,ENV,TUNING"
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": env.get("NCCL_DEBUG_SUBSYS", subsystems)}


# ── Refusals ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _forbidden(patterns: Sequence[str], settings: Mapping[str, Scalar], env: Mapping[str, str]) -> Iterator[str]:
    """What the study file forbids, in base and configuration alike; ``*`` stands for any text."""
    for pattern in patterns:
        name, equals, value = pattern.partition("=")
        wanted = re.compile(".*".join(re.escape(part) for part in value.split("*")), re.DOTALL)
        if name.startswith("--"):
            key = tables.ALIASES.get(name[2:], name[2:])
            present = {key: settings[key]} if key in settings else {}
        else:
            present = {name: env[name]} if name in env else {}
        for has in present.values():
            text = str(has).lower() if isinstance(has, bool) else str(has)
            if not equals or wanted.fullmatch(text):
                # Without the value, which may be a secret.
                yield f"{name}: what is set is ruled out by `forbid: {pattern}` of the study file."


def _within(version: Release, span: tables.Span) -> bool:
    return (span.since is None or version >= span.since) and (span.until is None or version < span.until)


def _version_refusals(
    args: Mapping[str, tuple[str, Scalar]], version: Release | None, text: str | None
) -> Iterator[str]:
    """Arguments that this version does not have: it would exit with status 2 after its imports."""
    for name, (_, value) in args.items():
        span = tables.TUNABLE_ARGS.get(name) or tables.OTHER_ARGS.get(name)
        if span is None or version is None or value is None or value is False or _within(version, span):
            continue
        other = tables.TUNABLE_ARGS.get(span.instead) or tables.OTHER_ARGS.get(span.instead)
        use = f"Use --{span.instead}." if other is not None and _within(version, other) else "Remove it."
        yield f"--{name} is not in SGLang {text}: it would stop with 'bad flag'. {use}"


def _placement_refusals(settings: Mapping[str, Scalar], facts: HostFacts) -> Iterator[str]:
    """More GPUs than there are, and sizes that cannot be."""
    tp, pp, dp = (_integer(settings.get(f"{kind}-size")) or 1 for kind in ("tp", "pp", "dp"))
    # With attention parallelism the data-parallel groups share the tensor-parallel GPUs.
    needed = tp * pp * (1 if settings.get("enable-dp-attention") is True else dp)
    if facts.gpus and settings.get("device", "cuda") == "cuda" and needed > len(facts.gpus):
        yield f"tp-size {tp} × pp-size {pp} × dp-size {dp} needs {needed} GPUs, the host has {len(facts.gpus)}."
    fraction = _number(settings.get("mem-fraction-static"))
    if fraction is not None and not 0 < fraction < 1:
        yield f"--mem-fraction-static {fraction:g}: a fraction of the GPU's memory, expected above 0 and below 1."
    chunk, page = _integer(settings.get("chunked-prefill-size")), _integer(settings.get("page-size"))
    if chunk and page and chunk > 0 and chunk % page:
        yield f"--chunked-prefill-size {chunk} is no multiple of --page-size {page}: SGLang stops. Round it."


def _rewritten(settings: Mapping[str, Scalar], env: Mapping[str, str]) -> Iterator[str]:
    """Variables that SGLang overwrites because of an argument (``_set_envs_and_config`` of its launcher)."""
    symmetric = settings.get("enable-symm-mem") is True
    if symmetric and env.get("NCCL_CUMEM_ENABLE", "1") != "1":
        yield "NCCL_CUMEM_ENABLE: --enable-symm-mem overwrites it with 1. Set one of the two."
    if (symmetric or settings.get("enable-nccl-nvls") is True) and env.get("NCCL_NVLS_ENABLE", "1") != "1":
        flag = "--enable-symm-mem" if symmetric else "--enable-nccl-nvls"
        yield f"NCCL_NVLS_ENABLE: {flag} overwrites it with 1. Set one of the two."
    several = (_integer(settings.get("tp-size")) or 1) > 1
    if several and settings.get("enable-deterministic-inference") is True:
        algorithm = env.get("NCCL_ALGO", "allreduce:tree")
        if algorithm != "allreduce:tree":
            yield f"NCCL_ALGO={algorithm}: --enable-deterministic-inference overwrites it with allreduce:tree."


def _number(value: Scalar) -> float | None:
    try:
        return None if value is None or isinstance(value, bool) else float(value)
    except ValueError:
        return None


def _integer(value: Scalar) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number.is_integer() else None


# ── Effect ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_RENAMED = frozenset({"cuda-graph-max-bs", "cuda-graph-bs"})
"""Old spellings that newer versions report under another name."""


def _info_mismatches(name: str, words: list[str] | None, server_info: Mapping[str, Any]) -> Iterator[str]:
    """Whether ``/server_info`` reports an argument as it was given; one that it does not report is passed over."""
    field = tables.ALIASES.get(name, name).replace("-", "_")
    if field not in server_info:
        return
    has = server_info[field]
    if words is None:
        equal = has is True
    elif words == ["auto"]:
        equal = True  # the engine's own choice was asked for, and this is it
    elif isinstance(has, list):
        equal = words == [str(item) for item in has] or _as_json(words) == has
    else:
        equal = len(words) == 1 and _equal(name, words[0], has)
    if not equal:
        asked = "it on" if words is None else " ".join(words)
        yield f"--{name}: asked for {asked}, the server runs with {has}"


def _as_json(words: list[str]) -> Any:
    try:
        return json.loads(" ".join(words))
    except ValueError:
        return None


def _equal(name: str, asked: str, has: Any) -> bool:
    if isinstance(has, (int, float)) and not isinstance(has, bool):
        return _number(asked) == float(has)
    if isinstance(has, dict):
        return bool(_as_json([asked]) == has)
    if name == "speculative-algorithm":  # SGLang writes it in capitals, and NEXTN is another name of EAGLE
        return asked.upper().replace("NEXTN", "EAGLE") == str(has)
    return has is not None and asked == str(has)
