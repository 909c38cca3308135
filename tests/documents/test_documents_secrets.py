"""Secrets are looked up where they are used, and never seen anywhere else."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tuner.documents.secrets import (
    MASK,
    looks_secret,
    mask,
    reference,
    references,
    resolve,
    resolve_launch,
    resolve_url,
    secret_values,
)
from tuner.errors import InputError
from tuner.values.host import HostAddress
from tuner.values.launch import LaunchBase
from tuner.values.study import Budget, EngineSpec, HostSpec, StudySpec
from tuner.values.workload import Workload

LAUNCH = LaunchBase(
    command=("python3", "-m", "sglang.launch_server"),
    args=(("api-key", "$TUNER_API_KEY"), ("tp-size", 8), ("trust-remote-code", True)),
    env=(("HF_TOKEN", "$HF_TOKEN"), ("NCCL_DEBUG", "INFO")),
)
SPEC = StudySpec(
    name="s",
    hosts=(HostSpec(HostAddress("h")),),
    engine=EngineSpec("sglang", LAUNCH),
    workload=Workload(),
    budget=Budget(10),
    stages=(),
)
ENVIRON = {"HF_TOKEN": "hf_0123456789", "TUNER_API_KEY": "k'e y\n", "PGPASSWORD": "p@ss/w:rd"}

characters = st.characters(codec="utf-8")
printable = st.text(characters, min_size=4, max_size=30)
texts = st.text(characters, max_size=200)
tricky = st.text("*a/@:%'\\\"\n", min_size=4, max_size=12)


@given(secrets=st.lists(printable | tricky, min_size=1, max_size=4), pieces=st.lists(texts | tricky, max_size=6))
def test_what_was_resolved_never_appears_in_masked_text(secrets: list[str], pieces: list[str]) -> None:
    environ = {f"SECRET_{index}": secret for index, secret in enumerate(secrets)}
    assume(all(secret.strip("*") for secret in secrets))  # asterisks are refused, see below
    resolved = [resolve(f"${name}", environ) for name in environ]
    text = "".join(piece + secret for piece, secret in zip([*pieces, *[""] * len(resolved)], resolved, strict=False))
    for written in (text, json.dumps(text), repr(text), quote(text), shlex.quote(text)):
        masked = mask(written, resolved)
        for secret in resolved:
            for form in (secret, json.dumps(secret)[1:-1], quote(secret, safe="")):
                assert form not in masked


@given(texts, st.lists(tricky, max_size=3))
def test_masking_masked_text_changes_nothing(text: str, secrets: list[str]) -> None:
    once = mask(text + "".join(secrets), secrets)
    assert mask(once, secrets) == once


@pytest.mark.parametrize(
    ("text", "secrets", "expected"),
    [
        ("token hf_abcdef used", ["hf_abcdef"], f"token {MASK} used"),
        ("nothing here", ["hf_abcdef"], "nothing here"),
        ("longest first: abcdef", ["abcd", "abcdef"], f"longest first: {MASK}"),
        ("url %70%40ss and p%40ss%2Fw", ["p@ss/w"], f"url %70%40ss and {MASK}"),
        ('json "a\\"b\\nc"', ['a"b\nc'], f'json "{MASK}"'),
        ("one line of it: line two.", ["line one\nline two"], f"one line of it: {MASK}."),
        ("postgresql://me:hunter2@db:5432/x", [], "postgresql://me:***@db:5432/x"),
        ("postgresql+psycopg://me:a/b:c@db/x is down", [], "postgresql+psycopg://me:***@db/x is down"),
        (
            "postgresql://db/x?user=me&password=hunter2&sslmode=require",
            [],
            "postgresql://db/x?user=me&password=***&sslmode=require",
        ),
        ("http://127.0.0.1:30000/health of me@host", [], "http://127.0.0.1:30000/health of me@host"),
        ("ssh://me@host:22 and sqlite:///studies/tuner.db", [], "ssh://me@host:22 and sqlite:///studies/tuner.db"),
        ("****", ["****"], "****"),
        ("port 30000", ["300"], "port 30000"),
    ],
)
def test_mask(text: str, secrets: list[str], expected: str) -> None:
    assert mask(text, secrets) == expected


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("$HF_TOKEN", "HF_TOKEN"),
        ("$_x1", "_x1"),
        ("$HF-TOKEN", None),
        ("a$HF_TOKEN", None),
        ("$", None),
        (8, None),
        (None, None),
        ("$é", None),
    ],
)
def test_only_a_whole_value_is_a_reference(value: str | int | None, name: str | None) -> None:
    assert reference(value) == name


def test_a_value_that_is_no_reference_is_left_as_it_is() -> None:
    assert resolve("plain", {}) == "plain"
    assert resolve(8, {}) == 8
    assert resolve(None, {}) is None


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({}, "HF_TOKEN is not set, and the study refers to it as $HF_TOKEN. Type: export HF_TOKEN=VALUE"),
        ({"HF_TOKEN": ""}, "HF_TOKEN is empty"),
        ({"HF_TOKEN": "abc"}, "HF_TOKEN holds a value that cannot be kept secret"),
        ({"HF_TOKEN": "******"}, "HF_TOKEN holds a value that cannot be kept secret"),
    ],
)
def test_what_cannot_be_resolved_says_what_to_export(environ: dict[str, str], says: str) -> None:
    with pytest.raises(InputError) as caught:
        resolve("$HF_TOKEN", environ)
    assert says in str(caught.value)
    assert not environ.get("HF_TOKEN") or environ["HF_TOKEN"] not in str(caught.value)


def test_a_launch_is_resolved_whole_and_keeps_its_order_and_types() -> None:
    launch = resolve_launch(LAUNCH, ENVIRON)
    assert launch.args == (("api-key", "k'e y\n"), ("tp-size", 8), ("trust-remote-code", True))
    assert launch.env == (("HF_TOKEN", "hf_0123456789"), ("NCCL_DEBUG", "INFO"))
    assert launch.command == LAUNCH.command


def test_all_variables_that_are_missing_are_named_at_once() -> None:
    with pytest.raises(InputError) as caught:
        resolve_launch(LAUNCH, {})
    assert len(caught.value.problems) == 2
    assert "HF_TOKEN" in str(caught.value) and "TUNER_API_KEY" in str(caught.value)


def test_references_of_a_study() -> None:
    assert references(SPEC) == ("HF_TOKEN", "TUNER_API_KEY")
    assert references(replace(SPEC, engine=EngineSpec("sglang", LaunchBase(("x",))))) == ()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://me:$PGPASSWORD@db/x", "postgresql://me:p%40ss%2Fw%3Ard@db/x"),
        ("postgresql://db/x?user=me&password=$PGPASSWORD", "postgresql://db/x?user=me&password=p%40ss%2Fw%3Ard"),
        ("postgresql://me:literal@db/x", "postgresql://me:literal@db/x"),
        ("sqlite:///studies/$PGPASSWORD.db", "sqlite:///studies/$PGPASSWORD.db"),
    ],
)
def test_a_storage_url_gets_its_password_encoded(url: str, expected: str) -> None:
    assert resolve_url(url, ENVIRON) == expected


def test_a_storage_url_without_its_variable_is_refused() -> None:
    with pytest.raises(InputError, match="export PGPASSWORD"):
        resolve_url("postgresql://me:$PGPASSWORD@db/x", {})


@pytest.mark.parametrize("url", ["postgresql://me:$PGPASSWORD@db/x", "postgresql://me:p%40ss%2Fw%3Ard@db/x"])
def test_all_that_must_be_hidden(url: str) -> None:
    secrets = secret_values(SPEC, ENVIRON, url)
    assert set(secrets) == set(ENVIRON.values())
    shown = mask(f"{resolve_url(url, ENVIRON)} {ENVIRON}", secrets)
    assert not any(value in shown for value in ENVIRON.values())


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "api-key",
        "OPENAI_API_KEY",
        "apikey",
        "ssl-keyfile-password",
        "AWS_SECRET_ACCESS_KEY",
        "MY.SECRET",
        "GITHUB_TOKEN_RO",
    ],
)
def test_names_that_look_secret(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "max-total-tokens",
        "tokenizer-path",
        "speculative-num-draft-tokens",
        "speculative-token-map",
        "ssl-keyfile",
        "NCCL_IB_PKEY",
        "AWS_ACCESS_KEY_ID",
        "tp-size",
        "monkey",
    ],
)
def test_names_that_do_not(name: str) -> None:
    assert not looks_secret(name)
