"""Where a program must be there, a test that is skipped for the want of it has failed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).resolve().parent / "conftest.py"
SKIPS = {
    "test": "import pytest\ndef test_login():\n    pytest.skip('needs sshd: apt-get install openssh-server')\n",
    "mark": "import pytest\n@pytest.mark.skipif(True, reason='needs sshd')\ndef test_login(): pass\n",
    "module": "import pytest\npytest.skip('needs SSHD', allow_module_level=True)\n",
    "fixture": "import pytest\n@pytest.fixture\ndef server(): pytest.skip('no sshd')\ndef test_login(server): pass\n",
}
OTHERS = {
    "another_reason": "import pytest\ndef test_gpu():\n    pytest.skip('needs a GPU')\n",
    "expected_to_fail": "import pytest\n@pytest.mark.xfail(reason='sshd is slow', run=False)\ndef test_slow(): pass\n",
}


def pytest_on(sources: dict[str, str], folder: Path, **variables: str) -> tuple[int, str]:
    """Exit status and output of pytest on some test files under our conftest."""
    shutil.copy(CONFTEST, folder / "conftest.py")
    for name, source in sources.items():
        (folder / f"test_{name}.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TUNER_", "PYTEST_"))}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "."],
        cwd=folder,
        env=environ | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ran.returncode, ran.stdout


def test_a_skip_for_the_want_of_it_fails_where_it_is_required(tmp_path: Path) -> None:
    status, output = pytest_on(
        {**SKIPS, **OTHERS}, tmp_path, TUNER_REQUIRE_SSHD="1", PYTEST_ADDOPTS="--continue-on-collection-errors"
    )
    assert status != 0
    assert output.count("skipped although TUNER_REQUIRE_SSHD is set: ") >= len(SKIPS)
    assert "FAILED test_test.py" in output
    for name in ("mark", "module", "fixture"):  # skipped before the test began
        assert f"ERROR test_{name}.py" in output
    assert "1 failed, 1 skipped, 1 xfailed, 3 errors" in output


def test_elsewhere_it_is_a_skip(tmp_path: Path) -> None:
    status, output = pytest_on({**SKIPS, **OTHERS}, tmp_path, TUNER_REQUIRE_SSHD="0", TUNER_REQUIRE_POSTGRES="1")
    assert status == 0
    assert "5 skipped, 1 xfailed" in output
