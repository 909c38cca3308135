"""What a driver that died left in the database, settled before anything else happens."""

from __future__ import annotations

from tuner.load.metrics import measurement
from tuner.store.rows import StoredLaunch, StoredStudy
from tuner.store.store import Store
from tuner.study.canaries import outputs_right
from tuner.values.launch import Phase


def settle(store: Store, study: StoredStudy) -> tuple[str, ...]:
    """Closes launches that were under way: measured if all their windows are stored and their outputs were right.

    Others are interrupted, and made again.

    Returns:
        A sentence for each, for the person who resumes.
    """
    sentences = []
    for launch in store.open_launches(study.id):
        windows = store.windows(launch.id)
        wanted = study.spec.workload.windows
        measured = sum(not window.invalid for window in windows) >= wanted and _reached(store, launch, Phase.STOP)
        if measured and outputs_right(store, launch.id):
            store.end_launch(launch.id, measurement=measurement(windows, None))
            sentences.append(f"launch {launch.nonce[:8]} ({launch.configuration}) was measured: kept")
        else:
            store.mark_interrupted(launch.id, "the driver ended while this launch was under way")
            sentences.append(f"launch {launch.nonce[:8]} ({launch.configuration}) was under way: it is made again")
    return tuple(sentences)


def unproven(store: Store, study: StoredStudy, host: str) -> tuple[str, ...]:
    """Nonces of the launches on a host whose end was never seen: what may still run there is ours to stop."""
    return tuple(
        launch.nonce
        for launch in store.launches(study.id)
        if launch.host == host and not any("gone" in phase.evidence for phase in store.phases(launch.id))
    )


def _reached(store: Store, launch: StoredLaunch, phase: Phase) -> bool:
    return any(row.phase == phase.value for row in store.phases(launch.id))
