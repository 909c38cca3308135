"""Fixtures of the simulated host's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from simulated_server import Host, StandIn, make_host


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A host of its own."""
    made = make_host(tmp_path / "host")
    yield made
    made.end()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    """A server that the tests of a module share, with metrics."""
    made = make_host(tmp_path_factory.mktemp("shared") / "host")
    yield made.start("--enable-metrics", SPT_NOENV="1").ready()
    made.end()
