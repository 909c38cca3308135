"""What a search space may set: names from a stranger's file against the engine's list."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tuner.engines import engine, nccl, sglang_tables
from tuner.errors import InputError

SGLANG = engine("sglang")
ARGS = sorted(sglang_tables.TUNABLE_ARGS)
ENV = sorted({*nccl.TUNABLE, *sglang_tables.TUNABLE_ENV})

DANGEROUS_ENV = [
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONSTARTUP", "PATH", "HOME", "BASH_ENV"),
    *("NCCL_TUNER_PLUGIN", "NCCL_NET_PLUGIN", "NCCL_PROFILER_PLUGIN", "SGLANG_NCCL_SO_PATH", "SGLANG_SIMULATE_ACC_LEN"),
    *("NCCL_TOPO_FILE", "NCCL_GRAPH_FILE", "NCCL_CONF_FILE", "NCCL_TUNER_CONFIG_FILE", "NCCL_DEBUG_FILE", "NCCL_DEBUG"),
    *("NCCL_SOCKET_IFNAME", "NCCL_GRAPH_MIXING_SUPPORT", "CUDA_DEVICE_MAX_CONNECTIONS"),
]
DANGEROUS_ARGS = [
    *("trust-remote-code", "load-format", "custom-weight-loader", "forward-hooks", "model-path", "tokenizer-path"),
    *("speculative-draft-model-path", "chat-template", "config", "json-model-override-args", "download-dir"),
    *("crash-dump-folder", "log-requests-target", "api-key", "nccl-port", "dist-init-addr"),
    "speculative-accept-threshold-single",
]


class Parser(argparse.ArgumentParser):
    """One that raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def test_every_listed_name_may_be_set() -> None:
    assert SGLANG.problems(ENV, ARGS, ()) == ()


def test_every_shipped_space_sets_only_what_it_may() -> None:
    files = sorted((Path(__file__).parents[2] / "search_spaces").glob("*.yaml"))
    assert files
    for file in files:
        space = yaml.safe_load(file.read_text(encoding="utf-8"))
        assert SGLANG.problems([*space.get("env", ())], [*space.get("args", ())], ()) == (), file.name


@pytest.mark.parametrize("name", DANGEROUS_ENV)
def test_a_dangerous_variable_needs_the_users_own_permission(name: str) -> None:
    (problem,) = SGLANG.problems([name], [], ())
    assert name in problem
    assert "allow:" in problem
    assert "not known" not in problem, "the reason is told, not only that it is not listed"
    assert SGLANG.problems([name], [], [name]) == ()


@pytest.mark.parametrize("name", DANGEROUS_ARGS)
def test_a_dangerous_argument_needs_the_users_own_permission(name: str) -> None:
    (problem,) = SGLANG.problems([], [name], ())
    assert name in problem
    assert "allow:" in problem
    assert SGLANG.problems([], [name], [f"--{name}"]) == ()
    assert SGLANG.problems([], [name], [name]) == ()


@pytest.mark.parametrize("name", ["host", "port", "weight-version", "hos", "weight-v", "p"])
def test_what_the_tuner_sets_itself_stays_refused_even_when_allowed(name: str) -> None:
    assert len(SGLANG.problems([], [name], [name, f"--{name}"])) == 1


@pytest.mark.parametrize("name", ["TUNER_NONCE", "SPT_NOENV"])
def test_the_tuners_own_variables_stay_refused_even_when_allowed(name: str) -> None:
    assert len(SGLANG.problems([name], [], [name])) == 1


@pytest.mark.parametrize(
    ("name", "meant"),
    [("NCCL_ALGOO", "NCCL_ALGO"), ("NCCL_MAX_NCHANNEL", "NCCL_MAX_NCHANNELS"), ("nccl_proto", "NCCL_PROTO")],
)
def test_a_misspelt_variable_is_told_the_nearest_name(name: str, meant: str) -> None:
    (problem,) = SGLANG.problems([name], [], ())
    assert f"Did you mean {meant}?" in problem


def test_permission_for_one_name_is_none_for_another() -> None:
    assert len(SGLANG.problems(["LD_PRELOAD"], ["trust-remote-code"], ["LD_*", "*", "trust-remote", "LD_PRELOA"])) == 2


@pytest.mark.parametrize("name", ["host=0.0.0.0", "tp-size 4", "--tp-size", "", "tp-size\n", "tp\0size"])
def test_what_is_no_name_is_refused_even_when_allowed(name: str) -> None:
    assert len(SGLANG.problems([], [name], [name])) == 1


@pytest.mark.parametrize("name", ["A=B", "1A", "A B", "", "NCCL_ALGO\n"])
def test_what_is_no_variable_is_refused_even_when_allowed(name: str) -> None:
    assert len(SGLANG.problems([name], [], [name])) == 1


NAMES = st.one_of(st.text(max_size=12), st.sampled_from([*ENV, *ARGS]).flatmap(lambda n: st.sampled_from([n, n[:-1]])))


@given(NAMES)
def test_no_name_outside_the_list_passes(name: str) -> None:
    assert (SGLANG.problems([name], [], ()) == ()) == (name in ENV)
    assert (SGLANG.problems([], [name], ()) == ()) == (name in ARGS)


@given(st.sampled_from([*ARGS, *DANGEROUS_ARGS, "host", "port"]), st.data())
def test_no_abbreviation_that_an_argument_parser_would_take_passes(name: str, data: st.DataObject) -> None:
    parser = Parser(add_help=False)
    for flag in (*ARGS, *DANGEROUS_ARGS, "host", "port"):
        parser.add_argument(f"--{flag}", action="store_true")
    short = name[: data.draw(st.integers(1, len(name)))]
    passes = SGLANG.problems([], [short], ()) == ()
    try:
        taken = [key.replace("_", "-") for key, on in vars(parser.parse_args([f"--{short}"])).items() if on]
    except ValueError:
        taken = []  # ambiguous
    # What passes means exactly itself to the parser, never a longer name.
    assert not passes or taken == [short]
    assert passes == (short in ARGS)


def test_an_unknown_engine_is_told_which_there_are() -> None:
    with pytest.raises(InputError, match="sglang"):
        engine("sglnag")
