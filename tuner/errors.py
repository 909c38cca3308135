"""Every error that this package raises on purpose.

TunerError
├── InputError               a file, an option or an environment variable is wrong; nothing was touched (exit 2)
├── LaunchFailed             one launch gave no number; carries a `Failure` with its evidence
├── HostLost                 the host or its link is gone; the launch under way is *lost*
├── HostRefused              the host cannot be used as it is: host key, login, python, engine missing (exit 3)
├── ForeignServer            somebody else's server or process is in the way; never touched (exit 3)
├── BudgetSpent              the study may not start another launch: the regular end of a search
├── ControlFailed            the launch of the study file itself gives no number (exit 4)
└── StoreError               the database cannot be used: unreachable, read-only, of another version (exit 3)
    ├── SpecificationChanged a study is resumed with another space, objective or launch (exit 2)
    └── StudyHeld            another driver runs the study (exit 3)

Each message says what was found, where, what was expected, and what to do. All pickle, so that they cross process
boundaries whole.
"""

from __future__ import annotations

from datetime import UTC, datetime

from tuner.values.failure import Failure, FailureClass


class TunerError(Exception):
    """Base of all; ``str()`` of it is an instruction that a person can follow."""


class InputError(TunerError):
    """Something that the user wrote is wrong.

    Attributes:
        problems: one message for each fault found, so that all can be mended at once.
    """

    def __init__(self, problems: tuple[str, ...] | list[str] | str) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(self.problems)


class LaunchFailed(TunerError):
    """A launch gave no number.

    Attributes:
        failure: class, phase, evidence, exit status and log tail.
    """

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure)

    def __str__(self) -> str:
        return str(self.failure)


class HostLost(TunerError):
    """The connection to a host broke and did not come back in time."""

    def __init__(self, host: str, what: str) -> None:
        self.host = host
        self.what = what
        super().__init__(host, what)

    def __str__(self) -> str:
        return f"host {self.host}: {self.what}"

    def failure(self, phase: str) -> Failure:
        """This loss as a `Failure`, to be stored beside the others."""
        return Failure(FailureClass.LOST, phase, str(self))


class HostRefused(TunerError):
    """The host answered but cannot be used; the message says what to do."""

    def __init__(self, host: str, what: str) -> None:
        self.host = host
        self.what = what
        super().__init__(host, what)

    def __str__(self) -> str:
        return f"host {self.host}: {self.what}"


class ForeignServer(TunerError):
    """A server or process that is not ours is in the way. It is never measured and never touched."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure)

    def __str__(self) -> str:
        return str(self.failure)


class BudgetSpent(TunerError):
    """A launch was refused because the study's budget has none left.

    Attributes:
        study: name of the study.
        kind: ``launches``, or ``lost launches``: those that the infrastructure took.
        limit: how many of that kind the budget allows; as many have been made.
    """

    def __init__(self, study: str, kind: str, limit: int) -> None:
        self.study = study
        self.kind = kind
        self.limit = limit
        super().__init__(study, kind, limit)

    def __str__(self) -> str:
        if self.kind == "launches":
            return f"study {self.study}: all {self.limit} launches of its budget are spent; a larger budget goes on."
        return (
            f"study {self.study}: {self.limit} of its launches were lost to the infrastructure, which is all that its "
            "budget allows. Look at the failures of these launches, mend the host, and raise budget.lost_launches."
        )


class StoreError(TunerError):
    """The database cannot be used."""


class SpecificationChanged(StoreError):
    """A study is resumed with a specification that differs from the stored one.

    Attributes:
        differences: one line for each difference, old and new.
    """

    def __init__(self, study: str, differences: tuple[str, ...], acceptable: bool = True) -> None:
        self.study = study
        self.differences = differences
        self.acceptable = acceptable
        super().__init__(study, differences, acceptable)

    def __str__(self) -> str:
        lines = "\n".join(f"  {line}" for line in self.differences)
        if not self.acceptable:
            return (
                f"study {self.study} was started with another launch, workload or seed:\n{lines}\n"
                "What it measured does not answer for this one. Start a fresh one with --new."
            )
        return (
            f"study {self.study} was started with another specification:\n{lines}\n"
            f"Start a fresh one with --new, or go on with the new specification with --accept-changes."
        )


class StudyHeld(StoreError):
    """Another driver runs the study, and two would fight over its hosts.

    Attributes:
        study: name of the study.
        hostname, pid: where and what the other driver is.
        since_unix_s: when it took the study.
        silent_s: seconds since its last sign of life.
        lapses_s: seconds until the study is free if it gives no other.
    """

    def __init__(
        self, study: str, hostname: str, pid: int, since_unix_s: float, silent_s: float, lapses_s: float
    ) -> None:
        self.study = study
        self.hostname = hostname
        self.pid = pid
        self.since_unix_s = since_unix_s
        self.silent_s = silent_s
        self.lapses_s = lapses_s
        super().__init__(study, hostname, pid, since_unix_s, silent_s, lapses_s)

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_unix_s, UTC).astimezone().isoformat(" ", "seconds")
        return (
            f"study {self.study} is being run by pid {self.pid} on {self.hostname} since {since} (last sign of life "
            f"{self.silent_s:.0f} s ago); wait for it, or stop it there (kill {self.pid}). If {self.hostname} is gone "
            f"itself, the study is free in {max(0.0, self.lapses_s):.0f} s."
        )


class ControlFailed(TunerError):
    """The launch of the study file itself gives no number: there is nothing to compare with."""

    def __init__(self, failure: Failure) -> None:
        self.failure = failure
        super().__init__(failure)

    def __str__(self) -> str:
        return (
            f"the control failed, the launch exactly as the study file gives it: {self.failure}\n"
            "Mend the engine's arguments or environment in the study file, then start afresh with --new."
        )
