"""The constants in the package are those that the fit prints for the measurements beside this file."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.simulated.link_costs import H200X2_SHM
from tuner.simulated.nccl_truth import PairCost

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"


def test_constants_are_those_of_the_fit() -> None:
    files = [DATA / "h200x2_allreduce.jsonl", DATA / "h200x2_server.jsonl"]
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/fit_simulator.py", *files],
        capture_output=True, text=True, check=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    found = re.findall(r'\("(\w+)", "(\w+)"\): PairCost\(([^)]*)\)', done.stdout)
    printed = {(a, p): PairCost(*(float(value) for value in values.split(", "))) for a, p, values in found}
    assert printed.keys() == H200X2_SHM.pairs.keys()
    for pair, fitted in printed.items():
        used = H200X2_SHM.pairs[pair]
        for name in PairCost.__dataclass_fields__:
            assert getattr(used, name) == pytest.approx(getattr(fitted, name), rel=0.02, abs=1e-12), (pair, name)
    held_out = next(line for line in done.stdout.splitlines() if line.startswith("held out"))
    assert "n=180" in held_out
    assert float(held_out.split("median ")[1].split(",")[0]) < 0.05
    assert float(held_out.split("percentile ")[1].split(",")[0]) < 0.15
