"""Values for the store's tests."""

from __future__ import annotations

from dataclasses import replace

from tuner.values.configuration import Configuration
from tuner.values.host import Gpu, HostAddress, HostFacts
from tuner.values.launch import LaunchBase
from tuner.values.measurement import Measurement, RequestSample, TunnelLag, Window
from tuner.values.study import Budget, EngineSpec, HostSpec, StageSpec, StudySpec
from tuner.values.workload import Workload

CONFIGURATION = Configuration.of(
    env={"NCCL_ALGO": "allreduce:tree", "NCCL_BUFFSIZE": 1048576},
    args={"mem-fraction-static": 0.88, "enable-x": True},
)

SPEC = StudySpec(
    name="kimi",
    hosts=(HostSpec(HostAddress("gpu1", port=2222, user="me"), port=30000), HostSpec(HostAddress("sim"), "flat")),
    engine=EngineSpec(
        "sglang",
        LaunchBase(
            command=("python3", "-m", "sglang.launch_server"),
            args=(("tp-size", 8), ("trust-remote-code", True), ("mem-fraction-static", 0.88)),
            env=(("HF_TOKEN", "$HF_TOKEN"),),
        ),
    ),
    workload=Workload(concurrency=4),
    budget=Budget(launches=18, hours=2.5),
    stages=(
        StageSpec("baseline", "text: of the\nspace", "nccl.yaml", "metric: output_tok_s", "throughput.yaml", 6, 7),
    ),
)

FACTS = HostFacts(
    name="gpu1",
    hostname="node-17",
    boot_id="b0071d",
    kernel="6.8.0",
    cpus=64,
    driver_version="570.1",
    gpus=(Gpu(0, "GPU-1", "RTX PRO 6000", 96 * 2**30, 4 * 2**20),),
    links="GPU0 X PIX",
    engine="sglang",
    engine_version="0.5.17",
    nccl_version="2.28.9",
    real_launch_s=412.5,
)


def window(index: int = 0, tok_s: float = 40.125, error: str = "") -> Window:
    """A window of one stream that fills its times with numbers that decimal rounding would change."""
    request = RequestSample("p1", 0.1 + 0.2, 80, 2, 3, ((0.1, 1), (1 / 3, 2), (0.7, 3)), "length", error=error)
    return Window(index, 1.7e9 + 0.123456, 6.4, tok_s, (request,), 0.11, 0.002, ("late",) if index == 1 else ())


def measured(tok_s: float = 40.125) -> Measurement:
    """A measurement of two windows."""
    metrics = (("output_tok_s", tok_s), ("ttft_p50_s", 0.1 + 0.2))
    return Measurement((window(0, tok_s), window(1, tok_s)), metrics, TunnelLag(0.001, 0.005, 100))


def spec(name: str) -> StudySpec:
    """`SPEC` under another name."""
    return replace(SPEC, name=name)
