"""One driver runs a study at a time: its lease in the database, renewed while it works."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tuner.errors import StoreError
from tuner.store.lease import Holder
from tuner.store.rows import StoredStudy
from tuner.store.store import Store
from tuner.study.progress import Progress

LEASE_S = 30.0
"""How long a driver may give no sign of life before another machine's may take its study over."""


@contextlib.asynccontextmanager
async def holding(store: Store, study: StoredStudy, progress: Progress) -> AsyncIterator[None]:
    """Holds a study while the block runs. Taken over by another driver, the block is cancelled.

    Raises:
        StudyHeld: another driver runs the study.
        StoreError: another driver has taken it over.
    """
    holder = Holder.of_this_process()
    store.claim(study.id, holder, LEASE_S)
    task = asyncio.current_task()
    taken = False

    async def renew() -> None:
        nonlocal taken
        while True:
            await asyncio.sleep(LEASE_S / 3)
            with contextlib.suppress(StoreError):  # a database away for a moment; the next try, or a launch, tells
                if not await asyncio.to_thread(store.renew, study.id, holder, LEASE_S):
                    taken = True
                    progress.say("Another driver has taken this study over: this one stops its servers and ends.")
                    if task is not None:
                        task.cancel()
                    return

    renewal = asyncio.ensure_future(renew())
    try:
        yield
    except asyncio.CancelledError:
        if taken:
            raise StoreError(
                f"study {study.name} was taken over by another driver while this one gave no sign of life for "
                f"{LEASE_S:g} s. Nothing is lost; let that one finish."
            ) from None
        raise
    finally:
        renewal.cancel()
        await asyncio.wait([renewal])
        with contextlib.suppress(StoreError):
            store.release(study.id, holder)
