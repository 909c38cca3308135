"""A process of its own that uses the store: started by the tests, raced against another, or killed.

python store_process.py write URL STUDY      writes launches for ever; says what is stored once the call returned
python store_process.py race URL STUDY LIMIT waits for a line, then starts launches until the budget is spent
python store_process.py open URL             opens the database, which may be empty
"""

from __future__ import annotations

import asyncio
import sys

from store_samples import CONFIGURATION, measured, window

from tuner.errors import BudgetSpent
from tuner.store import LaunchJournal, Store, StoredLaunch
from tuner.values.launch import Phase, Role
from tuner.values.study import Budget


def say(*words: object) -> None:
    """One line at once: what it says is on disk."""
    print(*words, flush=True)


def start(store: Store, study_id: int, limit: int) -> StoredLaunch:
    return store.begin_launch(
        study_id,
        stage="baseline",
        host="gpu1",
        role=Role.SEARCH,
        configuration=CONFIGURATION,
        trial=0,
        budget=Budget(limit),
    )


async def write(store: Store, study_id: int) -> None:
    while True:
        launch = start(store, study_id, 10**6)
        say("launch", launch.id, launch.nonce)
        journal = LaunchJournal(store, launch)
        for phase in Phase:
            await journal.begin(phase)
            say("phase", launch.id, phase.name)
            await journal.record(seen=phase.value)
            say("evidence", launch.id, phase.name)
            if phase is Phase.MEASURE:
                await journal.window(window(0))
                say("window", launch.id, 0)
        store.end_launch(launch.id, measured())
        say("ended", launch.id)


def race(store: Store, study_id: int, limit: int) -> None:
    say("ready")
    sys.stdin.readline()
    while True:
        try:
            say(start(store, study_id, limit).nonce)
        except BudgetSpent:
            return


def main(action: str, url: str, *rest: str) -> None:
    store = Store.open(url)
    if action == "write":
        asyncio.run(write(store, int(rest[0])))
    elif action == "race":
        race(store, int(rest[0]), int(rest[1]))
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
