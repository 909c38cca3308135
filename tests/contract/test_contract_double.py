"""The shipped double keeps the contract of a host's steps."""

from __future__ import annotations

import pytest
from contract_host_steps import HostStepsContract

from tuner.ports import HostSteps
from tuner.testing import SurfaceHost
from tuner.values.failure import Failure, FailureClass
from tuner.values.launch import LaunchCommand, Phase


def surface(command: LaunchCommand) -> float | Failure:
    """100 tok/s, and what NCCL refuses."""
    if dict(command.env).get("NCCL_ALGO") == "Tree":
        return Failure(FailureClass.NCCL_REFUSED, Phase.READY.value, "no algorithm/protocol available")
    return 100.0


@pytest.fixture(scope="class")
def steps() -> HostSteps:
    return SurfaceHost(surface)


class TestSurfaceHost(HostStepsContract):
    """The contract."""
