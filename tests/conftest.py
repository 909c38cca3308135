"""What all tests share: on a machine that must have a program, a test skipped for the want of it is a failure.

`.ci/run` sets these variables after it has installed the programs. Elsewhere such tests are skipped, with a reason that
names the program and how to get it.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

REQUIRED_BY = {"TUNER_REQUIRE_SSHD": "sshd", "TUNER_REQUIRE_POSTGRES": "postgres"}
"""Environment variable → the word in a skip's reason that it forbids."""


def _forbidden(reason: str) -> str | None:
    for variable, program in REQUIRED_BY.items():
        if os.environ.get(variable, "") not in ("", "0") and program in reason.lower():
            return f"skipped although {variable} is set: {reason}"
    return None


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    longrepr = report.longrepr
    return longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns a forbidden skip of a test into a failure."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and (message := _forbidden(_reason(report))):
        report.outcome = "failed"
        report.longrepr = message
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turns a forbidden skip of a whole module into a failure."""
    report = yield
    if report.skipped and (message := _forbidden(_reason(report))):
        report.outcome = "failed"
        report.longrepr = message
    return report
