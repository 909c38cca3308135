"""A whole study, as a person runs it, against a real SGLang on the CPU behind a real sshd.

Only under ``scripts/real-engine``; about ten launches of half a minute.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from host_helpers import MARK, marked
from sshd_server import MISSING, Sshd, find_sshd

FOLDER = os.environ.get("TUNER_REAL_ENGINE", "")
ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 1500

pytestmark = [
    pytest.mark.real_engine,
    pytest.mark.skipif(not FOLDER, reason="no real engine: scripts/real-engine installs one and runs this"),
    pytest.mark.timeout(LIMIT_S + 60),
]


def study(sshd: Sshd) -> dict[str, object]:
    """The study file: its launch is the one that `scripts/real-engine` installed."""
    launch = json.loads((Path(FOLDER) / "launch.json").read_text(encoding="utf-8"))
    host = {
        "name": "real",
        "hostname": "127.0.0.1",
        "port": sshd.port,
        "key_file": str(sshd.home / "user_key"),
        "known_hosts_file": str(sshd.known_hosts),
    }
    patience = {"start_deadline_s": 180, "no_progress_s": 120, "stop_grace_s": 60, "lease_s": 60}
    return {
        "name": "real-engine-cpu",
        "hosts": [host],
        "engine": {"name": "sglang", **launch, **patience},
        "workload": {"concurrency": 2, "output_tokens": 192, "windows": 3, "warm_up_windows": 1},
        "budget": {"launches": 10},
        "stages": [
            {"name": "cpu", "space": str(Path(__file__).with_name("real-space.yaml")), "confirmation_launches": 4}
        ],
    }


def test_a_study_ends_with_a_verdict_and_a_clean_process_table(tmp_path: Path) -> None:
    if find_sshd() is None:
        pytest.skip(MISSING)
    sshd = Sshd.make(tmp_path / "sshd")
    sshd.env[MARK] = secrets.token_hex(8)
    sshd.start()
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump(study(sshd), sort_keys=False), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "tuner.study", "--study", str(file)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    left = {pid: words for pid, words in marked(sshd.env[MARK]).items() if "tuner-agent" not in words}
    sshd.stop()
    print(ran.stdout)  # the report, for docs/results; pytest shows it with -s
    print(ran.stderr, file=sys.stderr)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"^Verdict: (faster|no significant difference|no effect)\.", ran.stdout, re.MULTILINE), ran.stdout
    assert not left, f"left behind: {left}"
