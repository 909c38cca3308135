"""The study file: where and how a study runs. ``studies/kimi-k2.5.yaml`` explains every key.

    spec, storage = load_study(text, "studies/kimi-k2.5.yaml")

The search spaces and objectives that it names are embedded as texts, so that the specification is whole by itself.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from tuner.documents.complaints import shown
from tuner.documents.differences import differences as differences
from tuner.documents.names import ARG_NAME, ENV_NAME, PATTERN, File, Hostname, Jump, Name, Python, User
from tuner.documents.objective import load_objective
from tuner.documents.reading import Document, Places, read_text, read_with_places
from tuner.documents.secrets import looks_secret, mask, reference
from tuner.errors import InputError
from tuner.shipped import Kind, shipped_file
from tuner.values.configuration import Scalar
from tuner.values.host import HostAddress
from tuner.values.launch import LaunchBase
from tuner.values.study import Budget, EngineSpec, HostSpec, StageSpec, StudySpec
from tuner.values.workload import Workload

DEFAULT_STORAGE = "sqlite:///studies/tuner.db"
DEFAULT_COMMAND = "python3 -m sglang.launch_server"
DEFAULT_OBJECTIVE = "throughput.yaml"

_DAY_S = 86400.0


def _storage(url: str) -> str:
    if not re.match(r"(sqlite|postgresql(\+psycopg)?)://", url):
        raise ValueError(
            f"found {mask(url, ())!r}, expected sqlite:///FILE or postgresql://USER:$NAME@HOST/DATABASE, where $NAME "
            f"is the environment variable with the password"
        )
    return url


Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(gt=0, le=_DAY_S)]
Storage = Annotated[str, AfterValidator(_storage)]


class _Host(Document):
    """A machine reached by SSH (keys as in `HostAddress`), or a simulated one."""

    name: Name
    hostname: Hostname | None = None
    port: Port | None = None
    user: User | None = None
    key_file: File | None = None
    jump: Jump | None = None
    known_hosts_file: File | None = None
    python: Python = HostAddress.python
    server_port: Port | Literal["auto"] = "auto"
    simulated: Name | None = None


class _Engine(Document):
    name: Name = "sglang"
    command: str | tuple[str, ...] = DEFAULT_COMMAND
    args: dict[str, Scalar] = Field(default={}, max_length=500)
    env: dict[str, Scalar] = Field(default={}, max_length=500)
    start_deadline_s: Seconds = EngineSpec.start_deadline_s
    no_progress_s: Seconds = EngineSpec.no_progress_s
    stop_grace_s: Seconds = EngineSpec.stop_grace_s
    lease_s: float = Field(default=EngineSpec.lease_s, ge=5, le=3600)
    allow: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()


class _Workload(Document):
    endpoint: Literal["generate", "chat"] = Workload.endpoint
    concurrency: int = Field(default=Workload.concurrency, ge=1, le=4096)
    prompt_words: int = Field(default=Workload.prompt_words, ge=1, le=100_000)
    output_tokens: int = Field(default=Workload.output_tokens, ge=2, le=100_000)
    windows: int = Field(default=Workload.windows, ge=1, le=1000)
    warm_up_windows: int = Field(default=Workload.warm_up_windows, ge=0, le=1000)
    seed: int = Field(default=Workload.seed, ge=0, lt=2**32)
    request_timeout_s: Seconds = Workload.request_timeout_s


class _Budget(Document):
    launches: int = Field(ge=1, le=100_000)
    hours: float | None = Field(default=Budget.hours, gt=0, le=24 * 366)
    lost_launches: int = Field(default=Budget.lost_launches, ge=0, le=1000)


class _Stage(Document):
    name: Name
    space: File
    objective: File = DEFAULT_OBJECTIVE
    confirmation_launches: int = Field(default=StageSpec.confirmation_launches, ge=0, le=1000)
    seed: int = Field(default=StageSpec.seed, ge=0, lt=2**32)


class _Study(Document):
    """The whole file. Keys without a default are required."""

    name: Name
    hosts: tuple[_Host, ...] = Field(min_length=1, max_length=256)
    engine: _Engine
    workload: _Workload = _Workload()
    budget: _Budget
    stages: tuple[_Stage, ...] = Field(min_length=1, max_length=20)
    storage: Storage = DEFAULT_STORAGE


def load_study(
    text: str, source: str | Path, *, space: str | None = None, objective: str | None = None
) -> tuple[StudySpec, str]:
    """Reads a study file, and the spaces and objectives that it names.

    Args:
        source: path of the file, for messages; names of other files in it are looked for beside it first.
        space: path or shipped name of a search space in place of the first stage's.
        objective: the same of an objective.

    Returns:
        The specification, and the storage URL. References (``$NAME``) stay references in both.

    Raises:
        InputError: with all problems of the file, or with those of the files that it names. Search spaces are
            embedded as they are: what is wrong inside of them is told when they are loaded (`tuner.space.load`).
    """
    study, places = read_with_places(text, _Study, str(source))
    problems = [places.problem(path, message) for path, message in _problems(study)]
    if problems:
        raise InputError(problems)
    spec = StudySpec(
        name=study.name,
        hosts=tuple(_host(host) for host in study.hosts),
        engine=_engine(study.engine),
        workload=Workload(**study.workload.model_dump()),
        budget=Budget(**study.budget.model_dump()),
        stages=_stages(study, places, Path(source).parent, space, objective),
    )
    return spec, study.storage


def _host(host: _Host) -> HostSpec:
    address = HostAddress(**host.model_dump(exclude={"server_port", "simulated"}))
    port = None if host.server_port == "auto" else host.server_port
    return HostSpec(address=address, simulated=host.simulated, port=port)


def _engine(engine: _Engine) -> EngineSpec:
    command = shlex.split(engine.command) if isinstance(engine.command, str) else engine.command
    launch = LaunchBase(
        command=tuple(command),
        args=tuple((name, value) for name, value in engine.args.items() if value is not None),
        env=tuple((name, str(value)) for name, value in engine.env.items()),
        allow=engine.allow,
        forbid=engine.forbid,
    )
    return EngineSpec(
        name=engine.name,
        launch=launch,
        start_deadline_s=engine.start_deadline_s,
        no_progress_s=engine.no_progress_s,
        stop_grace_s=engine.stop_grace_s,
        lease_s=engine.lease_s,
    )


def _stages(
    study: _Study, places: Places, folder: Path, space: str | None, objective: str | None
) -> tuple[StageSpec, ...]:
    """The stages with the texts of their files."""
    stages: list[StageSpec] = []
    problems: list[str] = []

    def text_of(kind: Kind, name: str, override: str | None, path: tuple[str | int, ...]) -> tuple[str, str]:
        """Text and file name of a space or an objective."""
        try:
            file = shipped_file(kind, override) if override else shipped_file(kind, name, beside=folder)
        except InputError as error:
            # What was named on the command line has no place in the study file.
            problems.extend(error.problems if override else (places.problem(path, p) for p in error.problems))
            return "", ""
        try:
            text = read_text(file, str(file))
            if kind == "objectives":
                load_objective(text, str(file))
        except InputError as error:
            problems.extend(error.problems)
            return "", ""
        return text, file.name

    for index, stage in enumerate(study.stages):
        first = index == 0
        space_text, space_name = text_of(
            "search_spaces", stage.space, space if first else None, ("stages", index, "space")
        )
        objective_text, objective_name = text_of(
            "objectives", stage.objective, objective if first else None, ("stages", index, "objective")
        )
        stages.append(
            StageSpec(
                name=stage.name,
                space=space_text,
                space_name=space_name,
                objective=objective_text,
                objective_name=objective_name,
                confirmation_launches=stage.confirmation_launches,
                seed=stage.seed,
            )
        )
    if problems:
        raise InputError(problems)
    return tuple(stages)


_Problem = tuple[tuple[str | int, ...], str]
"""The path of a key, and what is wrong there."""


def _problems(study: _Study) -> Iterator[_Problem]:
    """What no single value can tell."""
    yield from _twice("hosts", [host.name for host in study.hosts])
    yield from _twice("stages", [stage.name for stage in study.stages])
    for index, host in enumerate(study.hosts):
        extra = sorted(host.model_fields_set - {"name", "simulated", "server_port"})
        if host.simulated is not None and extra:
            yield (
                ("hosts", index, extra[0]),
                f"found beside simulated: {host.simulated}, expected one of the two: a simulated host is started on "
                f"this machine and has no address",
            )
    yield from _engine_problems(study.engine)
    yield from _confirmation_problems(study)


def _twice(key: str, names: list[str]) -> Iterator[_Problem]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield (key, index, "name"), f"found {name!r} a second time, expected each name once"


def _confirmation_problems(study: _Study) -> Iterator[_Problem]:
    for index, stage in enumerate(study.stages):
        if stage.confirmation_launches % 2 or stage.confirmation_launches == 2:
            yield (
                ("stages", index, "confirmation_launches"),
                f"found {stage.confirmation_launches}, expected 0 or an even number from 4: half for the winner, half "
                f"for the control, and an interval needs two of each",
            )
    kept = sum(stage.confirmation_launches for stage in study.stages)
    if kept >= study.budget.launches:
        yield (
            ("budget", "launches"),
            f"found {study.budget.launches}, of which the stages keep {kept} for confirmation, expected more: none is "
            f"left for the search",
        )


def _engine_problems(engine: _Engine) -> Iterator[_Problem]:
    yield from _command_problems(engine.command)
    for name, value in engine.args.items():
        path = ("engine", "args", name)
        if not ARG_NAME.fullmatch(name):
            remedy = f"; write {name.lstrip('-')!r}" if ARG_NAME.fullmatch(name.lstrip("-")) else ""
            yield path, f"found {name!r}, expected an argument's name without leading dashes{remedy}"
        elif value is False:
            yield path, "found false, expected a value, true for a flag without one, or null to leave it out"
        else:
            yield from ((path, problem) for problem in _value_problems(name, value))
    for name, value in engine.env.items():
        path = ("engine", "env", name)
        if not ENV_NAME.fullmatch(name):
            yield path, f"found {name!r}, expected the name of an environment variable: letters, digits and _"
        elif value is None or isinstance(value, bool):
            yield path, f"found {shown(value)}, expected a text or a number, such as 1 or 'true'"
        else:
            yield from ((path, problem) for problem in _value_problems(name, value))
    for index, name in enumerate(engine.allow):
        if not ARG_NAME.fullmatch(name) and not ENV_NAME.fullmatch(name):
            yield ("engine", "allow", index), f"found {name!r}, expected a variable's or an argument's name, no dashes"
    for index, pattern in enumerate(engine.forbid):
        if not PATTERN.fullmatch(pattern):
            yield ("engine", "forbid", index), f"found {pattern!r}, expected NAME, NAME=VALUE, --flag or --flag=VALUE"


def _value_problems(name: str, value: Scalar) -> Iterator[str]:
    """A secret given literally, and what looks like a reference but is none."""
    if isinstance(value, str) and value.startswith("$") and reference(value) is None:
        yield f"found {value!r}, expected $NAME alone, as a whole: nothing inside of a text is looked up"
    elif looks_secret(name) and reference(value) is None and value not in ("", None, True):
        variable = re.sub(r"\W", "_", name).upper()
        yield (
            f"found a value in the file, expected a reference, since the name says that it is a secret: write "
            f"${variable}, and export {variable} before the study is started"
        )


def _command_problems(command: str | tuple[str, ...]) -> Iterator[_Problem]:
    """A command that is none, that a shell would have to read, or that holds a secret."""
    path = ("engine", "command")
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        yield path, f"found {command!r} ({error}), expected words as a shell would split them"
        return
    if not words or not words[0]:
        yield path, f"found no word, expected a command such as {DEFAULT_COMMAND}"
        return
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("$") or (isinstance(command, str) and word in ("&&", "||", ";", "|", "&", ">", "<")):
            yield (
                path,
                f"found {word!r}, expected plain words, since no shell reads them: variables belong under engine.env, "
                f"arguments under engine.args",
            )
        name, equals, value = word.partition("=")
        if (equals or word.startswith("--")) and looks_secret(name.lstrip("-")) and (value or following):
            yield path, f"found a secret ({name}), expected it under engine.args or engine.env as a reference, $NAME"
