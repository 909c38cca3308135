"""A driver that ends itself with SIGKILL at a given step: ``python killed_driver.py URL STEP NTH``.

STEP is a step of `SurfaceHost`, or ``ask``, ``begin``, ``end`` or ``tell``: just after that call returned.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from typing import Any

from study_double import Bench, spec

from tuner.search.search import Search
from tuner.store.store import Store


def main(url: str, step: str, nth: int) -> None:
    calls: Counter[str] = Counter()

    def die(name: str) -> None:
        calls[name] += 1
        if name == step and calls[name] == nth:
            os.kill(os.getpid(), signal.SIGKILL)

    def after(owner: type, method: str, name: str) -> None:
        real = getattr(owner, method)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            die(name)
            return result

        setattr(owner, method, wrapped)

    after(Search, "ask", "ask")
    after(Search, "tell", "tell")
    after(Store, "begin_launch", "begin")
    after(Store, "end_launch", "end")
    asyncio.run(Bench(url, spec(), before=lambda _, name: die(name)).run())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
