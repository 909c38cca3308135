"""The strict YAML reader: what is refused, and that each fault is named with its line."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, field_validator

from tuner.documents.reading import MAX_BYTES, Document, read, read_text, read_with_places
from tuner.errors import InputError
from tuner.values.configuration import Scalar


class Ring(Document):
    size: int = Field(ge=1)
    tags: tuple[str, ...] = ()


class Sample(Document):
    name: str = "x"
    direction: Literal["maximize", "minimize"] = "maximize"
    ratio: float = 1.0
    on: bool = True
    values: tuple[Scalar | Ring, ...] = ()
    rings: dict[str, Ring] = {}  # noqa: RUF012
    maybe: Ring | None = None

    @field_validator("name")
    @classmethod
    def _short(cls, name: str) -> str:
        if len(name) > 10:
            raise ValueError(f"found a name of {len(name)} characters, expected at most 10")
        return name


def problems(text: str | Path) -> tuple[str, ...]:
    with pytest.raises(InputError) as caught:
        read(text, Sample, "f.yaml")
    return caught.value.problems


def test_a_good_file_becomes_frozen_values() -> None:
    text = """
# a comment
name: ring
ratio: 2
values: [null, ~, true, 1, 1.0, 1e3, -0x1F, "1", yes, off, 2024-01-01, 1:30, .5, {size: 3}]
rings:
  a: {size: 1, tags: [p, "null"]}
"""
    sample = read(text, Sample, "f.yaml")
    assert repr(sample.values) == repr(
        (None, None, True, 1, 1.0, 1000.0, "-0x1F", "1", "yes", "off", "2024-01-01", "1:30", 0.5, Ring(size=3))
    )
    assert sample.ratio == 2.0
    assert sample.rings == {"a": Ring(size=1, tags=("p", "null"))}
    with pytest.raises(Exception, match="frozen"):
        sample.name = "other"


def test_every_problem_is_reported_at_once_with_its_line_and_the_nearest_name() -> None:
    text = """name: much too long a name
direction: maximise
ratio: fast
on: yes
values:
- 1
- [2]
- {sise: 3}
rings:
  a:
    size: 0
    tagz: []
  b: 3
  c: {}
