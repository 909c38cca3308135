"""What the contract tests share: where an engine is launched, and which of the two it is."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from contract_bench import Bench, Launched

# The real sshd of the host's tests.
sys.path.append(str(Path(__file__).resolve().parent.parent / "host"))
pytest.register_assert_rewrite("contract_engine", "contract_host_steps")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real_engine: against a real SGLang, which scripts/real-engine installs")


@pytest_asyncio.fixture(scope="class", loop_scope="class")
async def served(bench: Bench) -> AsyncIterator[Launched]:
    """One server that most tests of a class share."""
    from contract_bench import SETTINGS

    async with bench.serving(SETTINGS) as launched:
        yield launched
