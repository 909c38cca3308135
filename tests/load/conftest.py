from __future__ import annotations

from collections.abc import Iterator

import pytest
from load_schedule import ScheduleServer


@pytest.fixture(scope="session")
def schedule_server() -> Iterator[ScheduleServer]:
    with ScheduleServer() as server:
        yield server


@pytest.fixture
def schedule(schedule_server: ScheduleServer) -> ScheduleServer:
    """The schedule server, with nothing in its log."""
    schedule_server.log()
    return schedule_server