maybe: 7
nmae: x
"""
    assert problems(text) == (
        "f.yaml:1: name: found a name of 20 characters, expected at most 10",
        "f.yaml:2: direction: found 'maximise', expected one of 'maximize' or 'minimize'; did you mean 'maximize'?",
        "f.yaml:3: ratio: found 'fast', expected a number",
        "f.yaml:4: on: found 'yes', expected true or false",
        "f.yaml:7: values[1]: found a list, expected a text, a whole number, a number, true or false"
        " or a mapping (key: value)",
        "f.yaml:8: values[2]: found no key 'size', expected it: it is required",
        "f.yaml:8: values[2].sise: found an unknown key, expected one of size, tags; did you mean 'size'?",
        "f.yaml:11: rings.a.size: found 0, expected greater than or equal to 1",
        "f.yaml:12: rings.a.tagz: found an unknown key, expected one of size, tags; did you mean 'tags'?",
        "f.yaml:13: rings.b: found 3, expected a mapping (key: value)",
        "f.yaml:14: rings.c: found no key 'size', expected it: it is required",
        "f.yaml:15: maybe: found 7, expected a mapping (key: value)",
        "f.yaml:16: nmae: found an unknown key, expected one of name, direction, ratio, on, values, rings, maybe;"
        " did you mean 'name'?",
    )


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.yaml: found an empty file, expected a mapping"),
        ("# only a comment\n", "f.yaml: found an empty file"),
        ("---\n", "f.yaml: found an empty file"),
        ("null\n", "f.yaml: found an empty file"),
        ("- 1\n", "f.yaml:1: found a list, expected a mapping"),
        ("hello\n", "f.yaml:1: found 'hello', expected a mapping"),
        (BOMB, "f.yaml:1: found the alias or anchor '&a', expected the value written out"),
        ("name: *a\n", "f.yaml:1: found the alias or anchor '*a'"),
        ("&k name: x\n", "f.yaml:1: found a key that is not a plain word"),
        ("*k : x\n", "f.yaml:1: found a key that is not a plain word"),
        ("name: x\n---\nname: y\n", "f.yaml:2: found a second document ('---'), expected one document in a file"),
        ("name: x\nname: y\n", "f.yaml:2: found the key 'name' a second time (first in line 1), expected once"),
        ("name: {a: 1\n", "expected valid YAML"),
        ("name: 'x\n", "expected valid YAML"),
        ("name: a: b\n", "f.yaml:1: found a fault in column 8"),
        ("\tname: x\n", "f.yaml:1: found a fault in column 1"),
        ("@name: x\n", "f.yaml:1: found a fault"),
        ("name: a\x00b\n", "f.yaml:1: found a fault (special characters are not allowed)"),
        ('name: "a\\0b"\n', "f.yaml:1: found the control character '\\x00' in a text"),
        ('name: "\\e[31mred"\n', "f.yaml:1: found the control character '\\x1b' in a text"),
        ('name: "a\\u202Eb"\n', "f.yaml:1: found the control character '\\u202e' in a text"),
        ('name: "\\ud800"\n', "f.yaml:1: found the control character '\\ud800' in a text"),
        ('name: "\\UFFFFFFFF"\n', "found an escape that is no character"),
        ('"na\\u0007me": x\n', "f.yaml:1: found the key 'na\\x07me'"),
        (f"{'k' * 300}: x\n", "expected at most 256 printable characters"),
        ("? [a, b]\n: x\n", "f.yaml:1: found a key that is not a plain word"),
        ("? {a: b}\n: x\n", "f.yaml:1: found a key that is not a plain word"),
        ("name: !!str x\n", "f.yaml:1: found the tag 'tag:yaml.org,2002:str', expected plain data without tags"),
        ("name: ! x\n", "f.yaml:1: found the tag '!'"),
        ("!!set {a}\n", "f.yaml:1: found the tag 'tag:yaml.org,2002:set'"),
        ("<<: {name: x}\n", "f.yaml:1: <<: found an unknown key"),
        ("values: [010]\n", "f.yaml:1: found 010, expected a plain decimal number; quote it if it is a text"),
        ("values: [1_000]\n", "f.yaml:1: found 1_000, expected a plain decimal number"),
        ("values: [.inf]\n", "f.yaml:1: found .inf, expected a plain decimal number"),
        ("values: [-.NaN]\n", "f.yaml:1: found -.NaN, expected a plain decimal number"),
        ("values: [1e999]\n", "f.yaml:1: found the number 1e999, expected a finite one"),
        ("values: [9223372036854775808]\n", "f.yaml:1: found the number 9223372036854775808, expected one of 64 bits"),
        (f"values: [{'9' * 5000}]\n", "expected one of 64 bits"),
        ("[" * 3000, "f.yaml:1: found more than 16 levels, expected a flat document"),
        ("{a: " * 3000, "f.yaml:1: found more than 16 levels"),
        ("".join(f"{' ' * i}a:\n" for i in range(60)), "f.yaml:17: found more than 16 levels"),
        ("name: x\n" + "#" * MAX_BYTES, "f.yaml: found more than 262144 bytes, expected a file of at most 256 KiB"),
        ("name: " + "é" * (MAX_BYTES // 2), "f.yaml: found more than 262144 bytes"),
    ],
)
def test_what_is_not_strict_yaml_is_refused(text: str, message: str) -> None:
    assert message in problems(text)[0]


@pytest.mark.parametrize("function", ["os.system", "subprocess.check_output", "builtins.eval"])
def test_a_python_tag_runs_nothing(function: str, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    argument = f"__import__('pathlib').Path('{witness}').touch()" if function == "builtins.eval" else f"touch {witness}"
    (message,) = problems(f'name: !!python/object/apply:{function} ["{argument}"]\n')
    assert message.startswith("f.yaml:1: found the tag 'tag:yaml.org,2002:python/object/apply:")
    assert not witness.exists()


def test_many_faults_are_cut_short_and_quick() -> None:
    started = time.monotonic()
    found = problems("values: [" + "[]," * 5_000 + "]")
    assert len(found) == 21  # of 100 faults, five are the branches of one union
    assert re.fullmatch(r"f.yaml:1: found \d+ more problems after these", found[-1])
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name: \xff\n", "f.yaml:1: found bytes that are not UTF-8"),
        ("name: x\n".encode("utf-16"), "f.yaml:1: found bytes that are not UTF-8"),
        (b"name: x\n# " + b"x" * MAX_BYTES, "f.yaml: found more than 262144 bytes"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(content)
    assert message in problems(path)[0]


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x")
    assert read_text(path, "f.yaml") == "name: x"
    assert read(path, Sample, "f.yaml").name == "x"


def test_what_is_no_file_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    assert problems(tmp_path / "none.yaml") == ("f.yaml: found no such file, expected a YAML file; check the path",)
    assert "not a regular file" in problems(tmp_path)[0]
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in problems(tmp_path / "pipe")[0]
    assert "not a regular file" in problems(Path("/dev/zero"))[0]
    assert "cannot be read" in problems(Path("a" * 5000))[0]


def test_places_name_the_line_of_a_key_for_later_checks() -> None:
    _, places = read_with_places(
        "name: x\nrings:\n  a:\n    size: 1\n  b: {size: 2}\nvalues:\n- 1\n- 2\n", Sample, "f.yaml"
    )
    assert places.problem(("rings", "a"), "bad") == "f.yaml:3: rings.a: bad"
    assert places.problem(("rings", "b", "size"), "bad") == "f.yaml:5: rings.b.size: bad"
    assert places.problem(("values", 1), "bad") == "f.yaml:8: values[1]: bad"
    assert places.problem(("rings", "a", "tags"), "bad") == "f.yaml:3: rings.a.tags: bad"
    assert places.problem((), "bad") == "f.yaml:1: bad"


PIECES = (
    "name", "values", "rings", "size", "a", ":", "-", "[", "]", "{", "}", ",", "?", "|", ">", "&", "*", "!", "'", '"',
    "#", "%", "@", "`", "\n", "\t", "---", "...", "<<", "~", "null", "1", ".nan", "\\0", " ", "\n  ", ": ", "\n- ", "é",
    "\u2028", "!!python/name:os.system", "\x85",
)  # fmt: skip
YAML_PIECES = st.sampled_from(PIECES)


@settings(max_examples=150, deadline=None)
@given(st.lists(YAML_PIECES, max_size=40).map("".join) | st.text(max_size=80))
def test_no_text_raises_anything_but_an_input_error(text: str) -> None:
    try:
        assert isinstance(read(text, Sample, "f.yaml"), Sample)
    except InputError as error:
        assert all(problem.startswith("f.yaml") and "expected" in problem for problem in error.problems)
