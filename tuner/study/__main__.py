"""``python -m tuner.study``."""

from __future__ import annotations

import sys

from tuner.study.options import parse


def main() -> int:
    """Reads the command line first: help and mistakes need none of the libraries."""
    options = parse()
    from tuner.study.cli import command

    return command(options)


if __name__ == "__main__":
    sys.exit(main())
