"""Shipped files are found from a checkout, and from a wheel that is installed somewhere else."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tuner.errors import InputError
from tuner.shipped import Kind, shipped_file, shipped_folder, shipped_names

ROOT = Path(__file__).resolve().parent.parent
KINDS: tuple[Kind, ...] = ("search_spaces", "objectives", "studies")


@pytest.mark.parametrize("name", ["throughput", "throughput.yaml"])
def test_a_name_is_enough_with_or_without_its_ending(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert shipped_file("objectives", name) == ROOT / "objectives" / "throughput.yaml"


def test_a_name_with_a_dot_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shipped_file("studies", "kimi-k2.5").name == "kimi-k2.5.yaml"


def test_a_file_that_exists_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("throughput.yaml").write_text("mine")
    assert shipped_file("objectives", "throughput.yaml").read_text() == "mine"
    assert shipped_file("objectives", "throughput").read_text() != "mine"
    assert shipped_file("objectives", str(tmp_path / "throughput.yaml")).read_text() == "mine"


def test_a_file_beside_the_one_that_names_it_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "throughput.yaml").write_text("beside")
    (tmp_path / "throughput.yaml").write_text("here")
    monkeypatch.chdir(tmp_path)
    assert shipped_file("objectives", "throughput.yaml", beside=beside).read_text() == "beside"
    (beside / "throughput.yaml").unlink()
    assert shipped_file("objectives", "throughput.yaml", beside=beside).read_text() == "here"


@pytest.mark.parametrize(
    ("kind", "name", "says"),
    [
        ("objectives", "througput", "objective 'througput': found no such file, looked for througput, /"),
        ("objectives", "througput", "did you mean 'throughput.yaml'?"),
        ("objectives", "througput", "shipped with the tuner: throughput.yaml; "),
        ("studies", "simulatd.yaml", "did you mean 'simulated.yaml'?"),
        ("studies", "", "study file '': found no such file"),
        ("studies", ".", "study file '.': found no such file"),
        ("search_spaces", "../objectives/throughput", "search space '../objectives/throughput': found no such file"),
        ("search_spaces", "/etc", "search space '/etc': found no such file"),
        ("search_spaces", "a\0b", "no such file"),
        ("search_spaces", "x" * 5000, "no such file"),
    ],
)
def test_what_is_not_found_is_said(
    kind: Kind, name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        shipped_file(kind, name)
    assert says in str(caught.value)


FROM_OUTSIDE = """
from pathlib import Path
import tuner
from tuner.documents.study_file import load_study
from tuner.shipped import shipped_file, shipped_names
print(Path(tuner.__file__).parent)
for kind in ("search_spaces", "objectives", "studies"):
    print(*shipped_names(kind))
for name in shipped_names("studies"):
    path = shipped_file("studies", name)
    print(load_study(path.read_text(encoding="utf-8"), path)[0].name)
"""


def test_a_wheel_brings_the_shipped_files_and_works_elsewhere(tmp_path: Path) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation"]
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", str(tmp_path), str(ROOT)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    assert {entry.name for entry in site.iterdir() if not entry.name.endswith(".dist-info")} == {"tuner"}

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ran = subprocess.run(
        [sys.executable, "-c", FROM_OUTSIDE],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    package, *names = ran.stdout.splitlines()
    assert package == str(site / "tuner")
    assert names[:3] == [" ".join(shipped_names(kind)) for kind in KINDS]
    assert names[3:] == [name.removesuffix(".yaml") for name in shipped_names("studies")]
    for kind in KINDS:
        for name in shipped_names(kind):
            copy = site / "tuner" / "shipped" / kind / name
            assert copy.read_bytes() == (shipped_folder(kind) / name).read_bytes()
