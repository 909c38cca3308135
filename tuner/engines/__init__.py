"""The rules of each inference engine: a file of its own, plain data and pure functions.

To add one, copy `tuner.engines.sglang`, keep what `tuner.ports.Engine` asks for, and name it in `engine`.
"""

from __future__ import annotations

from tuner.engines.sglang import SGLang
from tuner.errors import InputError
from tuner.ports import Engine

_ENGINES: tuple[Engine, ...] = (SGLang(),)


def engine(name: str) -> Engine:
    """The adapter of that name.

    Raises:
        InputError: there is none.
    """
    for adapter in _ENGINES:
        if adapter.name == name:
            return adapter
    known = ", ".join(adapter.name for adapter in _ENGINES)
    raise InputError(f"engine: name: {name!r} is not an engine that this tuner knows. Write one of: {known}.")
