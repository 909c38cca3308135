"""The streams of the command: results on stdout, everything else on stderr."""

from __future__ import annotations

import io
import sys

from rich.console import Console


def results_console() -> Console:
    """Where results go: stdout, wide where it is no terminal; nowhere if it was closed. No character is an error."""
    if sys.stdout is None:
        return Console(file=io.StringIO(), highlight=False, markup=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 160)
