"""A driver of its own, which dies at a given moment as if killed with -9.

    python search_process.py URL TOLD WHERE

It tells TOLD trials, printing each proposal, and dies with the next one: WHERE is one of `MOMENTS`.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import optuna
from search_samples import THROUGHPUT, space, speed, tell

from tuner.search import Search
from tuner.space.offered import OfferedSpace, SuggestTrial
from tuner.values.configuration import Scalar

NAME = "kimi/1-baseline"
SEED = 7
MOMENTS = (
    "in enqueue",
    "in ask",
    "before tell",
    "in tell, between constraints",
    "in tell, before the state",
    "after tell",
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(method: Callable[..., Any], calls: int) -> Callable[..., Any]:
    """The method, which does its work and dies at the end of a call."""
    left = [calls]

    @functools.wraps(method)
    def wrapper(*args: Any, **settings: Any) -> Any:
        result = method(*args, **settings)
        left[0] -= 1
        if left[0] == 0:
            die()
        return result

    return wrapper


class DyingSpace(OfferedSpace):
    """Dies once a trial has two of its parameters."""

    def suggest(self, trial: SuggestTrial) -> dict[str, Scalar]:
        if isinstance(trial, optuna.Trial):
            optuna.Trial.suggest_categorical = dying(optuna.Trial.suggest_categorical, 2)  # type: ignore[method-assign]
        return super().suggest(trial)


def main(url: str, told: int, where: str) -> None:
    if where == "in enqueue":
        optuna.Study.enqueue_trial = dying(optuna.Study.enqueue_trial, 2)  # type: ignore[method-assign]
    search = Search.open(url, NAME, space=space(), objective=THROUGHPUT, seed=SEED)
    for _ in range(told):
        proposal = search.ask()
        tell(search, proposal, speed(proposal.values))
        print(proposal.number, proposal.configuration.key, flush=True)
    if where == "in ask":
        search = Search.open(url, NAME, space=DyingSpace(**vars(space())), objective=THROUGHPUT, seed=SEED)
    proposal = search.ask()
    print(proposal.number, proposal.configuration.key, flush=True)
    if where == "before tell":
        die()
    storage = optuna.storages.RDBStorage
    if where == "in tell, between constraints":
        optuna.Trial.set_constraint = dying(optuna.Trial.set_constraint, 2)  # type: ignore[method-assign]
    elif where == "in tell, before the state":
        storage.set_trial_state_values = lambda *_, **__: die()  # type: ignore[method-assign, assignment]
    tell(search, proposal, speed(proposal.values))
    die()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
