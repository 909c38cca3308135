"""``python -m tuner.study``."""

from __future__ import annotations

import sys

from tuner.study.cli import main

if __name__ == "__main__":
    sys.exit(main())
