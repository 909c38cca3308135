"""A space from somewhere else: nothing in it runs, and nothing but an `InputError` comes out of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import InputError
from tuner.shipped import shipped_file
from tuner.space.load import load_space
from tuner.space.space import SearchSpace

NCCL = shipped_file("search_spaces", "nccl.yaml").read_text()

EXECUTING = {"exec", "compile", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "open", "socket.connect"}
watching: list[str] | None = None


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if watching is not None and event in EXECUTING:
        watching.append(event)


sys.addaudithook(_audit)


@contextmanager
def nothing_runs() -> Iterator[None]:
    """Fails when the interpreter compiles, executes, opens or starts anything inside."""
    global watching
    watching = []
    try:
        yield
        assert watching == []
    finally:
        watching = None


def test_the_watch_sees_what_it_must_not_miss() -> None:
    with pytest.raises(AssertionError), nothing_runs():
        eval("1 + 1")


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["X", "a", "X == 1", "__import__('os').system('true')", ">=2", "$(id)", "a\nb", "true"]),
)
words = "why env args rules try_first choices int float default when requires low high step log value engine nccl gpus"
keys = st.sampled_from([*words.split(), "rule", "name", "set", "X", "Y", "x", "a-b"]) | st.text(max_size=5)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)
parameters = st.dictionaries(keys, anything, max_size=4)
documents = st.fixed_dictionaries(
    {},
    optional={
        "env": st.dictionaries(st.sampled_from(["X", "Y", "Z", "bad"]), parameters, max_size=3),
        "args": st.dictionaries(st.sampled_from(["x", "a-b", "Bad"]), parameters, max_size=2),
        "rules": st.lists(st.fixed_dictionaries({"rule": scalars}), max_size=2),
        "try_first": st.lists(st.fixed_dictionaries({"name": scalars, "set": anything}), max_size=2),
    },
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(documents | anything)
def test_random_documents_run_nothing_and_raise_nothing_but_input_errors(document: Any) -> None:
    text = yaml.safe_dump(document, allow_unicode=True)
    with nothing_runs():
        try:
            assert isinstance(load_space(text, "x.yaml"), SearchSpace)
        except InputError as error:
            assert error.problems


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_good_file_with_a_piece_changed_is_good_or_an_input_error(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(NCCL)))
    end = min(len(NCCL), start + data.draw(st.integers(0, 12)))
    piece = data.draw(
        st.text(max_size=4) | st.sampled_from(["&a", "*a", "!!python/name:os.system", "- ", ": ", "{", "\n"])
    )
    with nothing_runs():
        try:
            assert isinstance(load_space(NCCL[:start] + piece + NCCL[end:], "x.yaml"), SearchSpace)
        except InputError as error:
            assert error.problems


@pytest.mark.parametrize(
    "rule",
    ["__import__('pathlib').Path('{path}').touch()", "(lambda: open('{path}', 'w'))() == 1", "exec('1') == null"],
)
def test_a_rule_that_is_code_is_refused_and_not_run(rule: str, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    document = {"env": {"X": {"choices": [None, "a"]}}, "rules": [{"rule": rule.replace("{path}", str(witness))}]}
    with nothing_runs(), pytest.raises(InputError):
        load_space(yaml.safe_dump(document), "x.yaml")
    assert not witness.exists()
