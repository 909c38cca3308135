"""Configurations on which no launch must be spent, and those on which one may."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.engines import engine, nccl
from tuner.values.configuration import Configuration, Scalar
from tuner.values.host import Gpu, HostFacts
from tuner.values.launch import LaunchBase

SGLANG = engine("sglang")

GPUS = tuple(Gpu(i, f"GPU-{i}", "RTX PRO 6000", 96 << 30, 0) for i in range(8))
FACTS = HostFacts("box", "box", "b", "6.8", 64, "580.0", GPUS, "", "sglang", "0.5.17", "2.28.9")
BASE = LaunchBase(
    command=("python3", "-m", "sglang.launch_server"),
    args=(
        ("model-path", "/models/kimi-k2.5"),
        ("tp-size", 8),
        ("num-continuous-decode-steps", 4),
        ("disable-custom-all-reduce", True),
        ("mem-fraction-static", 0.88),
        ("trust-remote-code", True),
    ),
)


def refused(
    env: dict[str, Scalar] | None = None,
    args: dict[str, Scalar] | None = None,
    *,
    base: LaunchBase = BASE,
    sglang: str | None = "0.5.17",
    library: str | None = "2.28.9",
    gpus: tuple[Gpu, ...] = GPUS,
) -> str:
    facts = replace(FACTS, engine_version=sglang, nccl_version=library, gpus=gpus)
    return "\n".join(SGLANG.refused(Configuration.of(env, args), facts, base))


def test_the_control_of_the_motivating_case_is_launched() -> None:
    assert refused() == ""


class TestNccl:
    # Tree was measured to fail, allreduce:tree to work, with NCCL 2.28.9 under SGLang 0.5.17; the others are read.
    @pytest.mark.parametrize(
        "value", ["Tree", "tree", "Tree,NVLSTree", "CollNetChain", "NVLS", "^Ring", "ring;allgather:tree"]
    )
    def test_an_algorithm_that_leaves_a_collective_without_one(self, value: str) -> None:
        assert "no algorithm/protocol available" in refused({"NCCL_ALGO": value})

    def test_the_remedy_is_the_spelling_that_works(self) -> None:
        assert "allreduce:tree" in refused({"NCCL_ALGO": "Tree"})

    @pytest.mark.parametrize(
        "value", ["Ring", "ring,tree", "Ring,Tree", "allreduce:tree", "ring;allreduce:tree", "^tree", "AllReduce:^Ring"]
    )
    def test_an_algorithm_that_works(self, value: str) -> None:
        assert refused({"NCCL_ALGO": value}) == ""

    def test_old_nccl_falls_back_to_ring_by_itself(self) -> None:
        assert refused({"NCCL_ALGO": "Tree"}, library="2.23.4") == ""
        assert "NCCL 2.24" in refused({"NCCL_ALGO": "allreduce:tree"}, library="2.23.4")

    def test_with_an_unknown_nccl_the_launch_itself_will_tell(self) -> None:
        assert refused({"NCCL_ALGO": "Tree"}, library=None) == ""

    @pytest.mark.parametrize(
        "value",
        ["", "Trees", "ring;tree", "allreduce=tree", "all:tree", "ring, tree", "allreduce:", "a:b:c", ";ring", "LL"],
    )
    def test_an_algorithm_that_nccl_cannot_read(self, value: str) -> None:
        assert "NCCL_ALGO" in refused({"NCCL_ALGO": value})

    @pytest.mark.parametrize(("value", "good"), [("LL", True), ("LL,Simple", True), ("^LL128", True), ("ll256", False),
                                                 ("^LL,LL128,Simple", False), ("allreduce:LL128", True)])  # fmt: skip
    def test_a_protocol(self, value: str, good: bool) -> None:
        assert (refused({"NCCL_PROTO": value}) == "") == good

    @pytest.mark.parametrize(
        ("value", "good"), [("SYS", True), ("sys", False), ("Phb", False), ("3", True), ("9", False)]
    )
    def test_a_p2p_level_that_nccl_would_ignore_without_a_word(self, value: str, good: bool) -> None:
        message = refused({"NCCL_P2P_LEVEL": value})
        assert (message == "") == good
        if value == "sys":
            assert "Write SYS" in message

    @pytest.mark.parametrize(
        ("name", "value", "good"),
        [
            ("NCCL_NTHREADS", 256, True),
            ("NCCL_NTHREADS", 100, False),
            ("NCCL_NTHREADS", 32, False),
            ("NCCL_NTHREADS", 1024, False),
            ("NCCL_MAX_NCHANNELS", 0, False),
            ("NCCL_MAX_NCHANNELS", 64, True),
            ("NCCL_BUFFSIZE", "4M", False),
            ("NCCL_BUFFSIZE", 1048576, True),
            ("NCCL_BUFFSIZE", "0x100000", True),
            ("NCCL_BUFFSIZE", 1.5, False),
            ("NCCL_CUMEM_ENABLE", -2, True),
            ("NCCL_P2P_DISABLE", True, True),
            ("NCCL_P2P_DISABLE", "yes", False),
        ],
    )
    def test_a_number(self, name: str, value: Scalar, good: bool) -> None:
        assert (refused({name: value}) == "") == good

    @pytest.mark.parametrize("kind", ["NCHANNELS", "CTAS"])
    def test_a_least_above_the_most_also_across_base_and_configuration(self, kind: str) -> None:
        assert "above" in refused({f"NCCL_MIN_{kind}": 8, f"NCCL_MAX_{kind}": 4})
        assert refused({f"NCCL_MIN_{kind}": 4, f"NCCL_MAX_{kind}": 4}) == ""
        base = replace(BASE, env=((f"NCCL_MAX_{kind}", "2"),))
        assert "above" in refused({f"NCCL_MIN_{kind}": 8}, base=base)

    @given(st.text(st.sampled_from("ringteall,;:^duc "), max_size=16))
    def test_every_list_is_read_or_refused_with_a_reason(self, text: str) -> None:
        try:
            chosen = nccl.selected(text, ("tree", "ring"))
        except ValueError as error:
            assert str(error)
        else:
            assert all(names <= {"tree", "ring"} for names in chosen.values())
            assert not text.startswith(";")


class TestVersions:
    def test_a_flag_that_came_later(self) -> None:
        args: dict[str, Scalar] = {"cuda-graph-max-bs-decode": 8}
        assert refused(args=args) == ""
        message = refused(args=args, sglang="0.5.9")
        assert "bad flag" in message
        assert "Use --cuda-graph-max-bs." in message

    def test_a_flag_that_went(self) -> None:
        base = replace(BASE, args=(*BASE.args, ("cuda-graph-max-bs", 8)))
        assert refused(base=base, sglang="0.5.19") == ""
        assert "Use --cuda-graph-max-bs-decode." in refused(base=base, sglang="0.5.20")

    def test_a_flag_that_is_switched_off_is_not_there(self) -> None:
        assert refused(args={"pre-warm-nccl": False}, sglang="0.5.9") == ""
        assert "pre-warm-nccl" in refused(args={"pre-warm-nccl": True}, sglang="0.5.9")

    @pytest.mark.parametrize("version", [None, "0.0.0.dev1+g123", "not a version"])
    def test_an_unknown_version_refuses_nothing(self, version: str | None) -> None:
        assert refused(args={"cuda-graph-max-bs-decode": 8}, sglang=version) == ""

    def test_an_engine_without_a_readiness_endpoint(self) -> None:
        assert "/model_info" in refused(sglang="0.5.5")
        assert refused(sglang="0.5.6.post2") == ""


class TestPlacement:
    def test_more_gpus_than_there_are(self) -> None:
        assert "needs 8 GPUs, the host has 4" in refused(gpus=GPUS[:4])
        assert refused(args={"tp-size": 4}, gpus=GPUS[:4]) == ""
        assert refused(args={"tensor-parallel-size": 4}, gpus=GPUS[:4]) == "", "another name of the same argument"

    def test_data_parallel_groups_share_gpus_with_dp_attention_only(self) -> None:
        assert "needs 16" in refused(args={"dp-size": 2})
        assert refused(args={"dp-size": 2, "enable-dp-attention": True}) == ""

    def test_a_host_without_gpus_is_left_to_the_engine(self) -> None:
        assert refused(gpus=()) == ""

    def test_sizes_that_cannot_be(self) -> None:
        assert "mem-fraction" in refused(args={"mem-fraction-static": 1.0})
        assert "multiple" in refused(args={"chunked-prefill-size": 1000, "page-size": 64})
        assert refused(args={"chunked-prefill-size": -1, "page-size": 64}) == ""


class TestRewritten:
    def test_what_sglang_overwrites(self) -> None:
        assert "CUMEM" in refused({"NCCL_CUMEM_ENABLE": 0}, {"enable-symm-mem": True})
        assert refused({"NCCL_CUMEM_ENABLE": 1}, {"enable-symm-mem": True}) == ""
        assert "NVLS" in refused({"NCCL_NVLS_ENABLE": 0}, {"enable-nccl-nvls": True})
        deterministic = replace(BASE, args=(*BASE.args, ("enable-deterministic-inference", True)))
        assert "overwrites" in refused({"NCCL_ALGO": "Ring"}, base=deterministic)
        assert refused({"NCCL_ALGO": "allreduce:tree"}, base=deterministic) == ""


class TestForbid:
    @pytest.mark.parametrize(
        ("pattern", "hit"),
        [
            ("NCCL_P2P_LEVEL", True),
            ("NCCL_P2P_LEVEL=SYS", True),
            ("NCCL_P2P_LEVEL=S*", True),
            ("NCCL_P2P_LEVEL=P*", False),
            ("NCCL_P2P_LEVEL=?YS", False),
            ("NCCL_P2P", False),
            ("--trust-remote-code", True),
            ("--trust-remote-code=true", True),
            ("--trust-remote", False),
            ("--tensor-parallel-size=8", True),
            ("--tp-size=80", False),
        ],
    )
    def test_base_and_configuration_alike(self, pattern: str, hit: bool) -> None:
        base = replace(BASE, forbid=(pattern,))
        assert (pattern in refused({"NCCL_P2P_LEVEL": "SYS"}, base=base)) == hit
        below = replace(base, env=(("NCCL_P2P_LEVEL", "SYS"),))
        assert (pattern in refused(base=below)) == hit

    def test_the_reason_does_not_show_the_value(self) -> None:
        base = replace(BASE, env=(("HF_TOKEN", "hf_secret"),), forbid=("HF_TOKEN",))
        message = refused(base=base)
        assert "HF_TOKEN" in message
        assert "hf_secret" not in message


class TestSpeculation:
    GOOD: ClassVar[dict[str, Scalar]] = {
        "speculative-algorithm": "EAGLE3",
        "speculative-num-steps": 3,
        "speculative-eagle-topk": 1,
        "speculative-num-draft-tokens": 4,
    }

    def refused(
        self,
        changed: dict[str, Scalar] | None = None,
        *,
        sglang: str = "0.5.17",
        env: dict[str, Scalar] | None = None,
        **changes: Scalar,
    ) -> str:
        names = {"algorithm": "speculative-algorithm", "steps": "speculative-num-steps"}
        names |= {"topk": "speculative-eagle-topk", "tokens": "speculative-num-draft-tokens"}
        args = self.GOOD | {
            names.get(key, key.replace("_", "-")): value for key, value in {**(changed or {}), **changes}.items()
        }
        return refused(env, args, sglang=sglang)

    def test_what_was_measured_to_work(self) -> None:
        assert self.refused() == ""
        assert self.refused(topk=4, tokens=8) == ""
        assert self.refused(steps=None, topk=None, tokens=None) == "", "SGLang chooses all three"
        assert self.refused(algorithm="nextn") == ""

    def test_without_an_algorithm_the_numbers_mean_nothing(self) -> None:
        assert self.refused(algorithm=None, tokens=9) == ""

    @pytest.mark.parametrize("missing", ["steps", "topk", "tokens"])
    def test_all_three_or_none(self, missing: str) -> None:
        changes: dict[str, Scalar] = {missing: None}
        assert "all three or none" in self.refused(changes)

    def test_a_chain_has_a_token_more_than_steps(self) -> None:
        assert "Write 4" in self.refused(tokens=8)

    @pytest.mark.parametrize(("tokens", "good"), [(13, True), (14, False), (64, False)])
    def test_a_tree_carries_so_many_tokens(self, tokens: int, good: bool) -> None:
        assert (self.refused(topk=4, tokens=tokens) == "") == good

    @given(st.integers(1, 8), st.integers(2, 10), st.integers(1, 100))
    def test_no_tree_passes_that_would_fail_in_graph_capture(self, steps: int, topk: int, tokens: int) -> None:
        if self.refused(steps=steps, topk=topk, tokens=tokens) == "":
            assert tokens - 1 <= topk + (steps - 1) * topk**2

    def test_pages_need_a_backend_that_knows_trees(self) -> None:
        assert "attention backend" in self.refused(topk=4, tokens=8, page_size=64, attention_backend="flashmla")
        assert self.refused(topk=4, tokens=8, page_size=64, attention_backend="triton") == ""
        assert self.refused(topk=4, tokens=8, page_size=64, attention_backend="triton", sglang="0.5.9") != ""

    def test_the_other_rules(self) -> None:
        assert "unknown" in self.refused(algorithm="FOO")
        assert "at least 1" in self.refused(steps=0, tokens=1)
        assert "trtllm_mha" in self.refused(topk=2, tokens=4, attention_backend="trtllm_mha")
        assert "switches it off" in self.refused(enable_mixed_chunk=True)
        assert "stops" in self.refused(algorithm="NGRAM", steps=None, topk=None, enable_dp_attention=True)
        assert "rejection" in self.refused(topk=4, tokens=8, speculative_use_rejection_sampling=True)
        assert self.refused(speculative_use_rejection_sampling=True) == ""
        assert "adaptive" in self.refused(topk=4, tokens=8, speculative_adaptive=True)
        on: dict[str, Scalar] = {"SGLANG_ENABLE_SPEC_V2": 1}
        assert "topk 1 only" in self.refused(topk=4, tokens=8, sglang="0.5.9", env=on)
        assert self.refused(sglang="0.5.9", env=on) == ""


class TestLaunchOfTheStudyFile:
    @pytest.mark.parametrize("name", ["api-key", "ssl-certfile", "skip-tokenizer-init", "is-embedding"])
    def test_what_cannot_be_measured(self, name: str) -> None:
        base = replace(BASE, args=(*BASE.args, (name, True)))
        assert name in "\n".join(SGLANG.launch_problems(base))
        assert name in refused(base=base)

    def test_several_hosts(self) -> None:
        assert "nnodes" in "\n".join(SGLANG.launch_problems(replace(BASE, args=(("nnodes", 2),))))
        assert SGLANG.launch_problems(replace(BASE, args=(("nnodes", 1),))) == ()

    def test_arguments_hidden_in_the_command(self) -> None:
        hidden = replace(BASE, command=(*BASE.command, "--enable-metrics"))
        assert "Write it under `args:`" in "\n".join(SGLANG.launch_problems(hidden))
        bound = replace(BASE, command=("numactl", "--cpunodebind=0", *BASE.command))
        assert SGLANG.launch_problems(bound) == (), "another program's arguments are its own"

    def test_host_and_port_of_the_file_are_no_problem(self) -> None:
        assert SGLANG.launch_problems(replace(BASE, args=(("host", "0.0.0.0"), ("port", 8000)))) == ()

    def test_names_that_are_none(self) -> None:
        assert SGLANG.launch_problems(replace(BASE, args=(("host=0.0.0.0", True),))) != ()
        assert SGLANG.launch_problems(replace(BASE, env=(("A B", "1"),))) != ()
        assert SGLANG.launch_problems(replace(BASE, env=(("TUNER_NONCE", "1"),))) != ()


class TestInert:
    def inert(
        self,
        env: dict[str, Scalar],
        args: dict[str, Scalar] | None = None,
        base: LaunchBase | None = None,
        sglang: str | None = "0.5.17",
        library: str | None = "2.28.9",
    ) -> dict[str, str]:
        facts = replace(FACTS, engine_version=sglang, nccl_version=library)
        return SGLANG.inert(Configuration.of(env, args), facts, base)

    def test_the_argument_that_nothing_reads(self) -> None:
        found = self.inert({"NCCL_PROTO": "LL"}, {"num-continuous-decode-steps": 8})
        assert list(found) == ["num-continuous-decode-steps"]
        assert refused(args={"num-continuous-decode-steps": 8}) == "", "reported, not refused"

    def test_a_variable_that_nccl_gave_up(self) -> None:
        assert self.inert({"NCCL_SHM_USE_CUDA_MEMCPY": 1}) == {}
        assert "2.30" in self.inert({"NCCL_SHM_USE_CUDA_MEMCPY": 1}, library="2.30.7")["NCCL_SHM_USE_CUDA_MEMCPY"]

    def test_a_variable_of_another_sglang(self) -> None:
        assert "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE" in self.inert({"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": 1})
        assert self.inert({"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": 1}, sglang="0.5.21") == {}
        assert self.inert({"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": 1}, sglang=None) == {}

    def test_a_setting_of_what_is_switched_off_in_the_base(self) -> None:
        base = replace(BASE, env=(("NCCL_P2P_DISABLE", "1"),))
        assert list(self.inert({"NCCL_P2P_LEVEL": "SYS", "NCCL_PROTO": "LL"}, base=base)) == ["NCCL_P2P_LEVEL"]
        assert self.inert({"NCCL_P2P_LEVEL": "SYS"}) == {}

    def test_only_names_of_the_configuration_are_told(self) -> None:
        base = replace(BASE, env=(("NCCL_SHM_USE_CUDA_MEMCPY", "1"),))
        assert self.inert({"NCCL_PROTO": "LL"}, base=base, library="2.30.7") == {}
