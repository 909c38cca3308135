"""optuna-dashboard, started as a user starts it, shows the study with names, reasons and the metric's unit."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from search_samples import THROUGHPUT, space, speed

from tuner.search import Search
from tuner.store import Store

NAME = "kimi/1-baseline"


@contextmanager
def dashboard(url: str) -> Iterator[str]:
    """A dashboard on a free loopback port; the address of its API."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = Path(sys.executable).with_name("optuna-dashboard")
    process = subprocess.Popen(
        [program, url, "--host", "127.0.0.1", "--port", str(port), "--server", "wsgiref", "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    address = f"http://127.0.0.1:{port}/api"
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                get(f"{address}/meta")
                break
            except (urllib.error.URLError, ConnectionError):
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    raise AssertionError(process.communicate()[0]) from None
                time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.communicate(timeout=10)


def get(address: str) -> Any:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(address, timeout=10) as answer:
        return json.load(answer)


def test_the_dashboard_shows_the_study(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/tuner.db")
    search = Search.open(store.secret_url, NAME, space=space(), objective=THROUGHPUT, seed=1)
    name = THROUGHPUT.constraints[0]
    for failure in ("", "out of memory while loading", "NCCL refused the configuration", ""):
        proposal = search.ask()
        value = None if failure else speed(proposal.values)
        attributes = {"failure": failure, "evidence": "CUDA out of memory" + "!" * 3000} if failure else {}
        constraints = {"rules": 0.0, "launch": float(bool(failure)), name: 1.5 if proposal.number == 3 else -2.0}
        search.tell(proposal.number, value=value, constraints=constraints, attributes=attributes)
    search.note("# Verdict\nTrial 0, **simulated**.")
    search.close()

    with dashboard(store.url) as address:
        studies = get(f"{address}/studies")["study_summaries"]
        assert [study["study_name"] for study in studies] == [NAME]
        detail = get(f"{address}/studies/{studies[0]['study_id']}")
    store.close()
    assert detail["objective_names"] == ["output_tok_s (tok/s)"] and detail["directions"] == ["maximize"]
    assert detail["note"]["body"] == "# Verdict\nTrial 0, **simulated**."
    shown = [{a["key"]: str(a["value"]) for a in trial["user_attrs"]} for trial in detail["trials"]]
    assert [trial["state"] for trial in detail["trials"]] == ["Complete"] * 4
    assert [a.get("failure") for a in shown] == [
        None,
        "out of memory while loading",
        "NCCL refused the configuration",
        None,
    ]
    assert [a["feasible"] for a in shown] == ["yes", "no", "no", "no"]
    assert shown[0]["try first"] == "default"
    assert shown[0]["configuration"] == "--mem-fraction-static 0.88"
    assert shown[1]["constraint launch"] == "violated by 1"
    assert shown[3][f"constraint {name}"] == "violated by 1.5"
    assert all(len(text) <= 1000 for a in shown for text in a.values())
