"""A process of its own that uses the store: started by the tests, raced against another, or killed.

python store_process.py write URL STUDY      writes launches for ever; says what is stored once the call returned
python store_process.py race URL STUDY LIMIT waits for a line, then starts launches until the budget is spent
python store_process.py open URL             opens the database, which may be empty
python store_process.py hold URL STUDY       claims a study and says so, then lives until its input ends
python store_process.py claim URL STUDY ...  waits for a line, claims each study, says if it got it; lives like that
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from store_samples import CONFIGURATION, measured, window

from tuner.errors import BudgetSpent, StudyHeld
from tuner.store import Holder, LaunchJournal, Store, StoredLaunch
from tuner.values.launch import Phase, Role
from tuner.values.study import Budget

HERE = Path(__file__).parent


def process(*arguments: object) -> subprocess.Popen[str]:
    """One of these processes with our interpreter and modules."""
    path = os.pathsep.join([str(HERE.parents[1]), str(HERE)])
    return subprocess.Popen(
        [sys.executable, __file__, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


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


def claim(store: Store, study_ids: list[int], lease_s: float = 600.0) -> None:
    """Says ``got`` or ``held`` with the number of each study."""
    holder = Holder.of_this_process()
    for study_id in study_ids:
        try:
            store.claim(study_id, holder, lease_s)
        except StudyHeld:
            say("held", study_id)
        else:
            say("got", study_id)
    say("end")
    sys.stdin.read()


def main(action: str, url: str, *rest: str) -> None:
    store = Store.open(url)
    if action == "write":
        asyncio.run(write(store, int(rest[0])))
    elif action == "race":
        race(store, int(rest[0]), int(rest[1]))
    elif action == "hold":
        claim(store, [int(rest[0])])
    elif action == "claim":
        say("ready")
        sys.stdin.readline()
        claim(store, [int(number) for number in rest])
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
