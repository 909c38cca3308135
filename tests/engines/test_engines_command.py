"""The command of a launch, and the line that a person pastes: what reaches the process is exactly what was meant."""

from __future__ import annotations

import argparse
import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tuner.engines import engine
from tuner.engines.command_line import arguments_in, shell_words
from tuner.errors import InputError
from tuner.values.configuration import Configuration, Scalar
from tuner.values.launch import LaunchBase

SGLANG = engine("sglang")
BASE = LaunchBase(
    command=("python3", "-m", "sglang.launch_server"),
    args=(("model-path", "/models/kimi k2.5"), ("tp-size", 8), ("trust-remote-code", True), ("stream-interval", 1)),
    env=(("HF_HUB_OFFLINE", "1"), ("NCCL_P2P_LEVEL", "PHB")),
)
PUBLIC = replace(BASE, args=(("host", "0.0.0.0"), ("port", 8000), *BASE.args, ("weight-version", "v7")))
OWN = ["--host", "127.0.0.1", "--port", "31000", "--weight-version", "n0nce"]


def argv(configuration: Configuration, base: LaunchBase = BASE) -> list[str]:
    return list(SGLANG.command(base, configuration, port=31000, nonce="n0nce").argv)


def environment(configuration: Configuration, base: LaunchBase = BASE) -> dict[str, str]:
    return dict(SGLANG.command(base, configuration, port=31000, nonce="n0nce").env)


def test_the_control_is_the_base_and_the_tuners_own() -> None:
    assert argv(Configuration()) == [
        *("python3", "-m", "sglang.launch_server", "--model-path", "/models/kimi k2.5", "--tp-size", "8"),
        *("--trust-remote-code", "--stream-interval", "1", *OWN),
    ]
    assert environment(Configuration()) == {
        "HF_HUB_OFFLINE": "1",
        "NCCL_P2P_LEVEL": "PHB",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING",
        "SPT_NOENV": "1",
        "TUNER_NONCE": "n0nce",
    }


def test_a_configuration_overrides_in_place_and_what_it_leaves_unset_stays() -> None:
    chosen = Configuration.of(
        env={"NCCL_P2P_LEVEL": "SYS", "NCCL_MAX_NCHANNELS": 2, "NCCL_CUMEM_ENABLE": True},
        args={"tensor-parallel-size": 4, "trust-remote-code": False, "chunked-prefill-size": -1, "page-size": 16},
    )
    assert argv(chosen)[3:-6] == [
        *("--model-path", "/models/kimi k2.5", "--tensor-parallel-size", "4", "--stream-interval", "1"),
        *("--chunked-prefill-size=-1", "--page-size", "16"),
    ]
    found = environment(chosen)
    assert (found["NCCL_P2P_LEVEL"], found["NCCL_MAX_NCHANNELS"], found["NCCL_CUMEM_ENABLE"]) == ("SYS", "2", "1")
    assert found["HF_HUB_OFFLINE"] == "1"


def test_lists_become_several_words() -> None:
    assert argv(Configuration.of(args={"cuda-graph-bs-decode": "1 2 4 8"}))[-11:-6] == [
        *("--cuda-graph-bs-decode", "1", "2", "4", "8")
    ]


def test_the_server_listens_on_the_loopback_whatever_the_file_says() -> None:
    assert argv(Configuration(), PUBLIC)[-6:] == OWN
    assert argv(Configuration(), PUBLIC).count("--host") == 1
    assert "0.0.0.0" not in argv(Configuration(), PUBLIC)
    abbreviated = replace(BASE, args=(("hos", "0.0.0.0"), ("por", 8000)))
    parser = argparse.ArgumentParser()
    for name in ("host", "port", "weight-version"):
        parser.add_argument(f"--{name}")
    parsed = parser.parse_args(argv(Configuration(), abbreviated)[3:])
    assert (parsed.host, parsed.port, parsed.weight_version) == ("127.0.0.1", "31000", "n0nce")


@pytest.mark.parametrize(
    "eager",
    [("disable-cuda-graph", True), ("disable-decode-cuda-graph", True), ("cuda-graph-backend-decode", "disabled")],
)
def test_without_cuda_graphs_nccl_does_not_log_each_collective(eager: tuple[str, Scalar]) -> None:
    assert environment(Configuration.of(args=dict([eager])))["NCCL_DEBUG_SUBSYS"] == "INIT,ENV"


def test_the_users_own_logging_is_left_alone() -> None:
    quiet = replace(BASE, env=(("NCCL_DEBUG", "WARN"),))
    found = environment(Configuration(), quiet)
    assert found["NCCL_DEBUG"] == "WARN"
    assert "NCCL_DEBUG_SUBSYS" not in found
    assert (
        environment(Configuration(), replace(BASE, env=(("NCCL_DEBUG_SUBSYS", "INIT"),)))["NCCL_DEBUG_SUBSYS"] == "INIT"
    )


