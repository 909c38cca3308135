"""What the README shows is run: its Python, its options, its files. The two long commands are run by `.ci/run`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_target_of_twenty_lines_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) <= 20
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("faster than the default: 1.625 ×")
    assert (tmp_path / "studies" / "tuner.db").exists()


def test_commands_for_your_own_host(tmp_path: Path) -> None:
    (block,) = re.findall(r"```sh\n(cp studies/.*?)```", README, re.DOTALL)
    copy, dry_run, _ = [line.partition("#")[0].strip() for line in block.splitlines()]
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "kimi-k2.5.yaml").write_text((ROOT / "studies" / "kimi-k2.5.yaml").read_text())
    commands = f"{copy} && {dry_run.replace('.venv/bin/python', sys.executable)}"
    result = subprocess.run(
        ["sh", "-ec", commands], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("sglang.launch_server") >= 7


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target


def test_the_two_marked_blocks_are_one_line_each() -> None:
    for mark in ("run", "test"):
        (block,) = re.findall(rf"<!-- {mark} -->\n```sh\n(.*?)```", README, re.DOTALL)
        assert len(block.strip().splitlines()) == 1
    assert os.access(ROOT / ".ci" / "run", os.R_OK)
