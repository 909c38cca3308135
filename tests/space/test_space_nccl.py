"""The shipped space: what it offers on the hosts that the facts tell of."""

from __future__ import annotations

import optuna
import pytest

from tuner.engines.sglang import SGLang
from tuner.shipped import shipped_file, shipped_names
from tuner.space.load import load_space
from tuner.values.configuration import Configuration
from tuner.values.host import Gpu, HostFacts
from tuner.values.launch import LaunchBase

PATH = shipped_file("search_spaces", "nccl.yaml")
SPACE = load_space(PATH.read_text(), "nccl.yaml")


def host(engine: str | None, nccl: str | None, gpus: int = 8) -> HostFacts:
    return HostFacts(
        name="a",
        hostname="a",
        boot_id="b",
        kernel="k",
        cpus=2,
        driver_version="580",
        gpus=tuple(Gpu(i, f"GPU-{i}", "RTX", 1, 0) for i in range(gpus)),
        links="",
        engine="sglang",
        engine_version=engine,
        nccl_version=nccl,
    )


@pytest.mark.parametrize("name", shipped_names("search_spaces"))
def test_every_shipped_space_loads_and_sets_tunable_names_only(name: str) -> None:
    space = load_space(shipped_file("search_spaces", name).read_text(), name)
    assert SGLang().problems(space.env_names, space.arg_names, ()) == ()
    assert space.why
    assert all(p.why for p in space.parameters)
    assert all(rule.why for rule in space.rules)


def test_it_holds_what_studies_ask_for() -> None:
    assert set(SPACE.env_names) >= {
        "NCCL_ALGO",
        "NCCL_PROTO",
        "NCCL_MIN_NCHANNELS",
        "NCCL_MAX_NCHANNELS",
        "NCCL_BUFFSIZE",
        "NCCL_NTHREADS",
        "NCCL_P2P_LEVEL",
        "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",
    }
    assert SPACE.arg_names == ("num-continuous-decode-steps",)
    assert all(p.default is None for p in SPACE.parameters)


@pytest.mark.parametrize(
    ("nccl", "tree"), [("2.23.4", "Tree"), ("2.24.3", "allreduce:tree"), ("2.28.9", "allreduce:tree"), (None, None)]
)
def test_tree_is_spelt_as_the_nccl_of_the_host_takes_it(nccl: str | None, tree: str | None) -> None:
    offered = SPACE.offered(host("0.5.17", nccl))
    algorithms = next(p for p in offered.parameters if p.name == "NCCL_ALGO")
    assert algorithms.words == "unset, Ring" + (f", {tree}" if tree else "")
    assert {dict(f.values)["NCCL_ALGO"] for f in offered.first} == ({None, tree} if tree else {None})


def test_what_every_study_starts_with() -> None:
    offered = SPACE.offered(host("0.5.17", "2.28.9"))
    tree, few, small = ("NCCL_ALGO", "allreduce:tree"), ("NCCL_MAX_NCHANNELS", 2), ("NCCL_BUFFSIZE", 1048576)
    assert [offered.configuration(f.values) for f in offered.first] == [
        Configuration.of(),
        Configuration.of({"NCCL_PROTO": "LL"}),
        Configuration.of(dict([tree])),
        Configuration.of(dict([few])),
        Configuration.of(dict([small])),
        Configuration.of(dict([tree, few])),
        Configuration.of(dict([few, small])),
        Configuration.of(dict([tree, few, small])),
    ]
    assert len(offered.first_dropped) == len(SPACE.try_first) - len(offered.first)


def test_nccl_is_left_alone_where_sglangs_own_all_reduce_takes_over() -> None:
    offered = SPACE.offered(host("0.5.21", "2.28.9"))
    ipc = offered.complete({"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": 1})
    assert list(offered.parameters_for(ipc)) == ["SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "num-continuous-decode-steps"]
    assert offered.first[-1].values == ipc
    assert "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE" not in [
        p.name for p in SPACE.offered(host("0.5.20", "2.28.9")).parameters
    ]


@pytest.mark.parametrize(("engine", "nccl"), [("0.5.9", "2.27.5"), ("0.5.17", "2.28.9"), ("0.5.23", "2.30.7")])
def test_the_engine_refuses_nothing_that_meets_the_rules(engine: str, nccl: str) -> None:
    facts = host(engine, nccl)
    offered = SPACE.offered(facts)
    base = LaunchBase(command=("python3", "-m", "sglang.launch_server"))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    assignments = [dict(f.values) for f in offered.first] + [offered.suggest(study.ask()) for _ in range(100)]
    kept = [a for a in assignments if not offered.broken_rules(a)]
    assert len(kept) > 50
    for values in kept:
        assert SGLang().refused(offered.configuration(values), facts, base) == ()
