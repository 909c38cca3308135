"""Who may import whom: the sentence and the table of docs/architecture.md, held against every module of the package.

Both are read from the document, so that it cannot say one thing and the code do another.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

BESIDE = {"errors": "ports", "shipped": "documents"}
"""Parts that the sentence leaves out, and whose place they share."""

PURE = {"packaging", "numpy"}
"""Libraries of pure functions, without a door: versions are compared by space and engines, arrays used by all."""

SENT = "host/remote/"
"""What is sent to a host which has nothing of ours: itself and the standard library only."""


@dataclass(frozen=True)
class Import:
    """One import of a module: `name` is absolute, such as ``tuner.values.host`` or ``asyncssh``."""

    module: str
    file: str
    line: int
    name: str

    @property
    def part(self) -> str:
        """The first level of the importing module: ``space`` of ``tuner.space.rules``."""
        return ([*self.module.split("."), ""])[1]


def ranks(document: str) -> dict[str, int]:
    """The part of the package → its place in "values ← ports, documents … ← study", values 0."""
    sentence = re.search(r"One way: (.+?)\.(?:\s|$)", document, re.DOTALL)
    assert sentence, "docs/architecture.md has no sentence 'One way: values ← … ← study.'"
    order = [[part.strip() for part in group.split(",")] for group in sentence[1].split("←")]
    places = {part: place for place, group in enumerate(order) for part in group}
    return places | {part: places[like] for part, like in BESIDE.items()}


def doors(document: str) -> dict[str, tuple[str, ...]]:
    """Third-party library → the files or folders, relative to the package, that may import it."""
    found: dict[str, tuple[str, ...]] = {}
    for row in re.findall(r"^\|(.+)\|$", document, re.MULTILINE):
        cells = row.split("|")
        for names, places in zip(cells[::2], cells[1::2], strict=False):
            paths = tuple(path.removeprefix("tuner/") for path in re.findall(r"`(tuner/[^`]+)`", places))
            for name in re.findall(r"[a-z_]+", re.sub(r"\(.*?\)", "", names)) if paths else ():
                found[name] = found.get(name, ()) + paths
    return found


def imports(package: Path) -> Iterator[Import]:
    """Every import of every module of the package, those inside functions and ``TYPE_CHECKING`` included."""
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        parts = [package.name, *relative.with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                source = node.module or ""
                if node.level:
                    above = parts[: len(parts) - node.level]
                    source = ".".join([*above, *([node.module] if node.module else [])])
                # `from tuner.space import rules` imports a module; `from tuner.space.rules import parse` a name of one.
                names = [
                    f"{source}.{alias.name}"
                    if source == package.name or _is_module(package, source, alias.name)
                    else source
                    for alias in node.names
                ]
            else:
                continue
            for name in dict.fromkeys(names):
                yield Import(module, relative.as_posix(), node.lineno, name)


def _is_module(package: Path, source: str, name: str) -> bool:
    folder = package.parent.joinpath(*source.split("."))
    return source.split(".")[0] == package.name and ((folder / f"{name}.py").is_file() or (folder / name).is_dir())


def violations(package: Path, document: str) -> list[str]:
    """Each import that the document does not allow, with its place and the reason."""
    place, door = ranks(document), doors(document)
    found = []
    for item in imports(package):
        top = item.name.split(".")[0]
        reason = _own(item, place) if top == package.name else _foreign(item, top, door)
        if reason:
            found.append(f"tuner/{item.file}:{item.line} imports {item.name}: {reason}")
    return found


def _own(item: Import, place: Mapping[str, int]) -> str | None:
    """Why one part of the package may not import another; ``None`` if it may."""
    source, target = item.part, ([*item.name.split("."), ""])[1]
    if item.file.startswith(SENT):
        return None if item.name.startswith("tuner.host.remote") else "it is sent to hosts that have nothing of ours"
    if target in ("", "__init__", "__version__") or source == target:
        return None
    if target == "simulated":
        return None if item.file == "study/build.py" else "only study/build.py may import the simulated host"
    if target == "testing":
        return "doubles are for users and tests, not for the product"
    if source == "simulated":
        return None if target in ("values", "errors") else "the simulated host knows values and errors only"
    if source == "testing":
        return "doubles stand in for adapters; they do not need the study" if target == "study" else None
    if source == "values":
        return "values import nothing of the rest"
    if source == "errors":
        return None if target == "values" else "errors import values only"
    unknown = [part for part in (source, target) if part not in place]
    if unknown:
        return f"{unknown[0]} has no place in docs/architecture.md"
    return f"{target} is above {source}" if place[target] > place[source] else None


def _foreign(item: Import, library: str, door: Mapping[str, tuple[str, ...]]) -> str | None:
    """Why a module may not import a library; ``None`` if it may."""
    if library in sys.stdlib_module_names:
        return None
    if item.file.startswith(SENT):
        return "it is sent to hosts that have nothing but the standard library"
    if library in PURE:
        return None
    if library not in door:
        return "the library has no door in docs/architecture.md"
    allowed = any(item.file == path or (path.endswith("/") and item.file.startswith(path)) for path in door[library])
    return None if allowed else f"its door is {' or '.join(door[library])}"


def cycle(package: Path) -> list[str] | None:
    """Modules that import each other in a circle; ``None`` if there are none."""
    graph: dict[str, set[str]] = {}
    found = list(imports(package))
    modules = {item.module for item in found}
    for item in found:
        graph.setdefault(item.module, set())
        if item.name in modules and item.name != item.module:
            graph[item.module].add(item.name)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def test_every_import_is_allowed_by_the_document() -> None:
    assert violations(ROOT / "tuner", DOCUMENT) == []


def test_no_modules_import_each_other() -> None:
    assert cycle(ROOT / "tuner") is None


def test_the_document_is_understood() -> None:
    place, door = ranks(DOCUMENT), doors(DOCUMENT)
    assert place["values"] < place["space"] < place["host"] < place["launch"] < place["store"] < place["study"]
    assert door["asyncssh"] == ("host/ssh.py", "simulated/sshd.py")
    assert door["rich"] == ("study/", "space/")
    assert door["setproctitle"] == door["uvicorn"] == ("simulated/",)


@pytest.mark.parametrize(
    ("file", "source", "reason"),
    [
        ("values/host.py", "from tuner.errors import TunerError", "values import nothing"),
        ("errors.py", "import tuner.ports", "errors import values only"),
        ("host/ssh.py", "from tuner.launch import EngineTarget", "launch is above host"),
        ("documents/reading.py", "def f():\n    from tuner import study", "study is above documents"),
        ("space/space.py", "from ..search import ask", "search is above space"),
        ("load/client.py", "import tuner.simulated.sshd", "only study/build.py"),
        ("study/runner.py", "from tuner.simulated import presets", "only study/build.py"),
        ("study/build.py", "from tuner.testing import Double", "not for the product"),
        ("simulated/engine.py", "from tuner.ports import Engine", "values and errors only"),
        ("novel/x.py", "from tuner.values.host import HostFacts", "novel has no place"),
        ("study/build.py", "import asyncssh", "its door is host/ssh.py or simulated/sshd.py"),
        ("load/metrics.py", "from httpx import AsyncClient", "its door is load/client.py"),
        ("space/space.py", "import yaml", "its door is documents/reading.py"),
        ("load/client.py", "import requests", "has no door"),
        ("host/remote/agent.py", "from tuner.host.ssh import Session", "nothing of ours"),
        ("host/remote/agent.py", "from tuner.values.host import HostFacts", "nothing of ours"),
        ("host/remote/agent.py", "import packaging", "nothing but the standard library"),
    ],
)
def test_what_the_document_forbids_is_found(tmp_path: Path, file: str, source: str, reason: str) -> None:
    path = tmp_path / "tuner" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    found = violations(tmp_path / "tuner", DOCUMENT)
    assert len(found) == 1 and reason in found[0], found
    assert f"tuner/{file}:{source.count(chr(10)) + 1} " in found[0]


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("study/build.py", "from tuner.simulated import presets"),
        (
            "simulated/sshd.py",
            "import asyncssh\nfrom tuner.values.host import HostFacts\nfrom tuner.errors import InputError",
        ),
        ("documents/objective.py", "from tuner.space import rules\nimport packaging.version"),
        ("testing.py", "from tuner.launch import EngineTarget"),
        ("host/remote/agent.py", "import os\nfrom tuner.host.remote import log"),
        ("search/study.py", "from tuner import __version__\nimport optuna.samplers"),
    ],
)
def test_what_the_document_allows_passes(tmp_path: Path, file: str, source: str) -> None:
    path = tmp_path / "tuner" / file
    path.parent.mkdir(parents=True)
    path.write_text(source)
    assert violations(tmp_path / "tuner", DOCUMENT) == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    (tmp_path / "tuner" / "space").mkdir(parents=True)
    (tmp_path / "tuner" / "space" / "a.py").write_text("from tuner.space.b import x")
    (tmp_path / "tuner" / "space" / "b.py").write_text("from tuner.space import a")
    found = cycle(tmp_path / "tuner")
    assert found is not None and {"tuner.space.a", "tuner.space.b"} == set(found)
