"""Why a launch gave no number, and whose fault that is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FailureClass(StrEnum):
    """The kinds of failure that are told apart. The value is what databases, dashboards and reports show."""

    OUT_OF_MEMORY_LOAD = "out of memory while loading"
    OUT_OF_MEMORY_CAPTURE = "out of memory in graph capture"
    OUT_OF_MEMORY_RUN = "out of memory under load"
    NCCL_REFUSED = "NCCL refused the configuration"
    HANG_START = "hang during start"
    HANG_RUN = "hang under load"
    BAD_FLAG = "bad flag"
    DRAFT_MISMATCH = "draft model does not fit"
    NOT_IN_EFFECT = "configuration did not take effect"
    REQUESTS_FAILED = "requests failed"
    WRONG_OUTPUT = "wrong output"
    CRASHED = "crashed"
    KILLED = "killed from outside"
    PORT_TAKEN = "port taken"
    GPU_BUSY = "GPU memory held by others"
    BAD_MEASUREMENT = "no valid window"
    LOST = "host lost"
    INTERRUPTED = "interrupted"


class Fault(StrEnum):
    """Whose fault a failure is, which decides what is done about it.

    CONFIGURATION: an infeasible result, told to the sampler. INFRASTRUCTURE: *lost*, never told, retried.
    FOREIGN: somebody else's server or process is in the way; the study stops and says so.
    INTERRUPTION: nobody's: the user stopped the study, or its driver died; never told, launched again on resume.
    """

    CONFIGURATION = "configuration"
    INFRASTRUCTURE = "infrastructure"
    FOREIGN = "foreign"
    INTERRUPTION = "interruption"


FAULT_OF: dict[FailureClass, Fault] = {
    FailureClass.OUT_OF_MEMORY_LOAD: Fault.CONFIGURATION,
    FailureClass.OUT_OF_MEMORY_CAPTURE: Fault.CONFIGURATION,
    FailureClass.OUT_OF_MEMORY_RUN: Fault.CONFIGURATION,
    FailureClass.NCCL_REFUSED: Fault.CONFIGURATION,
    FailureClass.HANG_START: Fault.CONFIGURATION,
    FailureClass.HANG_RUN: Fault.CONFIGURATION,
    FailureClass.BAD_FLAG: Fault.CONFIGURATION,
    FailureClass.DRAFT_MISMATCH: Fault.CONFIGURATION,
    FailureClass.NOT_IN_EFFECT: Fault.CONFIGURATION,
    FailureClass.REQUESTS_FAILED: Fault.CONFIGURATION,
    FailureClass.WRONG_OUTPUT: Fault.CONFIGURATION,
    FailureClass.CRASHED: Fault.CONFIGURATION,
    FailureClass.KILLED: Fault.INFRASTRUCTURE,
    FailureClass.PORT_TAKEN: Fault.FOREIGN,
    FailureClass.GPU_BUSY: Fault.FOREIGN,
    FailureClass.BAD_MEASUREMENT: Fault.INFRASTRUCTURE,
    FailureClass.LOST: Fault.INFRASTRUCTURE,
    FailureClass.INTERRUPTED: Fault.INTERRUPTION,
}

SAYS_WHEN = frozenset(
    {
        FailureClass.OUT_OF_MEMORY_LOAD,
        FailureClass.OUT_OF_MEMORY_CAPTURE,
        FailureClass.OUT_OF_MEMORY_RUN,
        FailureClass.HANG_START,
        FailureClass.HANG_RUN,
        FailureClass.WRONG_OUTPUT,
    }
)
"""Classes whose name tells when it happened."""

WHEN: dict[str, str] = {
    "clean": "before the start",
    "start": "at the start",
    "ready": "while starting",
    "took effect": "when its settings were checked",
    "warm-up": "in warm-up",
    "measure": "under load",
    "canaries": "when its outputs were compared",
    "stop": "while stopping",
}
"""A phase of a launch, as stored, in words: in phase *ready* a server is not ready yet."""


@dataclass(frozen=True)
class Failure:
    """One failure with its evidence.

    Attributes:
        failure_class: what kind it is.
        phase: the phase of the launch in which it showed.
        evidence: the one line that proves the class: from the server's log, or what was observed.
        remedy: what a person can do about it; may be empty.
        exit_status: of the server's parent process: ≥ 0 an exit code, < 0 minus a signal; ``None`` if it lived.
        log_tail: the last lines of the server's log.
    """

    failure_class: FailureClass
    phase: str
    evidence: str
    remedy: str = ""
    exit_status: int | None = None
    log_tail: str = ""

    @property
    def fault(self) -> Fault:
        """Whose fault it is; see `Fault`."""
        return FAULT_OF[self.failure_class]

    @property
    def what(self) -> str:
        """The class, and when it showed where the class does not say so itself: ``bad flag while starting``."""
        if self.failure_class in SAYS_WHEN or not self.phase:
            return self.failure_class.value
        return f"{self.failure_class.value} {WHEN.get(self.phase, f'({self.phase})')}"

    def __str__(self) -> str:
        text = f"{self.what}: {self.evidence}"
        if not self.remedy:
            return text
        return f"{text} {self.remedy}" if text.endswith((".", "!", "?")) else f"{text}. {self.remedy}"
