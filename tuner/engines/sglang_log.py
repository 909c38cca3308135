"""What SGLang's log says about a failure: the first cause in it, or how it ended.

When one rank fails the others report a broken collective and the launcher a dead child, and the exit status is -9
whatever happened, since SGLang ends its tree with KILL. So the first root cause counts, not what came of it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from tuner.engines import logs
from tuner.engines import sglang_tables as tables
from tuner.values.failure import Failure, FailureClass
from tuner.values.launch import Phase

_UNDER_LOAD = (Phase.TOOK_EFFECT, Phase.WARM_UP, Phase.MEASURE, Phase.CANARIES)

_EVIDENCE_CHARACTERS = 2000
_SECRET = re.compile(r"\b(api_key|admin_api_key|ssl_keyfile_password)='[^']*'")
_VALIDATION = re.compile(r"server_args\.py$|/arg_groups/|/speculative/spec_info\.py$")
_DRAFT = re.compile(r"/speculative/|eagle|draft", re.IGNORECASE)
_UNFITTING = re.compile(
    r"(?:Runtime|Value|Assertion|Key|Index)Error\b"
    r"|Exception: Capture cuda graph failed: .*(?:must match|shape|multiplied)"
)
"""How code of the draft model fails when weights or sizes are not those of the target."""
_FATAL = re.compile(r"hit an exception:|Initialization failed|warmup error")

_Verdict = tuple[FailureClass, str, str]
"""Class, evidence, and a remedy or nothing for the class's own."""


def stage_of(log: str) -> str:
    """A short word for what the server is doing; ``ready`` once it said so."""
    lines = logs.lines_of(log)
    # With --skip-server-warmup it says so before it binds its port.
    return "ready" if any(tables.FIRED_UP in line for line in lines) else _stage(lines)


def failure_of(log: str, exit_status: int | None, phase: Phase) -> Failure:
    """The failure that a log and an exit status tell of; ``exit_status`` is ``None`` for a server that is alive."""
    lines = logs.lines_of(log)
    failure_class, evidence, remedy = _cause(lines, phase) or _end(lines, exit_status, phase)
    return Failure(
        failure_class,
        phase.value,
        evidence[:_EVIDENCE_CHARACTERS],
        remedy or tables.REMEDIES.get(failure_class, ""),
        exit_status,
        logs.tail_of([_SECRET.sub(r"\1='***'", line) for line in lines]),
    )


def _stage(lines: Sequence[str]) -> str:
    for line in reversed(lines):
        for pattern, stage in tables.STAGES:
            match = pattern.search(line)
            if match:
                return stage.format(*match.groups())
    return "imports" if any(lines) else "starting"


def _cause(lines: Sequence[str], phase: Phase) -> _Verdict | None:
    """The first root cause: a line of the table or an exception, whichever comes first; ``None`` without either."""
    found = _first_phrase(lines)
    raised = _first_exception(lines)
    if found is not None and (raised is None or found[0] <= raised.last):
        index, phrase = found
        return _timed(phrase.failure_class, lines[:index], phase), lines[index].strip(), phrase.remedy
    if raised is None:
        return None
    evidence = raised.exception
    if ":" not in evidence:  # an assertion without a text: only the place tells what was asserted
        evidence = f"{evidence}, raised at {raised.where}"
    if any(_VALIDATION.search(file) for file in raised.files) and not raised.header:
        return FailureClass.BAD_FLAG, evidence, "SGLang checks its arguments before it loads: see the line for which."
    draft = any(_DRAFT.search(file) for file in raised.files)
    if draft and phase not in _UNDER_LOAD and _UNFITTING.match(raised.exception):
        return FailureClass.DRAFT_MISMATCH, evidence, ""
    return FailureClass.CRASHED, evidence, ""


def _first_phrase(lines: Sequence[str]) -> tuple[int, tables.Phrase] | None:
    for index, line in enumerate(lines):
        # Source lines of tracebacks, usage texts and the dump of all arguments quote phrases without meaning them.
        if line.startswith((" ", "usage:")) or "server_args=ServerArgs(" in line:
            continue
        for phrase in tables.CAUSES:
            if phrase.pattern.search(line):
                return index, phrase
    return None


def _first_exception(lines: Sequence[str]) -> logs.Raised | None:
    """The first exception that ended a process: others are logged and survived."""
    raised = logs.raised_in(lines)
    fatal = [one for one in raised if _FATAL.search(one.header)]
    return next(iter(fatal or [one for one in raised[-1:] if not one.header]), None)


def _timed(failure_class: FailureClass | str, before: Sequence[str], phase: Phase) -> FailureClass:
    """Out of memory and hangs are told apart by when they happen, as the lines before them show."""
    if isinstance(failure_class, FailureClass):
        return failure_class
    running = phase in _UNDER_LOAD or any(tables.FIRED_UP in line for line in before)
    if failure_class == "hang":
        return FailureClass.HANG_RUN if running else FailureClass.HANG_START
    stage = _stage(before)
    if running or stage == "warm-up":
        return FailureClass.OUT_OF_MEMORY_RUN
    return FailureClass.OUT_OF_MEMORY_CAPTURE if "graph" in stage else FailureClass.OUT_OF_MEMORY_LOAD


def _end(lines: Sequence[str], exit_status: int | None, phase: Phase) -> _Verdict:
    """The class where the log names no cause: from how it ended."""
    line = next((line for line in lines if tables.CASCADE.search(line)), None)
    if line is not None:
        return FailureClass.CRASHED, line.strip(), ""
    last = logs.last_line(lines) or "(no output)"
    if exit_status is None:
        hang = FailureClass.HANG_RUN if phase in _UNDER_LOAD else FailureClass.HANG_START
        return hang, f"alive, but without progress since: {last}", ""
    # A shell in between reports a signal as 128 + its number.
    number = -exit_status if exit_status < 0 else exit_status - 128 if 128 < exit_status < 160 else 0
    if not number:
        return FailureClass.CRASHED, f"ended with exit status {exit_status}; last line: {last}", ""
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    outside = name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
    failure_class = FailureClass.KILLED if outside else FailureClass.CRASHED
    return failure_class, f"ended by {name} without a word; last line: {last}", ""
