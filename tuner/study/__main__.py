"""``python -m tuner.study``."""

from __future__ import annotations

import sys

from tuner.study.options import EXIT_INTERRUPTED, parse


def main() -> int:
    """Reads the command line first: help and mistakes need none of the libraries."""
    options = parse()
    try:
        from tuner.study.cli import command

        return command(options)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