@pytest.mark.parametrize(
    ("env", "args"),
    [
        ({"A=B": "1"}, {}),
        ({"A": "x\0y"}, {}),
        ({}, {"host=0.0.0.0": True}),
        ({}, {"tp-size": "4\0"}),
        ({}, {"cuda-graph-bs": "1 --trust-remote-code"}),
    ],
)
def test_what_no_process_can_be_given_as_it_is_meant(env: dict[str, Scalar], args: dict[str, Scalar]) -> None:
    with pytest.raises(InputError):
        argv(Configuration.of(env, args))


def test_the_line_to_paste_has_nothing_of_the_tuners_own() -> None:
    line = SGLANG.shell_line(PUBLIC, Configuration.of({"NCCL_ALGO": "ring;allreduce:tree"}, {"page-size": 16}))
    assert line == (
        "HF_HUB_OFFLINE=1 NCCL_P2P_LEVEL=PHB NCCL_ALGO='ring;allreduce:tree' python3 -m sglang.launch_server "
        "--host 0.0.0.0 --port 8000 --model-path '/models/kimi k2.5' --tp-size 8 --trust-remote-code "
        "--stream-interval 1 --weight-version v7 --page-size 16"
    )


def test_a_secret_stays_a_reference_in_the_line_and_a_strangers_one_is_text() -> None:
    base = replace(BASE, env=(("HF_TOKEN", "$HF_TOKEN"), ("PRICE", "$5")))
    line = SGLANG.shell_line(base, Configuration.of({"NCCL_ALGO": "$AWS_SECRET"}))
    assert line.startswith("HF_TOKEN=\"$HF_TOKEN\" PRICE='$5' NCCL_ALGO='$AWS_SECRET' python3")
    same = SGLANG.shell_line(base, Configuration.of({"NCCL_ALGO": "$HF_TOKEN"}))
    assert "NCCL_ALGO='$HF_TOKEN'" in same


DUMP = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open(os.environ['DUMP_TO'], 'w'))"
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
VALUES = st.one_of(
    TEXT, st.sampled_from(["$HOME", "`id`", "$(id)", "';id;'", "!!", "~", "*", "\n", "\\", "-x", "--y", ""])
)
ENV_NAMES = st.from_regex(r"X_[A-Za-z0-9_]{0,8}", fullmatch=True)
ARG_NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True).filter(lambda n: n not in ("host", "port"))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(env=st.dictionaries(ENV_NAMES, VALUES, max_size=4), args=st.dictionaries(ARG_NAMES, VALUES, max_size=4))
@example(env={"X_A": "a'b\"c\\ $HOME `x` \n\té"}, args={"a": "-1", "b": "--trust-remote-code", "c": "a b"})
def test_any_value_reaches_the_process_through_a_real_shell(
    env: dict[str, str], args: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "dump.json"
    base = LaunchBase(command=(sys.executable, "-I", "-X", "utf8", "-c", DUMP), env=(("DUMP_TO", str(out)),))
    configuration = Configuration.of(dict(env), dict(args))
    line = SGLANG.shell_line(base, configuration)
    subprocess.run(["/bin/sh", "-c", line], check=True, timeout=20, env={"PATH": "/usr/bin:/bin"})
    words, environ = json.loads(out.read_text())
    assert arguments_in(words) == {name: [value] for name, value in sorted(args.items())}
    assert {name: environ[name] for name in env} == env
    command = SGLANG.command(base, configuration, port=1, nonce="n")
    assert list(command.argv[len(base.command) : -6]) == words, "the shell line and the launch are the same command"


@given(VALUES)
def test_no_value_is_taken_for_a_flag(value: str) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--attention-backend")
    parser.add_argument("--disable-radix-cache", action="store_true")
    parser.add_argument("--trust-remote-code", action="store_true")
    for name in ("attention-backend", "disable-radix-cache"):
        for injected in (value, "--trust-remote-code", "--trust"):
            words = argv(Configuration.of(args={name: injected}), replace(BASE, args=()))[3:-6]
            try:
                parsed, _ = parser.parse_known_args(words)
            except (argparse.ArgumentError, SystemExit):
                continue
            assert not parsed.trust_remote_code


def test_a_command_word_that_a_shell_would_read_itself() -> None:
    for word in ("A=B", "if", "!", "{"):
        assert shell_words([], [word]) == f"'{word}'"
    with pytest.raises(ValueError, match="A B"):
        shell_words([("A B", "1")], ["x"])


def test_the_adapter_travels() -> None:
    assert pickle.loads(pickle.dumps(SGLANG)) == SGLANG
